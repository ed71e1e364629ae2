"""Builds the wheel and the sdist, installs them into empty environments, and looks for what a release must not lack.

Usage: python tools/release_check.py [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IN_WHEEL = [
    "headrace/py.typed",
    "headrace/insight/timeline.html",
    "headrace/cli/hook/sitecustomize.py",
    "headrace/cli/demo_text/book-01.txt",
]
IN_SDIST = ["pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/headrace/__init__.py", "tests/conftest.py"]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; returns the paths of both."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def missing_files(wheel: Path, sdist: Path) -> list[str]:
    """What should be in them, and is not; and what should not be, and is."""
    inside = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    lacking = [f"wheel: {name}" for name in IN_WHEEL if name not in inside]
    lacking += [f"sdist: {name}" for name in IN_SDIST if name not in sources]
    strange = [name for name in inside if not name.startswith(("headrace/", "headrace-"))]
    strange += [name for name in [*inside, *sources] if "__pycache__" in name or name.endswith(".pyc")]
    return lacking + [f"should not be there: {name}" for name in strange]


def install(package: Path, folder: Path) -> Path:
    """Install a wheel or an sdist into an empty environment; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *constraints, package]
    subprocess.run(list(map(str, command)), check=True, cwd=folder)
    return python


def first_example() -> str:
    """The first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def run(python: Path, script: str) -> str:
    """What a script prints, in a folder that has none of our sources."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([python, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def open_questions(version: str) -> list[str]:
    """What must be settled by hand before a release."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    if f"## [{version}]" not in changelog:
        found.append(f"CHANGELOG.md has no section [{version}]: rename [Unreleased], and add the date.")
    if "[project.urls]" not in project:
        found.append("pyproject.toml has no [project.urls]: name the public repository and the documentation.")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout
    if status:
        found.append("The working tree has changes that are not committed.")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a folder to leave the wheel and the sdist in")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, sdist = build(keep or folder / "dist")
        print(f"built {wheel.name} and {sdist.name}")
        wrong = missing_files(wheel, sdist)
        for package in (wheel, sdist):
            python = install(package, folder / package.suffix.strip("."))
            version = run(python, "import headrace; print(headrace.__version__)").strip()
            printed = run(python, first_example())
            print(f"{package.name}, in an empty environment: headrace {version}; the README's first example:")
            print("".join(f"  {line}\n" for line in printed.splitlines()), end="")
    questions = open_questions(version)
    for text in [*wrong, *questions]:
        print(f"! {text}")
    print("Ready." if not wrong + questions else "Not ready: see the lines with an exclamation mark.")
    return 1 if wrong + questions else 0


if __name__ == "__main__":
    sys.exit(main())

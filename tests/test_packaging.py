"""The wheel and the sdist: built, complete, installed into an empty environment; extras and hints that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.base.optional import missing_extra

ROOT = Path(__file__).resolve().parent.parent


def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or newer reads TOML")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("build", reason="needs build")
    pytest.importorskip("hatchling", reason="needs hatchling")
    from tools.release_check import build

    return build(tmp_path_factory.mktemp("dist"))


def test_wheel_and_sdist_have_all_that_belongs_to_them(built):
    from tools.release_check import missing_files

    wheel, sdist = built
    assert missing_files(wheel, sdist) == []
    assert headrace.__version__ in wheel.name
    assert headrace.__version__ in sdist.name


@pytest.mark.timeout(300)
def test_a_wheel_in_an_empty_environment_runs_the_first_example(built, tmp_path):
    from tools.release_check import first_example, install, run

    try:
        python = install(built[0], tmp_path / "empty")
    except subprocess.CalledProcessError:
        pytest.skip("needs a package index")
    assert run(python, first_example()).splitlines()[0] == "[0 1 2 3] [0 1 4 9]"
    assert run(python, "import headrace; print(headrace.__version__)").strip() == headrace.__version__
    files = "from importlib.resources import files; print(files('headrace').joinpath('py.typed').is_file())"
    assert run(python, files).strip() == "True"


def test_every_extra_that_is_named_anywhere_exists():
    known = set(project()["optional-dependencies"])
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "Makefile"]
    named: set[str] = set()
    for path in texts:
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"(?:headrace|'\.)\[([a-z,-]+)\]", text):
            named |= set(found.split(","))
        named |= set(extras_of_calls(ast.parse(text))) if path.suffix == ".py" else set()
    assert named - known == set()
    assert {"arrow", "cli", "jax", "pillow", "plot", "psycopg", "ray", "remote", "sql", "torch"} <= known


def extras_of_calls(tree: ast.AST) -> Iterator[str]:
    """What `import_extra` and `missing_extra` are called with."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="import_extra"), args=[_, ast.Constant(value=str(extra)), *_]):
                yield extra
            case ast.Call(func=ast.Name(id="missing_extra"), args=[ast.Constant(value=str(extra)), *_]):
                yield extra


def test_every_extra_for_users_is_in_all():
    extras = project()["optional-dependencies"]
    inside = set(re.search(r"\[(.*)\]", extras["all"][0])[1].split(","))  # type: ignore[index]
    assert inside == set(extras) - {"all", "dev", "peers", "test", "test-sources"}


def test_a_hint_names_packages_that_can_be_installed_without_a_release():
    told = str(missing_extra("arrow", "Reading Parquet"))
    assert told.startswith("Reading Parquet needs arrow, which is not installed. Run: pip install 'headrace[arrow]'")
    assert "(or: pip install 'pyarrow>=15')" in told


def test_the_classifiers_are_the_pythons_that_the_tests_run_on():
    classifiers = project()["classifiers"]
    pythons = [name.rpartition(" :: ")[2] for name in classifiers if re.search(r":: 3\.\d+$", name)]
    assert pythons == ["3.10", "3.11", "3.12", "3.13"]
    assert "Typing :: Typed" in classifiers

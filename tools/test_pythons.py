"""Runs the torch-free tests on every CPython >= 3.10 of this machine.

Usage: python tools/test_pythons.py [pytest arguments]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
PROBE_TIMEOUT_S = 30
PROBE = """
import json, sys, sysconfig
usual = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
released = sys.version_info[3] == "final"
print(json.dumps([usual and released, sys.version_info[:3], sys.executable]))
"""


@dataclass(frozen=True, order=True)
class Interpreter:
    version: tuple[int, ...]
    executable: str

    @property
    def series(self) -> str:
        return ".".join(map(str, self.version[:2]))

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(frozen=True)
class Outcome:
    interpreter: Interpreter
    result: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.result == "passed"


def candidate_paths() -> Iterator[Path]:
    """Yield what may be an interpreter: on PATH, and where version managers keep theirs."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    for folder in [*os.get_exec_path(), "/usr/bin", "/usr/local/bin"]:
        yield from (path for path in Path(folder).glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
    yield from pyenv.glob("versions/*/bin/python")
    yield from Path("/opt/python").glob("*/bin/python")
    yield from Path("~/.local/share/uv/python").expanduser().glob("*/bin/python")
    yield from Path("~/.asdf/installs/python").expanduser().glob("*/bin/python")


def probe(path: Path) -> Interpreter | None:
    """Return the interpreter at `path`, or None if it does not run (a pyenv shim, say) or is no released CPython."""
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, timeout=PROBE_TIMEOUT_S, check=True)
        usable, version, executable = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(tuple(version), executable) if usable else None


def find_interpreters() -> list[Interpreter]:
    """Return the newest patch release of each CPython series, oldest series first."""
    found = filter(None, map(probe, dict.fromkeys(candidate_paths())))
    newest = {interpreter.series: interpreter for interpreter in sorted(found) if interpreter.version >= OLDEST}
    return sorted(newest.values())


def run_tests(interpreter: Interpreter, pytest_arguments: list[str]) -> Outcome:
    environment = ROOT / f".venv-py{interpreter.series}"
    python = str(environment / "bin" / "python")
    pip_install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", "constraints.txt"]
    steps: dict[str, list[str]] = {
        "create the environment": [interpreter.executable, "-m", "venv", "--clear", str(environment)],
        "install": [*pip_install, "-e", ".[test]"],
        "test": [python, "-m", "pytest", "-q", *pytest_arguments],
    }
    started = time.monotonic()
    for step, command in steps.items():
        print(f"\n[CPython {interpreter}] {step}", flush=True)
        code = subprocess.run(command, cwd=ROOT).returncode
        if code:
            return Outcome(interpreter, f"FAILED to {step} (exit code {code})", time.monotonic() - started)
    return Outcome(interpreter, "passed", time.monotonic() - started)


def main(pytest_arguments: list[str]) -> int:
    interpreters = find_interpreters()
    if not interpreters:
        print("Found no CPython >= 3.10 that runs. Install one, or put it on PATH.", file=sys.stderr)
        return 1
    print("Testing on CPython", ", ".join(map(str, interpreters)), flush=True)
    outcomes = [run_tests(interpreter, pytest_arguments) for interpreter in interpreters]
    print(f"\n{'CPython':<10}{'time':>7}   result")
    for outcome in outcomes:
        print(f"{outcome.interpreter!s:<10}{outcome.seconds:>5.0f} s   {outcome.result}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs when Python starts, in every process of a script that `headrace run` runs; serves torch when it is imported.

Python imports the first `sitecustomize` that it finds, and `headrace run` puts this folder first: so ranks and other
processes that the script starts are reached as well. headrace itself is not imported before torch is.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
_SETTINGS = json.loads(os.environ.get("HEADRACE_RUN", "{}"))


def _load(spec: ModuleSpec | None) -> ModuleType:
    assert spec is not None and spec.loader is not None  # noqa: PT018 (they come from files that are there)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_the_next_one() -> None:
    """Run the `sitecustomize` that this one hides, if there is any."""
    others = [folder for folder in sys.path if Path(folder or ".").resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None:
        sys.modules["sitecustomize"] = _load(spec)


def _serve(torch: ModuleType) -> None:
    try:
        from headrace.cli.session import begin
    except ModuleNotFoundError as error:  # another Python than the one that `headrace run` belongs to
        print(f"headrace: {sys.executable} loads with torch itself: {error}.", file=sys.stderr)
        return
    begin()


def _tell_of_no_timeline() -> None:
    """Say that there is nothing to draw; where torch was imported, that is said there."""
    if os.getpid() == _SETTINGS["pid"] and "torch" not in sys.modules:
        print(
            f"headrace: no timeline written to {_SETTINGS['timeline']}, for this process did not import torch. "
            "headrace's own loaders have timeline(path) for that.",
            file=sys.stderr,
        )


_run_the_next_one()
if _SETTINGS.get("timeline") is not None:
    atexit.register(_tell_of_no_timeline)
_watching = _HERE.parent.parent / "base" / "after_import.py"
_load(importlib.util.spec_from_file_location("headrace_after_import", _watching)).after_import("torch", _serve)

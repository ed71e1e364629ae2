"""Finds the object that a user names on the command line: `module:name` or `path.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.cli.printing import fail


def find_dataset(target: str) -> Any:
    """The object of that name; what it returns, if it is a function or a class.

    Raises:
        Exit: there is none, or making it failed; the reason is told in one line.
    """
    where, separator, name = target.rpartition(":")
    if not separator or not where or not name:
        fail(f"a dataset is named module:name or path.py:name, got {target!r}.")
    if where.endswith(".py") and not Path(where).is_file():
        fail(f"there is no file {where}.")
    try:
        found: Any = _import(where)
    except Exception as error:  # noqa: BLE001 (any error of the user's code is told to the user)
        fail(f"{where} cannot be imported: {type(error).__name__}: {error}")
    for part in name.split("."):
        if not hasattr(found, part):
            fail(f"there is no {name} in {where}.")
        found = getattr(found, part)
    return _made(found, target) if _is_factory(found) else found


def _import(where: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    sys.path.insert(0, str(path.parent))  # so that its own imports work, and worker processes find it by its name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 (it is a .py file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _is_factory(found: Any) -> bool:
    return isinstance(found, type) or (callable(found) and not hasattr(found, "__getitem__"))


def _made(factory: Any, target: str) -> Any:
    try:
        return factory()
    except Exception as error:  # noqa: BLE001 (any error of the user's code is told to the user)
        fail(f"{target}() raised {type(error).__name__}: {error}")

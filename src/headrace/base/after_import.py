"""Calls back when a module is imported, by anybody, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def after_import(module: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback` with the module: now if it is imported already, else right after it was."""
    if module in sys.modules:
        callback(sys.modules[module])
        return
    _watcher.callbacks.setdefault(module, []).append(callback)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


class _ImportWatcher:
    """Calls back right after a module was executed for the first time; finds nothing by itself."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def execute_and_call_back(module: ModuleType) -> None:
            del loader.exec_module  # back to the class's own method
            execute(module)
            for callback in self.callbacks.pop(spec.name, ()):
                callback(module)
            if not self.callbacks and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = execute_and_call_back  # type: ignore[method-assign]


_watcher = _ImportWatcher()

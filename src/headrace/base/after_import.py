"""Calls back when a module is imported, by anybody, without importing it. Loaded by `cli/hook` on its own, too."""

from __future__ import annotations

import sys
import threading
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
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another finder that asks all others, as this one does, must not be answered by asking it again.
        if fullname not in self.callbacks or getattr(self._looking, "name", None) == fullname:
            return None
        self._looking.name = fullname
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._looking.name = None
        if spec is not None:
            self._watch(spec)
        return spec

    def _ask_others(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        return next((spec for spec in found if spec is not None), None)

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

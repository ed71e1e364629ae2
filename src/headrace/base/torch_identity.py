"""Lets headrace's abstract classes be torch's as well, without ever importing torch.

A class registered with `adopt` becomes a true subclass of its torch counterpart at the moment torch is imported, by
anybody, before or after headrace: `isinstance(dataset, torch.utils.data.IterableDataset)` holds, in torch's own
DataLoader too. The reasons and the alternatives are in `docs/design/torch-identity.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

T_co = TypeVar("T_co", covariant=True)


class Adoptable(Generic[T_co]):
    """The base that `adopt` exchanges for torch's class; it has the same memory layout, as Python demands."""


def adopt(cls: type, module: str, name: str) -> None:
    """Make `cls` a subclass of `module.name`, now or as soon as that module is imported."""

    def exchange_base(torch_module: ModuleType) -> None:
        torch_class = getattr(torch_module, name)
        bases = tuple(base for base in cls.__bases__ if base is not Adoptable and not issubclass(torch_class, base))
        try:
            cls.__bases__ = (*bases, torch_class)
        except TypeError:
            # Another layout in some future torch: only the abstract ones can still be told about us.
            register = getattr(torch_class, "register", None)
            if register is not None:
                register(cls)

    if module in sys.modules:
        exchange_base(sys.modules[module])
    else:
        _after_import(module, exchange_base)


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


def _after_import(module: str, callback: Callable[[ModuleType], None]) -> None:
    _watcher.callbacks.setdefault(module, []).append(callback)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)

"""Lets headrace's abstract classes be torch's as well, without ever importing torch.

A class registered with `adopt` becomes a true subclass of its torch counterpart at the moment torch is imported, by
anybody, before or after headrace: `isinstance(dataset, torch.utils.data.IterableDataset)` holds, in torch's own
DataLoader too. The reasons and the alternatives are in `docs/design/torch-identity.md`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Generic, TypeVar

from headrace.base.after_import import after_import

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

    after_import(module, exchange_base)

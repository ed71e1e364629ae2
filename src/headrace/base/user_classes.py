"""What headrace's abstract classes share: they are torch's as well, and know what their subclasses override.

A class registered with `adopt` becomes a true subclass of its torch counterpart at the moment torch is imported, by
anybody, before or after headrace: `isinstance(dataset, torch.utils.data.IterableDataset)` holds, in torch's own
DataLoader too. The reasons and the alternatives are in `docs/design/torch-identity.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, TypeVar

from headrace.base.after_import import after_import

T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C")


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
            # Another layout in some future torch: only abstract classes can still register ours.
            register = getattr(torch_class, "register", None)
            if register is not None:
                register(cls)

    after_import(module, exchange_base)


def adopted(name: str) -> Callable[[type[C]], type[C]]:
    """Adopt a class of the same name, as a decorator; `name` is the module of torch's."""

    def decorate(cls: type[C]) -> type[C]:
        adopt(cls, name, cls.__name__)
        return cls

    return decorate


_answers: dict[tuple[type, tuple[str, ...]], bool] = {}


def stands_in(cls: type, fast: str, *plain: str) -> bool:
    """Whether `cls.fast` was written with full knowledge of every `cls.plain` method.

    True if `fast` is defined in the same class as the plain methods or in a class derived from it. A subclass that
    overrides `__iter__` or `__getitem__` alone changes what the class means, so the inherited fast method is out.
    """
    question = (cls, (fast, *plain))
    if question not in _answers:
        fast_depth, *plain_depths = (_depth(cls, name) for name in (fast, *plain))
        _answers[question] = fast_depth < len(cls.__mro__) and fast_depth <= min(plain_depths)
    return _answers[question]


def _depth(cls: type, name: str) -> int:
    """How many bases up a method is defined; their number if it is not."""
    return next((i for i, base in enumerate(cls.__mro__) if name in vars(base)), len(cls.__mro__))


def in_short(dataset: Any) -> str:
    """A dataset in a word or two: its kind and its length, or its own line if it is one of headrace's."""
    if type(dataset).__module__.startswith("headrace."):
        return repr(dataset)
    try:
        return f"<{type(dataset).__name__} of {len(dataset)}>"
    except Exception:  # noqa: BLE001 (not all have a length, and a line for people must never fail)
        return f"<{type(dataset).__name__}>"

"""Whether a fast method of a class may stand in for a plain one that a subclass could have overridden."""

from __future__ import annotations

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

"""Whether a fast method of a class may stand in for a plain one that a subclass could have overridden."""

from __future__ import annotations


def stands_in(cls: type, fast: str, *plain: str) -> bool:
    """Whether `cls.fast` was written with full knowledge of every `cls.plain` method.

    True if `fast` is defined in the same class as the plain methods or in a class derived from it. A subclass that
    overrides `__iter__` or `__getitem__` alone changes what the class means, so the inherited fast method is out.
    """

    def depth(name: str) -> int:
        return next((i for i, base in enumerate(cls.__mro__) if name in vars(base)), len(cls.__mro__))

    fast_depth = depth(fast)
    return fast_depth < len(cls.__mro__) and all(fast_depth <= depth(name) for name in plain)

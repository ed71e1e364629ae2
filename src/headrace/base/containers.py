"""Rebuilds nested containers around new contents, keeping the type wherever the type allows it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any


def is_named_tuple(value: object) -> bool:
    """Whether `value` is an instance of a named tuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def mapping_like(example: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """The new `items` in a mapping of the example's type, or in a dict where that type cannot be rebuilt.

    A mutable mapping is cloned and updated, so that it keeps extra attributes (a default factory, for instance).
    """
    if type(example) is dict:
        return items
    try:
        if isinstance(example, MutableMapping):
            clone = copy.copy(example)
            clone.update(items)
            return clone
        return type(example)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def sequence_like(example: Sequence[Any], items: list[Any]) -> Any:
    """The new `items` in a sequence of the example's type, or in a list where that type cannot be rebuilt."""
    if type(example) is list:
        return items
    try:
        if isinstance(example, MutableSequence):
            clone = copy.copy(example)
            for i, item in enumerate(items):
                clone[i] = item
            return clone
        return type(example)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def map_leaves(
    fn: Callable[[Any], Any],
    value: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    tuples_to_lists: bool = False,
) -> Any:
    """Apply `fn` to everything in `value` that is not a mapping or a sequence; `str` and `bytes` are leaves.

    Args:
        is_leaf: tells which containers are leaves too.
        tuples_to_lists: whether plain tuples come out as lists (what torch's collation does) or as they are.
    """

    def inner(item: Any) -> Any:
        return map_leaves(fn, item, is_leaf=is_leaf, tuples_to_lists=tuples_to_lists)

    if isinstance(value, (str, bytes)) or (is_leaf is not None and is_leaf(value)):
        return fn(value)
    if isinstance(value, Mapping):
        return mapping_like(value, {key: inner(value[key]) for key in value})
    if not isinstance(value, Sequence):
        return fn(value)
    contents = [inner(item) for item in value]
    if is_named_tuple(value):
        return type(value)(*contents)
    if isinstance(value, tuple):
        return contents if tuples_to_lists else type(value)(contents)
    return sequence_like(value, contents)

"""Rebuilds nested containers around new contents, keeping the type wherever the type allows it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from enum import Enum, auto
from typing import Any


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


class Kind(Enum):
    """What a type of values is to code that walks through nested containers."""

    LEAF = auto()
    MAPPING = auto()
    NAMED_TUPLE = auto()
    TUPLE = auto()
    SEQUENCE = auto()


_kinds: dict[type, Kind] = {}  # abstract classes answer slowly


def kind_of(cls: type) -> Kind:
    """The kind of all values of this type; `str` and `bytes` are leaves."""
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _find_kind(cls)
    return kind


def _find_kind(cls: type) -> Kind:
    if issubclass(cls, (str, bytes)):
        return Kind.LEAF
    if issubclass(cls, Mapping):
        return Kind.MAPPING
    if issubclass(cls, tuple):
        return Kind.NAMED_TUPLE if hasattr(cls, "_fields") else Kind.TUPLE
    return Kind.SEQUENCE if issubclass(cls, Sequence) else Kind.LEAF


def map_leaves(
    fn: Callable[[Any], Any],
    value: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    tuples_to_lists: bool = False,
) -> Any:
    """Apply `fn` to everything in `value` that is not a mapping or a sequence.

    Args:
        is_leaf: whether a container is a leaf, too.
        tuples_to_lists: whether plain tuples come out as lists (what torch's collation does) or as they are.
    """
    kind = kind_of(type(value))
    if kind is Kind.LEAF or (is_leaf is not None and is_leaf(value)):
        return fn(value)
    if kind is Kind.MAPPING:
        items = {key: map_leaves(fn, value[key], is_leaf=is_leaf, tuples_to_lists=tuples_to_lists) for key in value}
        return mapping_like(value, items)
    contents = [map_leaves(fn, item, is_leaf=is_leaf, tuples_to_lists=tuples_to_lists) for item in value]
    match kind:
        case Kind.NAMED_TUPLE:
            return type(value)(*contents)
        case Kind.TUPLE:
            return contents if tuples_to_lists else type(value)(contents)
        case _:
            return sequence_like(value, contents)

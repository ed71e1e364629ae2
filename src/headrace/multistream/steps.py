"""Blocks of all parts, joined and cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.base.errors import CollateError
from headrace.batch.collate import Collator
from headrace.multistream.block import Items, StepBlock, not_uniform
from headrace.multistream.columns import (
    NotUniformError,
    cut_step,
    empty_like,
    item_at,
    join_side_by_side,
    leaves_of,
    rebuilt,
)
from headrace.multistream.positions import PositionMap, check_part


class StreamBatch(NamedTuple):
    """A batch with what was asked for besides the data; the rest is None.

    All have the same first dimension, positions; or with `seq_len` the first two, steps and positions.
    """

    data: Any
    targets: Any = None
    """The item that follows each one in its sequence; `ignore_index` where none does."""
    is_first: Any = None
    """Whether a sequence begins with this item: there a model forgets what it has seen in this position."""
    mask: Any = None
    """Whether there is an item; a position that has come to its end is empty."""


CollateFn: TypeAlias = "Callable[[list[Any]], Any] | None"
"""Makes the data of a batch of what the positions have: an item each, or with `seq_len` its items of a chunk."""


def cut_batches(
    fields: dict[str, Any], end: int, positions: PositionMap, collator: Collator, collate_fn: CollateFn = None
) -> Iterator[Any]:
    """The batches of joined blocks, one after the other."""
    cut: dict[str, Iterator[Any]] = {}
    for name, columns in fields.items():
        if name == "data" and collate_fn is not None:
            cut[name] = map(collate_fn, _item_lists(columns, end, positions))
        else:
            cut[name] = _cut_columns(columns, end, positions, collator)
    if positions.layout.is_plain:
        return cut["data"]
    return (StreamBatch(**dict(zip(cut, parts, strict=True))) for parts in zip(*cut.values(), strict=True))


def _item_lists(columns: Any, end: int, positions: PositionMap) -> Iterator[list[Any]]:
    """What the positions have, batch by batch."""
    if isinstance(columns, Items):
        make = _in_one_list if positions.gives_items else _filled_up
        return (make(row) for row in columns.rows[:end])
    axis, n = positions.layout.axis - 1, len(positions.positions)
    return ([_of_position(columns, chunk, number, axis) for number in range(n)] for chunk in range(end))


def _of_position(columns: Any, chunk: int, number: int, axis: int) -> Any:
    return rebuilt(columns, [np.take(leaf[chunk], number, axis=axis) for leaf in leaves_of(columns)])


def _cut_columns(columns: Any, end: int, positions: PositionMap, collator: Collator) -> Iterator[Any]:
    wrap = collator.framework.wrap
    if isinstance(columns, Items) and positions.gives_items:
        return (collator.convert(_in_one_list(row)) for row in columns.rows[:end])
    if isinstance(columns, Items):
        return (_collated(_filled_up(row), collator) for row in columns.rows[:end])
    if isinstance(columns, np.ndarray) and columns.dtype != object:
        return iter(columns[:end]) if collator.framework.name == "numpy" else map(wrap, columns[:end])
    return (cut_step(columns, step, wrap) for step in range(end))


def _in_one_list(parts: list[Any]) -> list[Any]:
    for part in parts:
        check_part(part)
    return list(chain(*parts))


def _collated(items: list[Any], collator: Collator) -> Any:
    try:
        return collator(items)
    except CollateError as error:
        raise CollateError(
            "The items that stand side by side must have one shape and length, as they become one batch. Make them so "
            "where they are read, in read= for instance."
        ) from error


def _filled_up(row: list[Any]) -> list[Any]:
    """The items of a step, with empty ones where positions have ended."""
    some = next((item for item in row if item is not None), None)
    return [empty_like(some) if item is None else item for item in row]


def join_parts(parts: Sequence[StepBlock], positions: PositionMap) -> dict[str, Any]:
    """The fields of the parts, side by side.

    Raises:
        CollateError: items of different types or shapes, though chunks or targets are asked for.
    """
    joined = {}
    for name in parts[0].fields:
        columns = [part.fields[name] for part in parts]
        try:
            if any(isinstance(one, Items) for one in columns):
                raise NotUniformError
            joined[name] = join_side_by_side(columns, positions.layout.axis)
        except NotUniformError:
            joined[name] = _join_items(parts, positions)
    return joined


def _join_items(parts: Sequence[StepBlock], positions: PositionMap) -> Items:
    if positions.layout.seq_len is not None or positions.layout.targets:
        raise not_uniform()
    return Items([list(chain(*row)) for row in zip(*map(_rows_of, parts), strict=True)])


def _rows_of(part: StepBlock) -> list[list[Any]]:
    """The items of a part, step by step."""
    data = part.fields["data"]
    if isinstance(data, Items):
        return data.rows
    return [
        [None if step >= n else item_at(data, step, number, part.are_numbers) for number, n in enumerate(part.counts)]
        for step in range(part.chunks)
    ]

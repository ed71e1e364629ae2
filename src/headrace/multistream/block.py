"""Blocks: many steps of the positions of one part, as workers make them and the loader gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.base.errors import CollateError
from headrace.frameworks.framework import Allocate, Array
from headrace.multistream.columns import (
    NotUniformError,
    columns_of,
    cut_into_chunks,
    empty_item,
    following_items,
    layout_of,
    leaves_of,
    listed,
    rebuilt,
)
from headrace.multistream.lane import Reading
from headrace.multistream.positions import Layout
from headrace.multistream.sequence_reader import Run

Peeked: TypeAlias = "tuple[Run, bool] | None"
"""The item after what was read, and whether a sequence begins with it; None at the end."""

_OBJECT_BYTES = 64  # a guess
_NOTHING = np.empty(0, np.bool_)


class Hint(NamedTuple):
    """Where the positions of a part were at some step.

    Attributes:
        places: a row for each position: ordinal and offset.
        marks: what helps to get there, by the number of the position in the part.
    """

    step: int
    places: Array
    marks: dict[int, Any]


class Items(NamedTuple):
    """Items that are not uniform: for each step a list of those of all positions; None where there is none."""

    rows: list[list[Any]]


class StepBlock(NamedTuple):
    """Some steps of one part.

    Attributes:
        fields: columns by name, in chunks; data may be `Items`.
        are_numbers: for each array of the data, whether its items were numbers of Python's own.
        counts: how many items each position has; fewer than there are steps at its end only.
        start: where the positions were at its beginning.
        pieces: a row for each piece that begins in it: the number of its position, its step, its ordinal.
        chunks: how many there are, and `seconds` what they took.
    """

    fields: dict[str, Any]
    are_numbers: list[bool]
    counts: list[int]
    start: Hint
    pieces: Array
    chunks: int
    seconds: float

    @property
    def n_bytes(self) -> int:
        """How large it is, more or less."""
        data = self.fields["data"]
        if isinstance(data, Items):
            return sum(map(len, data.rows)) * _OBJECT_BYTES
        return sum(leaf.nbytes + leaf.size * leaf.dtype.hasobject * _OBJECT_BYTES for leaf in leaves_of(data))


def compose(
    readings: Sequence[Reading],
    peeked: Sequence[Peeked],
    chunks: int,
    find_example: Callable[[], Run],
    layout: Layout,
    allocate: Allocate,
) -> dict[str, Any]:
    """What the positions of a part have read, side by side.

    Args:
        peeked: for targets, what comes then.
        find_example: gives a run of any length, for where no position has read anything.

    Raises:
        CollateError: items are not uniform, though targets or chunks need it; or cannot hold `ignore_index`.
    """
    shape = (chunks * layout.length, len(readings))
    is_first, mask = (_NOTHING, _NOTHING) if layout.is_plain else _flags(readings, shape)
    fields: dict[str, Any] = {}
    try:
        data = _columns(readings, shape, find_example, allocate)
        if layout.targets:
            fields["targets"] = _targets(data, peeked, is_first, mask, layout.ignore_index, allocate)
        fields["data"] = data
    except NotUniformError as error:
        if layout.targets or layout.seq_len is not None:
            raise not_uniform() from error
        fields["data"] = as_items(readings, chunks)
    if layout.is_first:
        fields["is_first"] = is_first
    if layout.mask:
        fields["mask"] = mask
    if layout.seq_len is None:
        return fields
    return {name: _in_chunks(columns, layout, allocate) for name, columns in fields.items()}


def not_uniform() -> CollateError:
    """The error for items that differ where they must not."""
    return CollateError("With seq_len or targets, all items must be of one type and shape, or strings.")


def as_items(readings: Sequence[Reading], steps: int) -> Items:
    """What was read, as lists of items."""
    columns = [[item for run in reading.runs for item in listed(run)] for reading in readings]
    return Items([[column[step] if step < len(column) else None for column in columns] for step in range(steps)])


def _flags(readings: Sequence[Reading], shape: tuple[int, int]) -> tuple[Array, Array]:
    """Where sequences begin, and where there are items."""
    is_first, mask = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for number, reading in enumerate(readings):
        mask[: reading.count, number] = True
        for start in reading.starts:
            is_first[start.at, number] = start.is_first
    return is_first, mask


def _columns(
    readings: Sequence[Reading], shape: tuple[int, int], find_example: Callable[[], Run], allocate: Allocate
) -> Any:
    runs = [[columns_of(run) for run in reading.runs] for reading in readings]
    first = next((run for column in runs for run in column), None)
    if first is None:
        first = columns_of(find_example())
    layout = layout_of(first)
    is_full = all(reading.count >= shape[0] for reading in readings)
    leaves = [_room_for(leaf, shape, allocate, is_full=is_full) for leaf in leaves_of(first)]
    for number, column in enumerate(runs):
        start = 0
        for run in column:
            if layout_of(run) != layout:
                raise NotUniformError
            for leaf, part in zip(leaves, leaves_of(run), strict=True):
                leaf[start : start + len(part), number] = part
            start += len(part)
    return rebuilt(first, leaves)


def _room_for(example: Array, shape: tuple[int, int], allocate: Allocate, *, is_full: bool) -> Array:
    room = allocate((*shape, *example.shape[1:]), example.dtype)
    if not is_full:
        room[...] = empty_item(example)
    return room


def _targets(
    data: Any, peeked: Sequence[Peeked], is_first: Array, mask: Array, ignore_index: int, allocate: Allocate
) -> Any:
    seams = np.ones_like(mask)
    seams[:-1] = is_first[1:] | ~mask[1:]
    seams[-1:] = [one is None or one[1] for one in peeked]
    after = [None if one is None else columns_of(one[0]) for one in peeked]
    if any(layout_of(one) != layout_of(data, 2) for one in after if one is not None):
        raise NotUniformError
    leaves = leaves_of(data)
    following = [[None if one is None else leaves_of(one)[i] for one in after] for i in range(len(leaves))]
    shifted = [
        following_items(leaf, ones, seams, ignore_index, allocate) for leaf, ones in zip(leaves, following, strict=True)
    ]
    return rebuilt(data, shifted)


def _in_chunks(columns: Any, layout: Layout, allocate: Allocate) -> Any:
    leaves = [
        cut_into_chunks(leaf, layout.length, batch_first=layout.batch_first, allocate=allocate)
        for leaf in leaves_of(columns)
    ]
    return rebuilt(columns, leaves)

"""What `iter(loader)` returns: blocks of all parts are joined, and given out batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import CollateError
from headrace.batch.collate import Collator
from headrace.multistream.block import Block, Items, not_uniform
from headrace.multistream.columns import NotUniformError, cut_step, empty_like, item_at, join_side_by_side
from headrace.multistream.course import Course
from headrace.multistream.plan import Plan

_NONE = object()


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


class StepIterator:
    """The batches of one epoch.

    Args:
        blocks: the blocks of all parts, in turn.
        collator: of the output.
        finish: applied to each batch at last, e.g. to pin its memory; None if there is nothing to do.
    """

    def __init__(
        self,
        blocks: Iterator[Block],
        plan: Plan,
        course: Course,
        collator: Collator,
        finish: Callable[[Any], Any] | None,
    ) -> None:
        self._blocks = blocks
        self._plan = plan
        self._length = plan.layout.length
        self._course = course
        self._collator = collator
        self._finish = finish
        self._batches: Iterator[Any] = iter(())

    def __iter__(self) -> StepIterator:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised; the epoch ends with it.
            StopIteration: the epoch is over.
        """
        batch = next(self._batches, _NONE)
        if batch is _NONE:
            self._load()
            batch = next(self._batches)
        self._course.step += self._length
        return batch if self._finish is None else self._finish(batch)

    def _load(self) -> None:
        blocks, self._blocks = self._blocks, iter(())  # an error ends the epoch
        try:
            parts = [next(blocks) for _ in self._plan.parts]
        except StopIteration:
            self._course.is_over = True
            raise
        end = self._find_end(parts)
        if not end:
            self._course.is_over = True
            raise StopIteration
        self._batches = cut_batches(join_parts(parts, self._plan), end, self._plan, self._collator)
        self._course.enter(parts)
        self._blocks = blocks

    def _find_end(self, parts: Sequence[Block]) -> int:
        """How many batches there are in blocks: all, or as many as have items."""
        if self._plan.n_steps is not None:
            return parts[0].chunks
        counts = [count for part in parts for count in part.counts]
        return -(-(min if self._plan.gives_items else max)(counts) // self._length)


def cut_batches(fields: dict[str, Any], end: int, plan: Plan, collator: Collator) -> Iterator[Any]:
    """The batches of joined blocks, one after the other."""
    if plan.layout.is_plain:
        return _cut_columns(fields["data"], end, plan, collator)
    columns = zip(*(_cut_columns(columns, end, plan, collator) for columns in fields.values()), strict=True)
    return (StreamBatch(**dict(zip(fields, parts, strict=True))) for parts in columns)


def _cut_columns(columns: Any, end: int, plan: Plan, collator: Collator) -> Iterator[Any]:
    wrap = collator.framework.wrap
    if isinstance(columns, Items) and plan.gives_items:
        return (collator.convert(_in_one_list(row)) for row in columns.rows[:end])
    if isinstance(columns, Items):
        return (_collated(_filled_up(row), collator) for row in columns.rows[:end])
    if isinstance(columns, np.ndarray) and columns.dtype != object:
        return map(wrap, columns[:end])
    return (cut_step(columns, step, wrap) for step in range(end))


def check_part(part: Any) -> None:
    """See that what a dataset gives is its part of a batch.

    Raises:
        TypeError: it is a sample; mostly `batch_size` was forgotten.
    """
    if not isinstance(part, Iterable) or isinstance(part, (str, bytes)):
        raise TypeError(
            f"Without batch_size, each dataset gives its part of every batch, a list of items, got {part!r:.80}. Pass "
            "batch_size, which is how many sequences are read side by side; or give lists."
        )


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


def join_parts(parts: Sequence[Block], plan: Plan) -> dict[str, Any]:
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
            joined[name] = join_side_by_side(columns, plan.layout.axis)
        except NotUniformError:
            joined[name] = _join_items(parts, plan)
    return joined


def _join_items(parts: Sequence[Block], plan: Plan) -> Items:
    if plan.layout.seq_len is not None or plan.layout.targets:
        raise not_uniform()
    return Items([list(chain(*row)) for row in zip(*map(_rows_of, parts), strict=True)])


def _rows_of(part: Block) -> list[list[Any]]:
    """The items of a part, step by step."""
    data = part.fields["data"]
    if isinstance(data, Items):
        return data.rows
    return [
        [None if step >= n else item_at(data, step, number, part.are_numbers) for number, n in enumerate(part.counts)]
        for step in range(part.chunks)
    ]

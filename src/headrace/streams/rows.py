"""What is done to the rows of a window as a whole: joined, shuffled, put where another process sees them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from headrace.base.indices import Indices
from headrace.base.lazy_column import Allocate, LazyColumn, materialize, placed
from headrace.sources.chunks import (
    ColumnChunk,
    JoinedChunk,
    ObjectChunk,
    PickedChunk,
    by_name,
    join_columns,
    pick_objects,
)
from headrace.sources.source import Chunk


def placed_columns(chunk: Chunk, allocate: Allocate | None) -> dict[str, Any]:
    """The columns, some of them lazy, in memory that another process sees as far as that is possible."""
    columns = chunk.lazy_columns()
    return columns if allocate is None else {name: placed(column, allocate) for name, column in columns.items()}


def own_columns(columns: dict[str, Any], *, is_own: bool = False) -> dict[str, Any]:
    """The columns, materialized, whose arrays may be written to: a window's are often views of others' memory.

    Args:
        is_own: whether nobody else sees the arrays; but small ones may have come in memory that is read-only.
    """
    return {name: _own(column, is_own=is_own) for name, column in columns.items()}


def _own(column: Any, *, is_own: bool) -> Any:
    if isinstance(column, LazyColumn):
        is_own = is_own or column.is_fresh
        column = column.materialize()
    is_copied = isinstance(column, np.ndarray) and not (is_own and column.flags.writeable)
    return column.copy() if is_copied else column


def as_one(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks as one; as one list, if they are lists already, which is quicker to cut."""
    named = [chunk.column for chunk in chunks if isinstance(chunk, ObjectChunk) and chunk.column is not None]
    if len(named) == len(chunks) > 1:
        return ObjectChunk(list(chain.from_iterable(chunk.rows() for chunk in chunks)), named[0])
    return chunks[0] if len(chunks) == 1 else JoinedChunk(chunks)


def every_nth(rows: Chunk, first: int, step: int, *, as_columns: bool) -> Chunk:
    """Every `step`-th row, beginning with number `first`."""
    if step == 1:
        return rows.slice(min(first, len(rows)), len(rows)) if first else rows
    if as_columns:
        return ColumnChunk({name: column[first::step] for name, column in rows.columns().items()})
    return ObjectChunk(rows.rows()[first::step])


def shuffle_rows(rows: Chunk, places: Indices, *, as_columns: bool, is_later: bool = False) -> Chunk:
    """The rows at these places, in this order.

    Args:
        as_columns: whether they are wanted as columns, which are then not made into rows on the way.
        is_later: whether columns need not be made yet.
    """
    if not as_columns:
        return PickedChunk(rows.rows(), places)
    parts = [part.lazy_columns() for part in rows.parts()] if is_later else [rows.columns()]
    return ColumnChunk({name: _pick(columns, places) for name, columns in by_name(parts).items()})


def _pick(columns: list[Any], places: Indices) -> Any:
    first, *others = columns
    picked = first.pick(others, places) if isinstance(first, LazyColumn) else None
    if picked is not None:
        return picked
    column = join_columns([*map(materialize, columns)])
    return column[places] if isinstance(column, np.ndarray) else pick_objects(column, places)

"""Rows of one length, cut from sequences of tokens that follow each other, whatever windows they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from headrace.base.indices import Indices
from headrace.sources.chunks import ColumnChunk, JoinedChunk, ObjectChunk
from headrace.sources.source import Chunk

TOKENS = "tokens"
SEGMENTS, POSITIONS = "segments", "positions"
_BEGINS = "begins"  # cannot clash with a user's field: those are keyed by (_FIELD, name)
_FIELD = "field"


class PackedArrays(NamedTuple):
    """A batch of packed rows: arrays of shape `[rows, length, ...]`, that nobody else sees.

    Attributes:
        is_one: whether rows are sequences, and there is only one array.
    """

    columns: dict[str, Any]
    is_one: bool


@dataclass(frozen=True)
class Packing:
    """Tokens are loaded in place of rows: as many as make a batch of rows, and are cut into rows at last.

    So rows go on from one window to the next, and nothing is lost. Only the last row of all may be shorter; where
    batches are arrays, it is filled up.

    Attributes:
        length: of a row.
        drops_rest: whether a shorter last row is left out.
        segments: whether rows also number the sequences that they are made of, and the tokens of each.
        padding_value: what a shorter last row is filled up with, for the user's functions, too, if it is not None.
    """

    length: int
    drops_rest: bool = False
    segments: bool = False
    padding_value: Any = None

    def rows(self, tokens: Chunk, *, as_arrays: bool = False) -> list[Any]:
        """The tokens as rows.

        Args:
            as_arrays: whether lists of numbers become arrays, and a shorter last row is filled up.
        """
        if as_arrays or self.padding_value is not None:
            packed = self.arrays(tokens)
            if packed is not None:
                rows = (
                    dict(zip(packed.columns, row, strict=True)) for row in zip(*packed.columns.values(), strict=True)
                )
                return [row[TOKENS] for row in rows] if packed.is_one else list(rows)
        starts = range(0, len(tokens), self.length)
        columns = _columns(tokens)
        if columns is None:
            sequence = _sequence(tokens)
            return [sequence[start : start + self.length] for start in starts]
        parts = ({name: column[start : start + self.length] for name, column in columns.items()} for start in starts)
        return [self._named(part) for part in parts]

    def arrays(self, tokens: Chunk) -> PackedArrays | None:
        """The tokens as arrays of rows, the last of which is filled up; None if they are no numbers."""
        columns, is_one = _columns(tokens), False
        if columns is None:
            columns, is_one = {_field(TOKENS): _sequence(tokens)}, True
        n_rows = -(-len(tokens) // self.length)
        filled = {}
        for name, column in columns.items():
            values = _as_numbers(column)
            if values is None:
                return None
            array = np.full((n_rows * self.length, *values.shape[1:]), self._filling(name), values.dtype)
            array[: len(values)] = values
            filled[name] = array.reshape(n_rows, self.length, *values.shape[1:])
        n_last = len(tokens) - (n_rows - 1) * self.length
        return PackedArrays(self._named(filled, n_last), is_one)

    def _filling(self, name: Any) -> Any:
        return False if name == _BEGINS else self.padding_value or 0

    def _named(self, columns: dict[Any, Any], n_last: int | None = None) -> dict[str, Any]:
        """The fields by their names; and where sequences begin as numbers of sequences and of tokens in them."""
        fields = {name[1]: column for name, column in columns.items() if name != _BEGINS}
        if not self.segments:
            return fields
        segments, positions = number_segments(columns[_BEGINS])
        if n_last is not None and segments.size:
            segments[-1, n_last:] = positions[-1, n_last:] = 0
        return {**fields, SEGMENTS: segments, POSITIONS: positions}

    def split(self, rest: Chunk, tokens: Chunk) -> tuple[Chunk, Chunk]:
        """The tokens of the whole rows of what was left over and of more tokens, and what is left over now."""
        both = JoinedChunk([rest, tokens])
        end = len(both) - len(both) % self.length
        return both.slice(0, end), both.slice(end, len(both))

    def join(self, rows: Sequence[Any]) -> Chunk:
        """The tokens of all rows, one after the other.

        Raises:
            TypeError: one of them is neither a sequence nor a dict of sequences.
            ValueError: the sequences of a dict differ in their lengths.
        """
        fields = join_fields(rows)
        if fields is None and not self.segments:
            return join_tokens(rows)
        if fields is None:
            fields = {TOKENS: join_tokens(rows).rows()}
        columns: dict[Any, Any] = {_field(name): column for name, column in fields.items()}
        if self.segments:
            columns[_BEGINS] = _begins([sequence_length(row) for row in rows])
        return ColumnChunk(columns)


def number_segments(begins: Any) -> tuple[Any, Any]:
    """The number of each token's sequence in its row, from 1 on, and of the token in the sequence, from 0 on.

    Args:
        begins: whether a sequence begins at each token, along the last axis.
    """
    begins = begins.copy()
    begins[..., :1] = True  # the rest of a sequence that the row before has begun
    places = np.arange(begins.shape[-1])
    firsts = np.maximum.accumulate(np.where(begins, places, 0), axis=-1)
    return np.cumsum(begins, axis=-1), places - firsts


def sequence_length(row: Any) -> int:
    """How many tokens a row has."""
    return len(next(iter(row.values()), ())) if isinstance(row, Mapping) else len(row)


def _begins(lengths: Sequence[int]) -> Indices:
    ends = np.cumsum([0, *lengths])
    begins = np.zeros(int(ends[-1]), np.bool_)
    begins[ends[:-1][np.diff(ends) > 0]] = True
    return begins  # type: ignore[return-value]


def _field(name: Any) -> Any:
    return _FIELD, name


def join_fields(rows: Sequence[Any]) -> dict[Any, Any] | None:
    """The sequences of each field of rows that are dicts, one after the other; None if rows are no dicts.

    Raises:
        TypeError: only some rows are dicts, or a field is no sequence.
        ValueError: rows have other fields, or fields of other lengths.
    """
    if not rows or not isinstance(rows[0], Mapping):
        return None
    names = list(rows[0])
    for row in rows:
        if not isinstance(row, Mapping):
            refuse_others([row, *rows])
        if list(row) != names:
            raise ValueError(f"pack() needs rows that have the same fields, got {names} and {list(row)}.")
    refuse_others([value for row in rows for value in row.values()])
    for row in rows:
        lengths = {name: len(value) for name, value in row.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(
                f"pack() needs rows whose fields are sequences of one length, got {lengths}. Leave others out by map() "
                "before."
            )
    return {name: join_tokens([row[name] for row in rows]).rows() for name in names}


def join_tokens(sequences: Sequence[Any]) -> ObjectChunk:
    """The tokens of all sequences, one after the other; as an array, if all of them are arrays.

    Raises:
        TypeError: one of them is no sequence.
    """
    if sequences and all(isinstance(one, np.ndarray) and one.ndim == 1 for one in sequences):
        return ObjectChunk(np.concatenate(sequences))
    refuse_others(sequences)
    return ObjectChunk(list(chain.from_iterable(sequences)))


def refuse_others(rows: Iterable[Any]) -> None:
    """See that all rows are sequences.

    Raises:
        TypeError: one is not.
    """
    for row in {type(row): row for row in rows}.values():  # one of each type: a look at each row would take long
        if isinstance(row, Mapping) or not _can_be_iterated(row):
            raise TypeError(
                f"pack() needs rows that are sequences of tokens, or dicts of them, got {type(row).__name__}: "
                f"{row!r:.80}. Make them so by map() before."
            )


def _can_be_iterated(row: Any) -> bool:
    try:
        iter(row)
    except TypeError:
        return False
    return True


def _as_numbers(values: Any) -> Any:
    """Values as an array; None if they are no numbers, or arrays of other shapes."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def _columns(tokens: Chunk) -> dict[Any, Any] | None:
    """The columns of tokens that have several; of none at all, nobody knows."""
    parts = tokens.parts()
    return tokens.columns() if parts and isinstance(parts[0], ColumnChunk) else None


def _sequence(tokens: Chunk) -> Any:
    """All tokens as one list or array."""
    parts = tokens.parts()
    return parts[0].rows() if len(parts) == 1 else join_tokens([part.rows() for part in parts]).rows()

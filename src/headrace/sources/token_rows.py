"""Rows of tokens: cut from long runs of tokens, with the next tokens, document numbers and positions beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from headrace.base.indices import Indices
from headrace.base.lazy_column import Allocate, LazyColumn
from headrace.sources.token_files import Tokens

_INT32 = np.dtype(np.int32)


class RowLayout(NamedTuple):
    """What a row is made of.

    Attributes:
        length: tokens in a row.
        dtype: of the tokens in a row.
        targets: whether the tokens that follow each one are given, too.
        documents: whether numbers of documents and positions in them are given; then targets are `ignore_index` where
            a document ends.
        end: the token that ends a document, where no index says where they begin.
    """

    length: int
    dtype: np.dtype[Any]
    targets: bool
    documents: bool = False
    end: int | None = None
    ignore_index: int = -100

    @property
    def span(self) -> int:
        """How many tokens of the file a row needs."""
        return self.length + self.targets

    @property
    def columns(self) -> tuple[str, ...]:
        names = ("tokens", "targets") if self.targets else ("tokens",)
        return (*names, "segments", "positions") if self.documents else names

    def dtype_of(self, name: str) -> np.dtype[Any]:
        return self.dtype if name in ("tokens", "targets") else _INT32


class Run(NamedTuple):
    """Tokens of one file that lie one after the other in memory.

    Attributes:
        first: the number of the first of them in the file.
        borders: where documents begin in the file, if that is known.
    """

    tokens: Tokens
    first: int = 0
    borders: Tokens | None = None


class TokenRows:
    """Rows that begin at some places of some runs. Nothing is copied before a column is asked for.

    Args:
        starts: the places, in the file; `runs` has the run of each, by its number in `which`, if there are several.
    """

    def __init__(self, layout: RowLayout, runs: Sequence[Run], starts: Indices, which: Indices | None = None) -> None:
        self.layout = layout
        self._runs = runs
        self._starts = starts
        self._which = which if len(runs) > 1 else None

    def __len__(self) -> int:
        return len(self._starts)

    def at(self, rows: Any) -> TokenRows:
        """Some of the rows, by a slice or by their numbers."""
        which = None if self._which is None else self._which[rows]
        return TokenRows(self.layout, self._runs, self._starts[rows], which)

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """The rows of all parts, one after the other."""
        runs = list({id(run.tokens): run for part in parts for run in part._runs}.values())
        number = {id(run.tokens): i for i, run in enumerate(runs)}
        which = [
            np.array([number[id(run.tokens)] for run in part._runs], np.int64)[
                np.zeros(len(part), np.int64) if part._which is None else part._which
            ]
            for part in parts
        ]
        return cls(parts[0].layout, runs, np.concatenate([part._starts for part in parts]), np.concatenate(which))

    def column(self, name: str, allocate: Allocate = np.empty) -> Tokens:
        """All values of a column, in memory of its own."""
        layout = self.layout
        values = allocate((len(self), layout.length), layout.dtype_of(name))
        if name == "tokens":
            self._fill(values, 0)
        elif name == "targets":
            self._fill(values, 1)
            if layout.documents:
                values[self._begins()[:, 1:]] = layout.ignore_index
        else:
            _number(self._begins()[:, : layout.length], values, positions=name == "positions")
        return values

    def _fill(self, values: Tokens, shift: int) -> None:
        """Write the tokens of each row, from its `shift`-th on."""
        if self._which is None:
            _gather(self._runs[0], self._starts + shift, values)
            return
        for number in np.unique(self._which).tolist():
            mine = np.flatnonzero(self._which == number)
            part = np.empty((len(mine), values.shape[1]), values.dtype)
            _gather(self._runs[number], self._starts[mine] + shift, part)
            values[mine] = part

    def _begins(self) -> Tokens:
        """Whether a document begins at each token, and at the one after the last."""
        begins = np.zeros((len(self), self.layout.length + 1), np.bool_)
        for number, run in enumerate(self._runs):
            mine = np.arange(len(self)) if self._which is None else np.flatnonzero(self._which == number)
            if run.borders is None:
                tokens = np.empty((len(mine), self.layout.length), run.tokens.dtype)
                _gather(run, self._starts[mine], tokens)
                begins[mine, 1:] = tokens == self.layout.end
            else:
                _mark(run.borders, self._starts[mine], mine, begins)
        return begins


def _gather(run: Run, starts: Indices, values: Tokens) -> None:
    """Write the tokens from each of the places on into a row."""
    n, length = values.shape
    if not n:
        return
    tokens, first = run.tokens, int(starts[0]) - run.first
    step = int(starts[1] - starts[0]) if n > 1 else 0
    size = tokens.itemsize
    if step >= 0 and (n < 3 or (np.diff(starts) == step).all()):
        rows: Tokens = np.ndarray((n, length), tokens.dtype, tokens, first * size, (step * size, size))
    else:
        windows: Tokens = np.ndarray((len(tokens) - length + 1, length), tokens.dtype, tokens, 0, (size, size))
        rows = windows[starts - run.first]
    np.copyto(values, rows, casting="unsafe")


def _mark(borders: Tokens, starts: Indices, rows: Indices, begins: Tokens) -> None:
    """Note which tokens of rows that start at these places begin a document; borders may be the same twice."""
    lows = np.searchsorted(borders, starts, side="left")
    highs = np.searchsorted(borders, starts + begins.shape[1], side="left")
    counts = highs - lows
    places = np.repeat(lows - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    begins[np.repeat(rows, counts), borders[places] - np.repeat(starts, counts)] = True


def _number(begins: Tokens, values: Tokens, *, positions: bool) -> None:
    """Number the documents of each row from 1 on, or the tokens of each piece of a document from 0 on."""
    begins = begins.copy()
    begins[:, 0] = True
    if not positions:
        np.cumsum(begins, axis=1, out=values)
        return
    places = np.arange(begins.shape[1], dtype=values.dtype)
    np.subtract(places, np.maximum.accumulate(np.where(begins, places, 0), axis=1), out=values)


@final
class TokenColumn(LazyColumn):
    """One column of rows of tokens, which are gathered and converted when they are wanted."""

    __slots__ = ("_name", "_rows")
    is_fresh = True

    def __init__(self, rows: TokenRows, name: str) -> None:
        self._rows = rows
        self._name = name

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> TokenColumn:
        return TokenColumn(self._rows.at(rows), self._name)

    def materialize(self) -> Tokens:
        return self._rows.column(self._name)

    def placed(self, allocate: Allocate) -> Any:
        return self._rows.column(self._name, allocate)

    def pick(self, others: Sequence[Any], places: Indices) -> TokenColumn | None:
        parts = [self, *others]
        if not all(isinstance(part, TokenColumn) for part in parts):
            return None
        rows = TokenRows.joined([part._rows for part in parts]) if others else self._rows
        return TokenColumn(rows.at(places), self._name)

    def __reduce__(self) -> Any:
        return np.asarray, (self.materialize(),)  # the tokens are those of a whole file


def columns_of(rows: TokenRows) -> dict[str, TokenColumn]:
    """The columns of rows, none of which is made yet."""
    make: Callable[[str], TokenColumn] = lambda name: TokenColumn(rows, name)  # noqa: E731 (typed)
    return {name: make(name) for name in rows.layout.columns}

"""Reads sources in every way that must give the same rows."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

from headrace.sources import csv_rows, encodings, text, text_files
from headrace.sources.source import BadRecord, Block, Source


def rows_of(source: Source, block: Block, first_row: int = 0, bad: list[BadRecord] | None = None) -> list[Any]:
    """The rows of a block; bad records are refused, or put into a list."""
    chunks = source.read(block, first_row, None if bad is None else bad.append)
    return [row for chunk in chunks for row in chunk.rows()]


def all_rows(source: Source, bad: list[BadRecord] | None = None) -> list[Any]:
    return [row for block in source.blocks() for row in rows_of(source, block, bad=bad)]


def check_first_rows(source: Source, most: int = 12) -> None:
    """A block gives the same rows by itself, from any row on (but at most these), also after the source was pickled."""
    copied = pickle.loads(pickle.dumps(source))
    for block in source.blocks()[:20]:
        rows = rows_of(source, block, bad=[])
        for first in range(min(len(rows) + 2, most)):
            assert rows_of(copied, block, first, bad=[]) == rows[first:]


@contextlib.contextmanager
def small_pieces(n: int) -> Iterator[None]:
    """Lets files be read a few bytes at a time, so that pieces are cut in the worst places too."""
    with (
        mock.patch.object(text.LineSource, "_piece_bytes", n),
        mock.patch.object(text.WordSource, "_piece_bytes", n),
        mock.patch.object(csv_rows.CsvSource, "_piece_bytes", n),
        mock.patch.object(text_files, "BEYOND_BYTES", n),
        mock.patch.object(encodings, "_PIECE_BYTES", n),
    ):
        yield

"""Reads rows of one Parquet file, from any row on; reading on from there costs nothing."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.base.world import get_worker_info

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pq = import_extra("pyarrow.parquet", "arrow", "Reading Parquet")

_BUFFER_BYTES = 1 << 20
_MOST_FOR_THREADS = 0.75  # of the bytes in one column: threads, which take a column each, would wait for that one


class ParquetReader:
    """An open Parquet file, and how far it has been read.

    Rows within a row group can be reached only by decoding those before them. So whoever reads the parts of a row group
    one after the other should do so with one reader.
    """

    def __init__(self, path: str, file: Any, columns: Sequence[str], *, ahead: bool) -> None:
        """Open a file.

        Args:
            ahead: read whole row groups at once, in few requests, instead of little by little.
        """
        self.path = path
        self.process = os.getpid()
        self._file = pq.ParquetFile(file, pre_buffer=ahead, buffer_size=0 if ahead else _BUFFER_BYTES)
        self._columns = list(columns)
        metadata = self._file.metadata
        sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        self._borders = list(itertools.accumulate(sizes, initial=0))
        self._use_threads = get_worker_info() is None and _largest_share(metadata, columns) <= _MOST_FOR_THREADS
        self._row = self._end = 0  # the rows that come next, if nothing is sought: from `_held` first, then `_batches`
        self._held: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def read(self, start: int, stop: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows [start, stop), in batches of about `batch_rows`."""
        if not self._leads_to(start):
            self._seek(start, stop, batch_rows)
        while self._row < stop:
            batch = next(self._batches) if self._held is None else self._held
            skipped, taken = max(start - self._row, 0), min(stop - self._row, batch.num_rows)
            self._held = batch.slice(taken) if taken < batch.num_rows else None
            self._row += taken
            if skipped < taken:
                yield batch.slice(skipped, taken - skipped).select(self._columns)
        if self._row == self._end:
            self._batches = iter(())  # which would keep memory

    def _leads_to(self, row: int) -> bool:
        """Whether to read on is the way to a row: later in the same row group."""
        return self._row <= row < self._end and self._group(self._row) == self._group(row)

    def _seek(self, start: int, stop: int, batch_rows: int) -> None:
        first, last = self._group(start), self._group(stop - 1)
        groups = range(first, last + 1)
        self._batches = self._file.iter_batches(batch_rows, groups, self._columns, use_threads=self._use_threads)
        self._row, self._end, self._held = self._borders[first], self._borders[last + 1], None

    def _group(self, row: int) -> int:
        return bisect.bisect_right(self._borders, row) - 1


def _largest_share(metadata: pq.FileMetaData, columns: Sequence[str]) -> float:
    """Which part of the first row group the largest of these columns is."""
    if not metadata.num_row_groups:
        return 1.0
    group = metadata.row_group(0)
    leaves = (group.column(i) for i in range(group.num_columns))
    sizes = [leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.partition(".")[0] in columns]
    return float(max(sizes, default=1) / max(sum(sizes), 1))

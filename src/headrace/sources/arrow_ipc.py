"""Arrow's own files: IPC files, which Feather is too, whose blocks are record batches; IPC streams, one block each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from headrace.base.errors import RecordError
from headrace.base.optional import import_extra
from headrace.sources.arrow_files import Contents, Part, TableSource, check_names, table_chunks
from headrace.sources.arrow_footer import batches_of_stream, rows_of_batches
from headrace.sources.compression import is_compressed
from headrace.sources.files import check_unchanged, is_local, open_stream
from headrace.sources.guessing import advise_reader
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.ipc as ipc
else:
    pa = import_extra("pyarrow", "arrow", "Reading Arrow files")
    ipc = import_extra("pyarrow.ipc", "arrow", "Reading Arrow files")

_MAGIC = b"ARROW1"
_STREAM_MARK = b"\xff\xff\xff\xff"  # streams written before 2019 have none
_LOOKED_AT_BYTES = 1 << 16  # of what may be no Arrow file


@final
class ArrowSource(TableSource):
    """Rows of Arrow files: the file format, which Feather is too, and the stream format.

    Blocks are record batches; small ones that follow each other are joined up to `block_bytes`. A stream that is far
    away, compressed as a whole, or has dictionaries, is one block, and how many rows that has is not known.
    """

    format = "arrow"
    unit = "record_batches"

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        if any(block.stop is None for block in self.blocks()):
            described[self.unit] = None  # a stream would have to be read to count them
        return described

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes.

        Raises:
            RecordError: the file is damaged.
        """
        self._check(block)
        names = self._listing.schema.names
        batches = (batch.select(names) for batch in self._batches(block))
        yield from table_chunks(self._complete(batches, block), first_row)
        check_unchanged(self._listing.files[block.path])

    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        file = self._listing.files[block.path]
        # They are not mapped: a file that is cut off, or written to, meanwhile would be the end, or give other rows.
        with self._reporting_damage(file), self._open_any(file) as opened:
            if block.stop is None:
                yield from ipc.open_stream(opened)
            elif not _is_file(opened, file.path):
                yield from _batches_between(opened, block.start, block.stop)
            else:
                reader = _open_file(opened, self._columns)
                yield from map(reader.get_batch, range(block.start, block.stop))

    def _open_any(self, file: FileVersion) -> Any:
        return open_stream(file, self._options) if is_compressed(file.path) else self._open(file)

    def _look(self, file: FileVersion) -> Contents:
        with self._reporting_damage(file), self._open_any(file) as opened:
            is_file = not is_compressed(file.path) and _is_file(opened, file.path)
            if opened.seekable():
                opened.seek(0)
            if not is_file and not is_compressed(file.path) and is_local(file.path):
                schema = check_names(ipc.open_stream(opened).schema)
                batches = batches_of_stream(opened)
                if batches is not None:
                    parts = [Part(start, stop, n_rows, stop - start) for start, stop, n_rows in batches]
                    return Contents(schema, len(parts), parts)
                opened.seek(0)
            if not is_file:
                return Contents(check_names(ipc.open_stream(opened).schema), 1, [Part(0, None, None, file.size or 0)])
            reader = ipc.open_file(opened)
            parts = _find_batches(file, opened, reader.num_record_batches)
            return Contents(check_names(reader.schema), len(parts), parts)


def _is_file(opened: pa.NativeFile, path: str) -> bool:
    """Whether this is a file, which else must be a stream.

    Raises:
        RecordError: it is of another format.
    """
    beginning = opened.read(len(_MAGIC))
    if beginning == _MAGIC or beginning.startswith(_STREAM_MARK):
        return bool(beginning == _MAGIC)
    if advice := advise_reader(beginning + opened.read(_LOOKED_AT_BYTES - len(_MAGIC))):
        raise RecordError(f"{path} is damaged, or no Arrow file: {advice}.")
    return False


def _batches_between(opened: pa.NativeFile, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The record batches of a stream between two of its bytes."""
    opened.seek(0)
    schema = ipc.open_stream(opened).schema
    opened.seek(start)
    while opened.tell() < stop:
        yield ipc.read_record_batch(ipc.read_message(opened), schema)


def _find_batches(file: FileVersion, opened: pa.NativeFile, n: int) -> list[Part]:
    """The record batches of a file. How many rows they have is not asked of stores: it takes a request for each."""
    if not is_local(file.path):
        return [Part(i, i + 1, None, (file.size or 0) // n) for i in range(n)]
    counts = rows_of_batches(opened)
    total = sum(counts) or 1
    return [Part(i, i + 1, count, (file.size or 0) * count // total) for i, count in enumerate(counts)]


def _open_file(opened: pa.NativeFile, columns: Sequence[str] | None) -> ipc.RecordBatchFileReader:
    reader = ipc.open_file(opened)
    if columns is None:
        return reader
    places = (reader.schema.get_field_index(name) for name in columns)
    wanted = sorted(place for place in places if place >= 0)  # the others are given by folders
    return ipc.open_file(opened, options=ipc.IpcReadOptions(included_fields=wanted))


def rows_of_file(
    path: str, content: bytes, start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[Chunk]:
    """The rows [start, stop) of an Arrow file that is part of another one.

    Raises:
        RecordError: it is damaged.
    """
    try:
        reader, place = ipc.open_file(pa.py_buffer(content)), 0
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            low, high = max(start - place, 0), min(stop - place, batch.num_rows)
            if low < high:
                batch = batch if columns is None else batch.select(list(columns))
                yield from table_chunks([batch.slice(low, high - low)])
            place += batch.num_rows
    except (pa.ArrowException, KeyError) as error:
        raise RecordError(f"{path} is damaged: its table cannot be read: {error}.") from error

"""Arrow tables as chunks: slices without copies, columns as NumPy arrays, rows as dicts."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, final

import numpy as np
import numpy.typing as npt

from headrace.base.errors import RecordError
from headrace.base.indices import Indices
from headrace.base.lazy_column import Allocate, LazyColumn, materialize
from headrace.base.optional import import_extra
from headrace.sources.chunks import ColumnChunk, LongValues, PickedColumn, SideBySide

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = import_extra("pyarrow", "arrow", "Reading tables")
    pa = import_extra("pyarrow", "arrow", "Reading zstd")

_INTEGERS_AND_BOOLS = pa.types.is_integer, pa.types.is_boolean
_TIMES = pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration
_LISTS = pa.types.is_list, pa.types.is_large_list
_LONG = 512  # bytes on average
_LARGE = pa.types.is_large_string, pa.types.is_large_binary
_STRINGS = pa.types.is_string, pa.types.is_large_string
_STRING_VIEWS = getattr(pa.types, "is_string_view", pa.types.is_string)  # which pyarrow 15 does not know
_WITH_TEXT = *_STRINGS, _STRING_VIEWS, pa.types.is_dictionary, pa.types.is_nested
_VIEWS = getattr(pa.types, "is_binary_view", pa.types.is_binary)
_OF_OFFSETS = *_WITH_TEXT, pa.types.is_binary, pa.types.is_large_binary, _VIEWS
_OF_ANY_LENGTH = pa.types.is_string, pa.types.is_binary, *_LARGE
_TEXTS = *_OF_ANY_LENGTH, pa.types.is_fixed_size_binary


def table_chunk(batch: pa.RecordBatch) -> ColumnChunk:
    """The rows of a batch.

    A value is the same whichever rows are in the chunk with it. Per type, in `rows()` and in `columns()`:

    | Arrow type | in a row | as a column | null |
    |---|---|---|---|
    | integers, bools | int, bool | array; a list if there are nulls | None |
    | floats | float | array | None in a row, NaN in a column |
    | timestamps, dates, durations | datetime, date, timedelta; NumPy's own if in nanoseconds or beyond Python's years | array of datetime64 (UTC) or timedelta64 | None in a row, NaT in a column |
    | fixed-size lists (also nested) and tensors of numbers | array | array with more dimensions; a list if there are nulls | None |
    | lists of numbers | array | list of arrays | None |
    | strings, binary, anything else | str, bytes, `to_pylist()` | list | None |

    A list of integers or bools that has nulls inside is a Python list with None; in one of floats they are NaN. Arrays
    of columns may be read-only views of the table's memory.
    """  # noqa: E501 (a table)
    return ColumnChunk(dict(zip(batch.schema.names, map(TableColumn, batch.columns), strict=True)), batch.num_rows)


@final
class TableColumn(LazyColumn):
    """A column of a table, decoded as a whole when a part of it is first asked for: it is asked for in many."""

    __slots__ = ("_array", "_decoded")

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._decoded: Any = None

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: slice) -> Any:
        if self._decoded is None:
            self._decoded = _decoded_column(self._array)
        return self._decoded[rows]

    def materialize(self) -> Any:
        return materialize(self[0 : len(self)])

    def objects(self, rows: slice) -> list[Any]:
        return row_values(_slice(self._array, rows))

    def part(self, rows: slice) -> TableColumn:
        return TableColumn(_slice(self._array, rows))

    def __reduce__(self) -> Any:
        return _unpickle_table_column, (_as_stream(self._array),)


def check_values(batch: pa.RecordBatch) -> None:
    """See that all values lie where they should, and that strings are UTF-8, before any of them is made.

    It takes a twentieth of that time. Without it, offsets of a damaged file would lead anywhere in memory.

    Raises:
        RecordError: something is damaged; says which column, instead of all that is in it.
    """
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        try:
            array.validate(full=_is(array.type, _OF_OFFSETS))
        except pa.ArrowInvalid as error:
            raise RecordError(f"The column {name!r} is damaged: {error}.") from None


def _decoded_column(array: pa.Array) -> Any:
    if _is_long(array):
        return ArrowColumn(array, _objects)
    is_own = _depends_on_nulls(array) or _is_numeric_list(array.type)
    return ArrowColumn(array, column_values) if is_own else _shared(array)


@final
class ArrowColumn(LazyColumn):
    """A part of a column whose values are still as Arrow has them.

    Args:
        make: what makes a column of them.
    """

    __slots__ = ("_array", "_make")

    def __init__(self, array: pa.Array, make: Callable[[Any], Any]) -> None:
        self._array = array
        self._make = make

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: slice) -> ArrowColumn:
        return ArrowColumn(_slice(self._array, rows), self._make)

    def materialize(self) -> Any:
        return self._make(self._array)

    def __reduce__(self) -> Any:
        if not self._lies_side_by_side():
            return _unpickle_column, (_as_stream(self._array), self._make)
        return _side_by_side_again, (self._array.type, _side_by_side(self._array), self._make)

    def placed(self, allocate: Allocate) -> ArrowColumn:
        if not self._lies_side_by_side():
            return self
        borders, memory = _side_by_side(self._array)
        place = allocate((len(memory),), np.dtype(np.uint8))
        place[:] = memory
        return _side_by_side_again(self._array.type, SideBySide(borders, place), self._make)

    def pick(self, others: Sequence[Any], places: Indices) -> LazyColumn | None:
        columns, kind = [self, *others], self._array.type
        if not all(isinstance(c, ArrowColumn) and c._lies_side_by_side() and c._array.type == kind for c in columns):
            return None
        parts = [_side_by_side(column._array) for column in columns]
        return PickedColumn(LongValues(parts, is_text=_is(kind, _STRINGS)), places)

    def _lies_side_by_side(self) -> bool:
        return len(self._array) > 0 and not self._array.null_count and _is(self._array.type, _OF_ANY_LENGTH)


def _side_by_side(array: pa.Array) -> SideBySide:
    _, offsets, values = array.buffers()
    dtype = np.dtype(np.int64 if _is(array.type, _LARGE) else np.int32)
    borders = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return SideBySide(borders - borders[0], memoryview(values).cast("B")[borders[0] : borders[-1]])


def _side_by_side_again(kind: pa.DataType, lying: SideBySide, make: Callable[[Any], Any]) -> ArrowColumn:
    buffers = [None, pa.py_buffer(lying.borders), pa.py_buffer(lying.memory)]
    return ArrowColumn(pa.Array.from_buffers(kind, len(lying.borders) - 1, buffers), make)


def _shared(array: pa.Array) -> Any:
    """A read-only column, since others share its memory."""
    column = column_values(array)
    if isinstance(column, np.ndarray):
        column.flags.writeable = False
    return column


def _slice(array: pa.Array, rows: slice) -> pa.Array:
    return array.slice(rows.start, rows.stop - rows.start)


def _as_stream(array: pa.Array) -> pa.Buffer:
    """An array to be pickled: as such, it would take all values that it was ever a slice of along."""
    batch = pa.record_batch([array], ["column"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _unpickle_column(stream: pa.Buffer, make: Callable[[Any], Any]) -> ArrowColumn:
    return ArrowColumn(pa.ipc.open_stream(stream).read_next_batch().column(0), make)


def _unpickle_table_column(stream: pa.Buffer) -> TableColumn:
    return TableColumn(pa.ipc.open_stream(stream).read_next_batch().column(0))


def _is_long(array: pa.Array) -> bool:
    """Whether the values are so long that they are best made when they are wanted, while they are in the cache."""
    return _is(array.type, _TEXTS) and array.nbytes >= _LONG * len(array)


def _depends_on_nulls(array: pa.Array) -> bool:
    """Whether a column with nulls becomes another thing than one without, so that slices may differ."""
    is_dictionary = pa.types.is_dictionary(array.type)  # whose nulls may lie among its values, too
    kind = array.type.value_type if is_dictionary else array.type
    if _is_tensor(kind):
        return is_dictionary or not _stack(array)[1].all()
    return _is(kind, _INTEGERS_AND_BOOLS) and (is_dictionary or bool(array.null_count))


def column_values(array: pa.Array) -> Any:
    """A column as a NumPy array where its type and its nulls allow that, else as a list; see `table_chunk`."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return column_values(array.dictionary_decode())
    if _is(kind, _INTEGERS_AND_BOOLS):
        return array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind) or _is(kind, _TIMES):
        return array.to_numpy(zero_copy_only=False)
    if _is_tensor(kind):
        stacked, whole = _stack(array)
        return stacked if whole.all() else _tensor_rows(array)
    return row_values(array)


def row_values(array: pa.Array) -> list[Any]:
    """The values of a column, one Python object for each row; see `table_chunk`."""
    kind = array.type
    if _is(kind, _TEXTS) or (_is_number(kind) and not array.null_count):
        return _objects(array)
    if pa.types.is_dictionary(kind):
        return row_values(array.dictionary_decode())
    if _is_tensor(kind):
        return _tensor_rows(array)
    if _is_numeric_list(kind):
        return _with_nulls(array, _numeric_lists)
    if _is(kind, _TIMES) and getattr(kind, "unit", None) == "ns":  # Python's own types end at microseconds
        return _with_nulls(array, lambda valid: list(valid.to_numpy(zero_copy_only=False)))
    plain = _python_values(array)
    return [value and decimal.Decimal(value) for value in plain] if _is_decimal_text(kind) else plain


def _python_values(array: pa.Array) -> list[Any]:
    """Python's own objects; of times that Python does not know, NumPy's."""
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:  # a year before 1, or after 9999
        if not _is(array.type, _TIMES):
            raise RecordError(f"A value of type {array.type} cannot be read: {error}.") from error
    return [_python_time(array[i]) for i in range(len(array))]


def _python_time(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return pa.array([value]).to_numpy(zero_copy_only=False)[0]


def _objects(array: pa.Array) -> list[Any]:
    objects: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return objects


def _is(kind: pa.DataType, checks: Sequence[Callable[[Any], bool]]) -> bool:
    return any(check(kind) for check in checks)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind)) or _is(kind, _INTEGERS_AND_BOOLS)


def _is_numeric_list(kind: pa.DataType) -> bool:
    return _is(kind, _LISTS) and _is_number(kind.value_type)


def _is_tensor(kind: pa.DataType) -> bool:
    """Whether every value is an array of numbers of one shape."""
    if pa.types.is_fixed_size_list(kind):
        return _is_number(kind.value_type) or _is_tensor(kind.value_type)
    return isinstance(kind, pa.FixedShapeTensorType)


def _is_decimal_text(kind: pa.DataType) -> bool:
    """Whether this is how ADBC hands over PostgreSQL's `numeric`, which has more digits than Arrow's decimals."""
    return getattr(kind, "extension_name", "") == "arrow.opaque" and kind.type_name == "numeric"


def _with_nulls(array: pa.Array, convert: Callable[[pa.Array], list[Any]]) -> list[Any]:
    """What `convert` makes of the values that are not null, with None for those that are."""
    if not array.null_count:
        return convert(array)
    values = iter(convert(array.drop_null()))
    return [next(values) if valid else None for valid in array.is_valid().to_pylist()]


def _numeric_lists(lists: pa.Array) -> list[Any]:
    """Lists of numbers, none of them null, as arrays; those with nulls inside as lists."""
    numbers = lists.flatten()
    if numbers.null_count and not pa.types.is_floating(numbers.type):
        dtype = numbers.type.to_pandas_dtype()
        return [row if None in row else np.array(row, dtype) for row in lists.to_pylist()]
    ends = np.cumsum(lists.value_lengths().to_numpy()).tolist()
    flat = numbers.to_numpy(zero_copy_only=False)
    flat = flat if flat.flags.writeable else flat.copy()  # Arrow's own memory is for reading only
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _tensor_rows(tensors: pa.Array) -> list[Any]:
    """Tensors as arrays, null as None, and those with nulls inside as lists."""
    stacked, whole = _stack(tensors)
    stacked = stacked if stacked.flags.writeable else stacked.copy()
    if whole.all():
        return list(stacked)
    lists = tensors.to_pylist()
    return [array if is_whole else lists[i] for i, (array, is_whole) in enumerate(zip(stacked, whole, strict=True))]


def _stack(tensors: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Tensors as one array, and which of them are whole: neither null nor with nulls inside that are not NaN."""
    level, n, shape = tensors, len(tensors), [len(tensors)]
    if isinstance(tensors.type, pa.FixedShapeTensorType):
        level = tensors.storage
    whole = np.ones(n, np.bool_)
    while True:
        if level.null_count and not pa.types.is_floating(level.type):
            whole &= level.is_valid().to_numpy(zero_copy_only=False).reshape(n, -1).all(axis=1)
        if not pa.types.is_fixed_size_list(level.type):
            break
        size = level.type.list_size
        shape.append(size)
        # Not `flatten`, which leaves out what lies under nulls.
        level = level.values.slice(level.offset * size, len(level) * size)
    if not pa.types.is_floating(level.type):
        level = level.fill_null(False if pa.types.is_boolean(level.type) else 0)
    return _shape_as(tensors.type, level.to_numpy(zero_copy_only=False).reshape(shape)), whole


def _shape_as(kind: Any, stacked: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(kind, pa.FixedShapeTensorType):
        return stacked
    order = kind.permutation or range(len(kind.shape))
    axes = [0, *(axis + 1 for axis in order)]
    return np.transpose(stacked.reshape(len(stacked), *kind.shape), axes)


def open_zstd(raw: BinaryIO) -> Any:
    """The content of a zstd stream, to read and close; damage shows as an OSError."""
    return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")

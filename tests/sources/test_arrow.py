from __future__ import annotations

import datetime
import decimal
import importlib
import pickle
import sys

import numpy as np
import pytest

from headrace.base.errors import MissingExtraError, RecordError
from headrace.base.lazy_column import materialize

pa = pytest.importorskip("pyarrow")

from headrace.sources.arrow import check_values, table_chunk  # noqa: E402 (needs pyarrow)

PAIR = pa.list_(pa.int32(), 2)


def column(values, kind=None):
    return table_chunk(pa.record_batch({"x": pa.array(values, kind)})).columns()["x"]


def row_values(values, kind=None):
    return [row["x"] for row in table_chunk(pa.record_batch({"x": pa.array(values, kind)})).rows()]


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_numbers_are_arrays_of_their_own_type(kind):
    got = column([1, 2, 3], getattr(pa, kind)())
    assert got.dtype == np.dtype(kind)
    assert got.tolist() == [1, 2, 3]


def test_numbers_without_nulls_are_not_copied():
    batch = pa.record_batch({"x": pa.array([1, 2, 3, 4])})
    part = table_chunk(batch).slice(1, 3).columns()["x"]
    assert part.tolist() == [2, 3]
    assert part.ctypes.data == batch.column(0).buffers()[1].address + 8


def test_integers_and_bools_with_nulls_are_lists_and_stay_exact():
    large = 2**53 + 1
    assert column([large, None]) == [large, None]
    assert column([True, None]) == [True, None]
    assert row_values([large, None]) == [large, None]


def test_null_is_nan_in_a_column_of_floats_and_none_in_a_row():
    got = column([1.5, None], pa.float32())
    assert got.dtype == np.float32
    assert got[0] == 1.5
    assert np.isnan(got[1])
    assert row_values([1.5, None]) == [1.5, None]


def test_bools():
    assert column([True, False]).dtype == np.bool_
    assert row_values([True, False]) == [True, False]


def test_times_are_datetime64_in_columns_and_python_objects_in_rows():
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 5)
    got = column([moment, None], pa.timestamp("us"))
    assert got.dtype == np.dtype("datetime64[us]")
    assert got[0] == np.datetime64(moment)
    assert np.isnat(got[1])
    assert row_values([moment, None], pa.timestamp("us")) == [moment, None]
    assert column([datetime.date(2024, 1, 1)]).dtype == np.dtype("datetime64[D]")
    assert row_values([datetime.date(2024, 1, 1)]) == [datetime.date(2024, 1, 1)]
    assert column([datetime.timedelta(seconds=1)]).dtype == np.dtype("timedelta64[us]")


def test_a_time_with_a_zone_is_utc_in_a_column():
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert column([noon], pa.timestamp("s", "Europe/Helsinki"))[0] == np.datetime64("2024-01-01T10:00:00")
    assert row_values([noon], pa.timestamp("s", "UTC")) == [noon]


def test_nanoseconds_are_not_lost():
    assert row_values([1_000_000_001, None], pa.timestamp("ns")) == [np.datetime64(1_000_000_001, "ns"), None]


def test_strings_and_bytes_are_lists():
    assert column(["ä", None, ""]) == ["ä", None, ""]
    assert column([b"\0", None]) == [b"\0", None]
    assert column([b"ab", None], pa.binary(2)) == [b"ab", None]
    assert row_values(["ä", None], pa.large_string()) == ["ä", None]


def test_dictionaries_are_what_they_stand_for():
    batch = pa.record_batch({"x": pa.array(["a", "b", None, "a"]).dictionary_encode()})
    assert table_chunk(batch).columns()["x"] == ["a", "b", None, "a"]
    numbers = pa.record_batch({"x": pa.array([5, 7, 5]).dictionary_encode()})
    assert table_chunk(numbers).columns()["x"].tolist() == [5, 7, 5]


def test_fixed_size_lists_are_one_array_with_more_dimensions():
    got = column([[1, 2], [3, 4], [5, 6]], PAIR)
    assert got.dtype == np.int32
    assert got.tolist() == [[1, 2], [3, 4], [5, 6]]
    nested = column([[[1, 2], [3, 4]]] * 3, pa.list_(PAIR, 2))
    assert nested.shape == (3, 2, 2)


def test_a_slice_of_fixed_size_lists_is_that_slice():
    chunk = table_chunk(pa.record_batch({"x": pa.array([[1, 2], None, [5, 6], [7, 8]], PAIR)})).slice(2, 4)
    assert chunk.columns()["x"].tolist() == [[5, 6], [7, 8]]
    assert [row["x"].tolist() for row in chunk.rows()] == [[5, 6], [7, 8]]


def test_nulls_in_and_around_fixed_size_lists():
    first, null, holed = column([[1, 2], None, [3, None]], PAIR)
    assert (first.tolist(), null, holed) == ([1, 2], None, [3, None])
    inner = column([[[1, 2], None], [[1, 2], [3, 4]]], pa.list_(PAIR, 2))
    assert inner[0] == [[1, 2], None]
    assert inner[1].tolist() == [[1, 2], [3, 4]]
    flags = column([[True, None], [False, True]], pa.list_(pa.bool_(), 2))
    assert flags[0] == [True, None]
    assert flags[1].tolist() == [False, True]
    floats = column([[1.0, None], [3.0, 4.0]], pa.list_(pa.float32(), 2))
    np.testing.assert_array_equal(floats, np.array([[1, np.nan], [3, 4]], np.float32))


def test_tensors_have_their_shape_and_order_of_axes():
    storage = pa.array([[1, 2, 3, 4, 5, 6]] * 2, pa.list_(pa.int64(), 6))
    for permutation in (None, [1, 0]):
        kind = pa.fixed_shape_tensor(pa.int64(), (2, 3), permutation=permutation)
        tensors = pa.ExtensionArray.from_storage(kind, storage)
        got = table_chunk(pa.record_batch({"x": tensors})).columns()["x"]
        np.testing.assert_array_equal(got, tensors.to_numpy_ndarray())


def test_lists_of_numbers_are_arrays_row_by_row():
    for got in (column([[1, 2], [], None, [3]]), row_values([[1, 2], [], None, [3]])):
        assert [None if row is None else row.tolist() for row in got] == [[1, 2], [], None, [3]]
        assert got[1].dtype == np.int64


def test_nulls_in_lists_of_numbers():
    assert column([[1, None], [2]])[0] == [1, None]
    assert column([[1, None], [2]])[1].tolist() == [2]
    np.testing.assert_array_equal(column([[1.5, None]])[0], [1.5, np.nan])


def test_anything_else_is_plain_python():
    assert column([{"a": 1}, None]) == [{"a": 1}, None]
    assert column([["a"], None]) == [["a"], None]
    assert column([decimal.Decimal("1.50")]) == [decimal.Decimal("1.50")]
    assert column([None, None]) == [None, None]


def test_a_value_does_not_depend_on_its_neighbours():
    values = [[1, 2], None, [3, None], [4, 5]]
    whole = row_values(values, PAIR)
    alone = [row_values([value], PAIR)[0] for value in values]
    assert list(map(repr, whole)) == list(map(repr, alone))


def test_rows_are_dicts_in_the_order_of_the_columns():
    chunk = table_chunk(pa.record_batch({"b": [1, 2], "a": ["x", "y"]}))
    assert chunk.rows() == [{"b": 1, "a": "x"}, {"b": 2, "a": "y"}]
    assert list(chunk.rows()[0]) == ["b", "a"]
    assert len(chunk) == 2
    assert len(chunk.slice(1, 2)) == 1


def test_empty_chunks():
    chunk = table_chunk(pa.record_batch({"x": pa.array([], PAIR), "s": pa.array([], pa.string())}))
    assert chunk.rows() == []
    assert chunk.columns()["x"].shape == (0, 2)
    assert chunk.columns()["s"] == []


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headrace.sources.arrow")
    with pytest.raises(MissingExtraError, match=r"headrace\[arrow\]"):
        importlib.import_module("headrace.sources.arrow")


def test_a_pickled_slice_has_its_own_rows_only():
    words = pa.array(["a", "b"] * 5000).dictionary_encode()
    chunk = table_chunk(pa.record_batch({"x": list(range(10_000)), "words": words, "nulls": [None, 1] * 5000}))
    part = chunk.slice(100, 103)
    assert part.rows()[0] == {"x": 100, "words": "a", "nulls": None}
    pickled = pickle.dumps(part)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)
    assert again.rows() == part.rows() == chunk.rows()[100:103]
    assert len(again) == 3


def test_what_a_column_becomes_is_told_by_its_own_rows_alone():
    chunk = table_chunk(pa.record_batch({"x": [1, None, 3, 4]}))
    assert chunk.columns() == {"x": [1, None, 3, 4]}
    assert chunk.slice(0, 2).columns() == {"x": [1, None]}
    column = chunk.slice(2, 4).columns()["x"]
    assert (type(column), column.tolist()) == (np.ndarray, [3, 4])
    assert chunk.slice(1, 4).slice(1, 3).columns()["x"].tolist() == [3, 4]


LONG = [bytes([i]) * (400 + 60 * i) for i in range(12)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_long_values_are_sent_without_those_around_them(kind):
    chunk = table_chunk(pa.record_batch({"x": pa.array([b"before", *LONG], kind), "y": np.arange(13)})).slice(1, 13)
    for start, stop in [(0, 12), (3, 4), (5, 12)]:
        later = chunk.slice(start, stop).lazy_columns()
        buffers = []
        stream = pickle.dumps(later, 5, buffer_callback=buffers.append)
        [memory] = [buffer.raw() for buffer in buffers if buffer.raw().nbytes > 8 * 13]
        assert memory.nbytes == sum(map(len, LONG[start:stop]))
        sent = pickle.loads(stream, buffers=buffers)
        assert materialize(sent["x"]) == LONG[start:stop] == materialize(later["x"])
        assert materialize(sent["x"][1:2]) == LONG[start:stop][1:2]
        assert sent["y"].tolist() == list(range(start + 1, stop + 1))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([*LONG, None], pa.binary()),
        ([None, "x" * 1000, ""], pa.large_string()),
        ([b"short"] * 30, pa.binary()),
        (["x" * 1000] * 30, pa.string()),
        ([b"x" * 1000] * 30, pa.binary(1000)),
        ([1, None, 3], pa.int64()),
        ([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        ([], pa.binary()),
    ],
    ids=["null", "null text", "short", "strings", "fixed size", "ints", "tensors", "none"],
)
def test_columns_are_the_same_when_they_are_made_later_and_elsewhere(values, kind):
    n = len(values)
    chunk = table_chunk(pa.record_batch({"x": pa.array([*values, *values], kind)})).slice(n, 2 * n)
    [later] = chunk.lazy_columns().values()
    elsewhere = pickle.loads(pickle.dumps(later, 5))
    assert len(later) == len(elsewhere) == n
    for start, stop in [(0, n), (n // 2, n), (n // 3, n // 2)]:
        [column] = chunk.slice(start, stop).columns().values()
        for same in (later[start:stop], elsewhere[start:stop]):
            assert type(materialize(same)) is type(column)
            assert repr(list(materialize(same))) == repr(list(column))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_long_values_are_put_into_memory_of_others(kind):
    column = table_chunk(pa.record_batch({"x": pa.array(LONG, kind)})).slice(2, 9).lazy_columns()["x"]
    places = []

    def allocate(shape, dtype):
        places.append(np.empty(shape, dtype))
        return places[-1]

    placed = column.placed(allocate)
    assert placed.materialize() == LONG[2:9]
    buffers = []
    pickle.dumps(placed, 5, buffer_callback=buffers.append)
    [place] = places
    addresses = [np.frombuffer(buffer.raw(), np.uint8).ctypes.data for buffer in buffers]
    assert place.ctypes.data in addresses  # it is not copied again
    place[:] = 0
    assert placed.materialize() == [bytes(len(value)) for value in LONG[2:9]]


def test_long_values_of_several_columns_are_picked_later():
    values = [bytes([i]) * (600 + i) for i in range(12)]
    parts = [table_chunk(pa.record_batch({"x": values[i : i + 4]})).lazy_columns()["x"] for i in (0, 4, 8)]
    picked = parts[0].pick(parts[1:], np.array([11, 0, 5, 5]))
    assert picked.materialize() == [values[11], values[0], values[5], values[5]]


@pytest.mark.parametrize(
    "other", [pa.array(LONG, pa.large_binary()), pa.array([*LONG, None]), pa.array([b"short"] * 9)], ids=str
)
def test_columns_that_differ_are_made_to_be_picked(other):
    first, second = (table_chunk(pa.record_batch({"x": x})).lazy_columns()["x"] for x in (pa.array(LONG), other))
    assert first.pick([second], np.array([0])) is None


def test_columns_that_several_slices_see_cannot_be_written_to():
    chunk = table_chunk(pa.record_batch({"x": [True, False], "y": [1.5, None]}))
    assert not any(column.flags.writeable for column in chunk.columns().values())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("wrap", ["plain", "list", "struct", "dictionary"])
def test_strings_that_are_none_are_told_of(kind, wrap):
    values = pa.array([b"good", b"bad \xe9" + b"x" * 5000], pa.binary() if kind == pa.string() else pa.large_binary())
    array = pa.Array.from_buffers(kind, 2, values.buffers())
    if wrap == "list":
        array = pa.ListArray.from_arrays([0, 1, 2], array)
    elif wrap == "struct":
        array = pa.StructArray.from_arrays([array], ["a"])
    elif wrap == "dictionary":
        array = pa.DictionaryArray.from_arrays([1, 0], array)
    with pytest.raises(RecordError, match=r"^The column 'x' is damaged: .*UTF8.* index 1\.$"):
        check_values(pa.record_batch([array], ["x"]))

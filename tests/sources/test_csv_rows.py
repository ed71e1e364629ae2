"""Tables in text: whatever the bytes and the cuts, pyarrow and Python find the records of one plain reader."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace
from headrace.base.errors import RecordError
from headrace.base.optional import is_installed
from headrace.sources import csv_rows
from headrace.sources.csv_format import CsvFormat
from headrace.sources.csv_rows import CsvSource
from headrace.sources.options import FileOptions
from tests.sources.reading import all_rows, check_first_rows, rows_of, small_pieces

if is_installed("pyarrow"):
    import pyarrow.csv

    pyarrow.csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))  # opens descriptors that stay, so before the first test

PARSERS = [
    pytest.param("arrow", marks=pytest.mark.skipif(not is_installed("pyarrow"), reason="needs pyarrow")),
    "python",
]
needs_arrow = pytest.mark.skipif(not is_installed("pyarrow"), reason="needs pyarrow")

# Fields with everything that makes it hard to see where a record ends.
field = st.text(st.sampled_from('a"",\n\r\r\n ä😀'), max_size=8)
table = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(field, min_size=n, max_size=n), max_size=8))
# Any bytes at all, with many that mean something: quotes where none should be, records of any length.
wild = st.lists(st.sampled_from([b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"a", b"1", b" ", "ä".encode(), b"\xff"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("csv")


@pytest.fixture(params=PARSERS)
def parser(request, monkeypatch):
    """With pyarrow, and as if it were not installed."""
    if request.param == "python":
        monkeypatch.setattr(csv_rows, "is_installed", lambda _: False)
    return request.param


def write(folder, content, name="data.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def as_text(rows, newline="\r\n", all_quoted=False):
    """Rows as RFC 4180 has them written."""

    def write_field(text, alone):
        must_be = all_quoted or any(character in text for character in ',"\r\n') or (alone and not text)
        return '"' + text.replace('"', '""') + '"' if must_be else text

    return "".join(",".join(write_field(str(text), len(row) == 1) for text in row) + newline for row in rows)


def columns_of(source):
    return [chunk.columns() for block in source.blocks() for chunk in source.read(block)]


def texts(n, **kwargs):
    """A table of n columns of text without a header."""
    names = [f"f{i}" for i in range(n)]
    return CsvFormat(header=False, names=names, types=dict.fromkeys(names, str), **kwargs)


@pytest.mark.usefixtures("parser")
class TestAnyCut:
    @settings(deadline=None)
    @given(table, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 60), st.integers(1, 60))
    def test_the_blocks_have_each_record_once(self, folder, rows, newline, all_quoted, block_bytes, piece_bytes):
        text = as_text(rows, newline, all_quoted)
        n = len(rows[0]) if rows else 1
        source = CsvSource(write(folder, text), texts(n), FileOptions(block_bytes=block_bytes))
        with small_pieces(piece_bytes):
            assert [list(row.values()) for row in all_rows(source)] == rows
            check_first_rows(source, most=4)

    @settings(deadline=None)
    @given(table, st.integers(1, 60), st.integers(1, 60), st.sampled_from(["utf-16", "utf-32-le", "cp1252", "utf-7"]))
    def test_in_any_encoding(self, folder, rows, block_bytes, piece_bytes, encoding):
        rows = [[text.encode(encoding, "ignore").decode(encoding) for text in row] for row in rows]
        text = as_text(rows)
        n = len(rows[0]) if rows else 1
        options = FileOptions(block_bytes=block_bytes, encoding=encoding)
        source = CsvSource(write(folder, text.encode(encoding)), texts(n), options)
        with small_pieces(piece_bytes):
            assert [list(row.values()) for row in all_rows(source)] == rows

    @settings(deadline=None)
    @given(wild, st.integers(1, 3), st.integers(1, 30), st.integers(1, 30))
    def test_any_bytes_give_the_same_for_every_cut(self, folder, parts, n, block_bytes, piece_bytes):
        path = write(folder, b"".join(parts))
        whole_bad, bad = [], []
        whole = all_rows(CsvSource(path, texts(n)), whole_bad)
        source = CsvSource(path, texts(n), FileOptions(block_bytes=block_bytes))
        with small_pieces(piece_bytes):
            assert all_rows(source, bad) == whole
            check_first_rows(source, most=3)
        assert [record.raw for record in bad] == [record.raw for record in whole_bad]

    @settings(deadline=None)
    @given(st.lists(st.lists(st.text("ab ", max_size=3), min_size=2, max_size=2), max_size=9), st.integers(1, 9))
    def test_without_quoted_newlines(self, folder, rows, block_bytes):
        path = write(folder, as_text(rows))
        source = CsvSource(path, texts(2, newlines_in_values=False), FileOptions(block_bytes=block_bytes))
        assert [list(row.values()) for row in all_rows(source)] == rows

    @settings(deadline=None)
    @given(table, st.integers(1, 30))
    def test_a_quoted_newline_that_was_denied_is_noticed_or_harmless(self, folder, rows, block_bytes):
        text = as_text(rows)
        n = len(rows[0]) if rows else 1
        source = CsvSource(
            write(folder, text), texts(n, newlines_in_values=False), FileOptions(block_bytes=block_bytes)
        )
        try:
            found = all_rows(source)
        except RecordError:
            assert any(newline in text for row in rows for text in row for newline in "\r\n")
        else:
            assert [list(row.values()) for row in found] == rows


@needs_arrow
class TestBothParsers:
    number = st.text(st.sampled_from("0019+-.eExXnaif \t_"), max_size=6)
    value = st.one_of(number, st.sampled_from(["", "NA", "true", "False", "1e400", "-inf", "nan", "9" * 19, "0xff"]))

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(value, value), min_size=1, max_size=5),
        st.tuples(*[st.sampled_from(["int", "float", "bool", "str", None])] * 2),
        st.sampled_from([None, ["NA"], ["", "NA"]]),
    )
    @example([("+1", "-nan")], ("float", "float"), None)
    def test_find_the_same_values(self, folder, rows, types, nulls):
        path = write(folder, as_text(rows, all_quoted=True))
        names = ["x", "y"]
        given_types = {name: kind for name, kind in zip(names, types, strict=True) if kind}
        results = []
        for with_arrow in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(csv_rows, "is_installed", lambda _, answer=with_arrow: answer)
                source = CsvSource(path, CsvFormat(header=False, names=names, types=given_types, nulls=nulls))
                bad = []
                rows_found = all_rows(source, bad)
                columns = [
                    {name: getattr(column, "dtype", None) for name, column in chunk.columns().items()}
                    for chunk in source.read(source.blocks()[0], 0, bad.append)
                ]
                results.append((repr(rows_found), [record.raw for record in bad], columns))
        assert results[0] == results[1]


@pytest.mark.usefixtures("parser")
class TestValues:
    def test_types_are_found(self, tmp_path):
        path = write(tmp_path, "i,f,b,s,none\n1,1,true,x,\n-2,.5e1,FALSE,,\n,,,true,\n")
        source = CsvSource(path)
        assert source.describe()["columns"] == {"i": "int", "f": "float", "b": "bool", "s": "str", "none": "str"}
        assert all_rows(source) == [
            {"i": 1, "f": 1.0, "b": True, "s": "x", "none": ""},
            {"i": -2, "f": 5.0, "b": False, "s": "", "none": ""},
            {"i": None, "f": None, "b": None, "s": "true", "none": ""},
        ]

    @pytest.mark.parametrize("sign", ["", "-", "+"])
    @pytest.mark.parametrize("others", [["5"], ["5", "nan"], ["+5", ""], ["9" * 5000]])
    def test_integers_of_more_than_64_bits_keep_their_digits(self, tmp_path, sign, others):
        values = [f"{sign}9223372036854775809", f"{sign}9223372036854775810", *others]
        path = write(tmp_path, "id,x\n" + "".join(f"{value},1\n" for value in values))
        source = CsvSource(path)
        assert source.describe()["columns"] == {"id": "str", "x": "int"}
        assert [row["id"] for row in all_rows(source)] == values

    def test_the_largest_integers_of_64_bits_are_int(self, tmp_path):
        path = write(tmp_path, f"a\n{2**63 - 1}\n{-(2**63)}\n0{2**63 - 1}\n")
        assert [row["a"] for row in all_rows(CsvSource(path))] == [2**63 - 1, -(2**63), 2**63 - 1]

    def test_a_large_integer_among_fractions_is_a_float(self, tmp_path):
        path = write(tmp_path, f"a\n{10**20}\n0.5\n")
        assert [row["a"] for row in all_rows(CsvSource(path))] == [1e20, 0.5]

    def test_columns_are_arrays_where_they_can_be(self, tmp_path):
        path = write(tmp_path, "i,f,b,s,n\n1,1.5,true,x,1\n2,,false,y,\n")
        (columns,) = columns_of(CsvSource(path))
        assert columns["i"].dtype == np.int64
        assert columns["i"].tolist() == [1, 2]
        assert columns["f"].dtype == np.float64
        assert columns["f"][0] == 1.5
        assert math.isnan(columns["f"][1])
        assert columns["b"].dtype == np.bool_
        assert columns["b"].tolist() == [True, False]
        assert columns["s"] == ["x", "y"]
        assert columns["n"] == [1, None]

    def test_types_hold_for_all_blocks(self, tmp_path):
        path = write(tmp_path, "x\n" + "1.5\n" * 50 + "2\n" * 50)
        source = CsvSource(path, options=FileOptions(block_bytes=20))
        assert len(source.blocks()) > 5
        assert {columns["x"].dtype for columns in columns_of(source)} == {np.dtype(np.float64)}

    def test_types_can_be_given(self, tmp_path):
        path = write(tmp_path, "a,b\n1,2\n3,4\n")
        source = CsvSource(path, CsvFormat(types={"a": str, "b": "float"}))
        assert all_rows(source) == [{"a": "1", "b": 2.0}, {"a": "3", "b": 4.0}]

    def test_nulls_can_be_given(self, tmp_path):
        path = write(tmp_path, "a,b\nNA,NA\n1,x\n2,\n")
        source = CsvSource(path, CsvFormat(nulls=["NA"]))
        assert all_rows(source) == [{"a": None, "b": None}, {"a": 1, "b": "x"}, {"a": 2, "b": ""}]

    def test_separators_and_quotes(self, tmp_path):
        path = write(tmp_path, "a\tb\n'x\ty'\t\"\n'it''s'\t2\"\n")
        source = CsvSource(path, CsvFormat(separator="\t", quote="'"))
        assert all_rows(source) == [{"a": "x\ty", "b": '"'}, {"a": "it's", "b": '2"'}]

    def test_quotes_can_mean_nothing(self, tmp_path):
        path = write(tmp_path, 'a,b\n"x,1\ny",2\n')
        assert all_rows(CsvSource(path, CsvFormat(quote=None))) == [{"a": '"x', "b": 1}, {"a": 'y"', "b": 2}]

    def test_a_field_may_be_long(self, tmp_path):
        path = write(tmp_path, "a\n" + "x" * 300_000 + "\n")
        assert [len(row["a"]) for row in all_rows(CsvSource(path))] == [300_000]


@pytest.mark.usefixtures("parser")
class TestHeader:
    def test_names_instead_of_a_header(self, tmp_path):
        path = write(tmp_path, "1,2\n")
        assert all_rows(CsvSource(path, CsvFormat(header=False))) == [{"f0": 1, "f1": 2}]
        assert all_rows(CsvSource(path, CsvFormat(header=False, names=["x", "y"]))) == [{"x": 1, "y": 2}]

    def test_names_instead_of_those_in_the_header(self, tmp_path):
        path = write(tmp_path, "a,a\n1,2\n")
        assert all_rows(CsvSource(path, CsvFormat(names=["x", "y"]))) == [{"x": 1, "y": 2}]

    def test_each_file_has_one(self, tmp_path):
        write(tmp_path, '\ufeffa,"b\nc"\r\n1,2\r\n', "1.csv")
        write(tmp_path, "", "2.csv")
        write(tmp_path, '\n\na,"b\nc"\n3,4', "3.csv")
        source = CsvSource(tmp_path, options=FileOptions(block_bytes=3))
        assert all_rows(source) == [{"a": 1, "b\nc": 2}, {"a": 3, "b\nc": 4}]

    def test_must_be_the_same(self, tmp_path):
        write(tmp_path, "a,b\n1,2\n", "1.csv")
        write(tmp_path, "b,a\n1,2\n", "2.csv")
        with pytest.raises(RecordError, match=r"2\.csv must be that of the first file, \['a', 'b'\], got \['b', 'a'\]"):
            all_rows(CsvSource(tmp_path))

    def test_types_come_from_the_first_file_with_records(self, tmp_path):
        write(tmp_path, "a\n", "1.csv")
        write(tmp_path, "a\n7\n", "2.csv")
        assert all_rows(CsvSource(tmp_path)) == [{"a": 7}]

    def test_nothing_at_all(self, tmp_path):
        assert all_rows(CsvSource(write(tmp_path, ""))) == []
        assert all_rows(CsvSource(write(tmp_path, "\r\n\n"))) == []
        assert all_rows(CsvSource(write(tmp_path, "a,b\n"))) == []

    @pytest.mark.parametrize(
        ("content", "table", "message"),
        [("a,a\n1,2\n", {}, "'a' twice"), ("a,b\n1,2\n", {"types": {"c": int}}, r"got \['c'\]")],
    )
    def test_wrong_names(self, tmp_path, content, table, message):
        with pytest.raises(ValueError, match=message):
            CsvSource(write(tmp_path, content), CsvFormat(**table)).blocks()


@pytest.mark.usefixtures("parser")
class TestHeaderThatIsNoText:
    content = b"n\xe4me,b\n1,2\n"

    def test_is_told_with_a_cure(self, tmp_path):
        path = write(tmp_path, self.content)
        with pytest.raises(RecordError, match=r"data\.csv: a name in its header .*encoding=\"latin-1\""):
            CsvSource(path, CsvFormat()).schema()

    def test_can_be_read_all_the_same(self, tmp_path):
        path = write(tmp_path, self.content)
        assert all_rows(CsvSource(path, CsvFormat(names=["x", "y"]))) == [{"x": 1, "y": 2}]
        for options, name in (({"encoding": "latin-1"}, "näme"), ({"errors": "replace"}, "n\ufffdme")):
            assert all_rows(CsvSource(path, CsvFormat(), FileOptions(**options))) == [{name: 1, "b": 2}]


@pytest.mark.usefixtures("parser")
class TestBadRecords:
    def test_are_left_out_alone(self, tmp_path):
        path = write(tmp_path, b'a,b\n1,x\n2\n3,y,z\n"oops\n",w\n\n4,\xff\n5,v\n')
        bad = []
        source = CsvSource(path, CsvFormat(types={"a": int}))
        assert all_rows(source, bad) == [{"a": 1, "b": "x"}, {"a": 5, "b": "v"}]
        assert [record.raw for record in bad] == [b"2\n", b"3,y,z\n", b'"oops\n",w\n', b"4,\xff\n"]
        assert [record.where.partition(", line ")[2] for record in bad] == [
            "3 of these (at byte 8)",
            "4 of these (at byte 10)",
            "5 of these (at byte 16)",
            "8 of these (at byte 27)",
        ]
        assert [record.error.partition(":")[0] for record in bad] == [
            "the record must have 2 fields, got 1",
            "the record must have 2 fields, got 3",
            "column 'a'",
            "UnicodeDecodeError",
        ]

    def test_nobody_listens(self, tmp_path):
        path = write(tmp_path, "a\n" + "1\n" * 20_000 + "x\n")
        with pytest.raises(
            RecordError, match=r"line 20002 .*column 'a': 'x' is not an int; types=\{'a': 'str'\} would"
        ):
            all_rows(CsvSource(path))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("1.5", r"'1\.5' is not an int; types=\{'a': 'float'\} would take it"),
            ("1e3", r"'1e3' is not an int; types=\{'a': 'float'\} would take it"),
            (str(2**63), r"9223372036854775808 is not a 64-bit int; types=\{'a': 'str'\} would take any text"),
            ("9" * 5000, r"9999.* is not a 64-bit int; types=\{'a': 'str'\} would take any text"),
            ("+" + "9" * 30, r"'\+9+' is not an int; types=\{'a': 'str'\} would take any text"),
        ],
    )
    def test_the_type_that_would_take_a_value_is_told(self, tmp_path, value, message):
        path = write(tmp_path, "a\n" + "1\n" * 20_000 + f"{value}\n")
        with pytest.raises(RecordError, match=rf"line 20002 .*column 'a': {message}"):
            all_rows(CsvSource(path))

    def test_a_quote_that_is_never_closed(self, tmp_path):
        path = write(tmp_path, 'a,b\n1,x\n2,"y\n3,z\n')
        bad = []
        assert all_rows(CsvSource(path), bad) == [{"a": 1, "b": "x"}]
        assert [(record.raw, record.error) for record in bad] == [(b'2,"y\n3,z\n', "a quote is never closed")]
        assert bad[0].where.endswith("line 3 of these (at byte 8)")

    def test_a_quoted_newline_where_there_should_be_none(self, tmp_path):
        path = write(tmp_path, 'a,b\n1,"x\ny"\n')
        source = CsvSource(path, CsvFormat(newlines_in_values=False), FileOptions(block_bytes=7))
        with pytest.raises(RecordError, match="newlines_in_values=True"):
            all_rows(source)

    def test_a_record_that_is_too_long(self, tmp_path):
        path = write(tmp_path, "a\n12\n123\n1234\n")
        bad = []
        assert all_rows(CsvSource(path, options=FileOptions(max_record_bytes=3)), bad) == [{"a": 12}, {"a": 123}]
        assert [record.raw for record in bad] == [b"1234"]

    def test_a_record_without_end(self, tmp_path):
        path = write(tmp_path, 'a\n"' + "1\n" * 100)
        with small_pieces(10), pytest.raises(RecordError, match="is a quote never closed"):
            all_rows(CsvSource(path, options=FileOptions(max_record_bytes=50)))


@pytest.mark.skipif(not is_installed("pyarrow"), reason="needs pyarrow")
@pytest.mark.parametrize("length", [10, 1 << 16, (1 << 18) - 5, 1 << 18, 300_000, 1 << 20, 3 << 20])
@pytest.mark.parametrize("quote", ["", '"'])
def test_pyarrow_parses_records_of_any_length(tmp_path, monkeypatch, length, quote):
    monkeypatch.setattr(csv_rows, "PythonParser", None)
    values = [(i, "x" * (length if i % 7 == 3 else 10)) for i in range(20)]
    text = "".join(f"{i},{quote}{value}{quote}\n" for i, value in values)
    path = write(tmp_path, f"number,value\n{text}".encode())
    found = all_rows(CsvSource(path, CsvFormat()))
    assert found == [{"number": i, "value": value} for i, value in values]


def test_a_compressed_table_is_one_block(tmp_path):
    path = write(tmp_path, gzip.compress(b"a,b\n" + b'1,"x\n"\n' * 500), "a.csv.gz")
    source = CsvSource(path, options=FileOptions(block_bytes=10))
    assert all_rows(source) == [{"a": 1, "b": "x\n"}] * 500
    assert len(source.blocks()) == 1


def test_a_table_can_be_read_from_any_row(tmp_path):
    path = write(tmp_path, as_text([["a"], *[[i] for i in range(100)]]))
    source = CsvSource(path, options=FileOptions(block_bytes=1000))
    (block,) = source.blocks()
    assert rows_of(source, block, 97) == [{"a": 97}, {"a": 98}, {"a": 99}]
    assert rows_of(source, block, 100) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"separator": ";;"},
        {"separator": "\n"},
        {"quote": "ä"},
        {"separator": '"'},
        {"types": {"a": "complex"}},
        {"names": "ab"},
    ],
)
def test_wrong_formats(wrong):
    with pytest.raises(ValueError, match="must"):
        CsvFormat(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"names": "ab"}, "names must be a list of strings, got 'ab'"),
        ({"nulls": "NA"}, "nulls must be a list of strings, got 'NA'"),
        ({"nulls": ["NA", None]}, r"nulls must be a list of strings, got \['NA', None\]"),
        ({"types": {"a": ["int"]}}, r"A type must be one of 'int', .* got \['int'\]"),
    ],
)
def test_what_is_wrong_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        CsvFormat(**wrong)


@pytest.mark.parametrize("wrong", [["int"], "int", int], ids=repr)
def test_types_must_be_a_mapping(wrong):
    with pytest.raises(TypeError, match=r"types must be a mapping .* such as \{'id': 'int'\}, got "):
        CsvFormat(types=wrong)


class TestDamageUnderSkip:
    """Damage in one file never costs another."""

    GOOD = "a,b\n" + "".join(f"{i},text {i}\n" for i in range(40))
    STRAY = "a,b\n" + "".join(f"{i},text {i}\n" for i in range(100, 400)).replace("150,", '150,"')

    @pytest.fixture
    def read(self, tmp_path):
        def read(files, on_error="skip", **options):
            for name, content in files.items():
                content = content.encode()
                (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
            stream = headrace.read_csv([tmp_path / name for name in files], **options)
            loader = headrace.DataLoader(stream, batch_size=8, collate_fn=list, on_error=on_error)
            return [row["b"] for batch in loader for row in batch], loader.errors

        return read

    @pytest.mark.parametrize("name", ["stray.csv", "stray.csv.gz"])
    @pytest.mark.parametrize("stray_first", [True, False])
    @pytest.mark.parametrize("block_bytes", [300, 1 << 20])
    @pytest.mark.filterwarnings("ignore:.*left out")
    def test_a_stray_quote(self, read, name, stray_first, block_bytes):
        files = {name: self.STRAY, "good.csv": self.GOOD} if stray_first else {"good.csv": self.GOOD, name: self.STRAY}
        options = {"max_record_bytes": 1000, "block_bytes": block_bytes, "stretch_bytes": 700}
        rows, errors = read(files, **options)
        good = [f"text {i}" for i in range(40)]
        stray = [f"text {i}" for i in range(100, 400) if i != 150]
        assert rows == (stray + good if stray_first else good + stray)
        assert ["longer than max_record_bytes=1000" in error.error for error in errors] == [True]
        with pytest.raises(RecordError, match=r"stray.*a record is longer than max_record_bytes"):
            read(files, on_error="raise", **options)

    @pytest.mark.parametrize("header", [True, False])
    @pytest.mark.filterwarnings("ignore:.*left out")
    def test_a_first_record_that_is_too_long(self, read, header):
        long = "a" * 2000 + ",b\n1,x\n2,y\n"
        options = {"max_record_bytes": 1000, "names": None if header else ["a", "b"], "header": header}
        rows, errors = read({"long.csv": long, "good.csv": self.GOOD}, **options)
        good = [f"text {i}" for i in range(40)]
        assert rows == (good if header else ["x", "y", *good])  # of which "a" is no int
        assert len(errors) == (1 if header else 2)
        assert "long.csv" in str(errors[0])

    @pytest.mark.filterwarnings("ignore:.*left out")
    def test_damaged_files_only(self, read):
        with pytest.raises(RecordError, match=r"long\.csv.*longer than"):
            read({"long.csv": "a" * 2000 + ",b\n1,x\n"}, max_record_bytes=1000)

    @pytest.mark.filterwarnings("ignore:.*left out")
    def test_a_compressed_file_that_ends_too_early_is_the_first(self, read, tmp_path):
        (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(self.STRAY.encode())[:-200])
        (tmp_path / "good.csv").write_text(self.GOOD)
        stream = headrace.read_csv([tmp_path / "cut.csv.gz", tmp_path / "good.csv"])
        loader = headrace.DataLoader(stream, batch_size=8, collate_fn=list, on_error="skip")
        assert [row["b"] for batch in loader for row in batch][-40:] == [f"text {i}" for i in range(40)]
        assert "ends too early" in loader.errors[0].error

    @pytest.mark.parametrize("block_bytes", [100, 1 << 20])
    @pytest.mark.filterwarnings("ignore:.*left out")
    def test_no_block_of_a_file_with_another_header_is_read(self, read, block_bytes):
        other = "b,a\n" + "".join(f"{i},{i}\n" for i in range(100))
        rows, errors = read({"good.csv": self.GOOD, "other.csv": other}, block_bytes=block_bytes)
        assert rows == [f"text {i}" for i in range(40)]
        assert all("other.csv" in str(error) for error in errors)

    @settings(max_examples=60, deadline=None)
    @given(content=wild, most=st.integers(3, 30), block_bytes=st.integers(1, 40), piece=st.integers(1, 9))
    def test_records_do_not_depend_on_where_files_are_split(self, folder, content, most, block_bytes, piece):
        path = write(folder, b"".join(content))
        table = CsvFormat(header=False, names=["a"], types={"a": "str"})

        def read(**options):
            source = CsvSource(path, table, FileOptions(max_record_bytes=most, **options)).lenient()
            bad = []
            with small_pieces(piece):
                return all_rows(source, bad), [record.raw for record in bad]

        assert read(block_bytes=block_bytes) == read()

"""Where records end that have quotes: the quick way finds what Python's csv finds."""

from __future__ import annotations

import csv
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources.csv_format import CsvFormat, QuotedRecordEnds, find_schema

ends = QuotedRecordEnds(b",", b'"')
contents = st.lists(st.sampled_from(['"', '""', ",", "\n", "a", "\r", '","', '"\n', ',"'])).map("".join)


def ends_by_csv(text):
    """Where each record ends that has a newline of its own: after those lines where the reader has one whole."""
    found, place = [], 0
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        place += len(line)
        # A record that starts after these lines is seen as such only if no quote is open.
        rows = list(csv.reader([*lines[: i + 1], "end"]))
        if line.endswith("\n") and rows[-1] == ["end"]:
            found.append(place)
    return found


@settings(deadline=None)
@given(contents)
def test_records_end_where_csv_ends_them(text):
    found, place = [], 0
    while end := ends.first_after(text.encode(), place):
        found.append(end)
        place = end
    assert found == ends_by_csv(text)
    assert ends.last(text.encode()) == (found[-1] if found else 0)


@settings(deadline=None)
@given(contents, st.data())
def test_the_end_is_found_from_any_byte_of_a_record(text, data):
    place = data.draw(st.integers(0, len(text)))
    expected = next((end for end in ends_by_csv(text) if end > place), 0)
    assert ends.first_after(text.encode(), place) == expected


@settings(deadline=None)
@given(contents)
def test_whether_a_quote_is_open(text):
    rows = list(csv.reader([*text.splitlines(keepends=True), "\n", "end"]))
    assert ends.ends_in_quotes(text.encode()) == (rows[-1] != ["end"])


def test_the_columns_of_a_wide_table_are_found_in_time_that_grows_with_their_number():
    names = [f"column {i}" for i in range(20_000)]
    before = time.process_time()
    schema = find_schema(names, [["1"] * len(names)], CsvFormat())
    assert schema.names == tuple(names)
    assert time.process_time() - before < 2  # 4 s, if each is compared with each

"""Schemas: what they accept, and that they say where something else stands."""

from __future__ import annotations

import math

import pytest

from headrace import StateError
from headrace.base.schema import (
    anything,
    count,
    each,
    either,
    exactly,
    flag,
    integer,
    items,
    like,
    maybe,
    number,
    packed,
    positive,
    record,
    shown,
    table,
    text,
    variants,
    whole,
)

POINT = record({"x": count}, {"name": text})
SHAPE = variants({"points": record({"points": items(POINT)})}, POINT)

GOOD = [
    (count, 0),
    (count, 2**40),
    (positive, 1),
    (whole(-1, 1), -1),
    (integer, -(2**200)),
    (number, 0.5),
    (number, 3),
    (number, math.inf),
    (flag, False),
    (text, ""),
    (exactly("a"), "a"),
    (packed(3), "AAAA"),
    (maybe(count), None),
    (maybe(count), 3),
    (items(count), []),
    (items(count, 2), [1, 2]),
    (each(count, text), [1, "a"]),
    (each(count, optional=text), [1]),
    (each(count, optional=text), [1, "a"]),
    (table(count), {"a": 1}),
    (POINT, {"x": 1}),
    (POINT, {"x": 1, "name": "a"}),
    (record({"x": count}, others=anything), {"x": 1, "y": [None]}),
    (SHAPE, {"points": [{"x": 1}]}),
    (SHAPE, {"x": 1}),
    (either(lambda value: type(value) is int, count, text), 3),
    (either(lambda value: type(value) is int, count, text), "a"),
    (
        like({"pos": 3, "key": [1, 2], "name": "a", "gauss": None}, {"pos": 4}),
        {"pos": 4, "key": [9, 9], "name": "b", "gauss": 1.5},
    ),
]


@pytest.mark.parametrize(("schema", "value"), GOOD)
def test_accepted(schema, value):
    assert schema(value, "it") == value


BAD = [
    (count, -1, "it must be an int of at least 0, got -1"),
    (count, True, "it must be an int of at least 0, got True"),
    (count, 1.0, "got 1.0"),
    (count, 2**200, "it must be an int of at least 0, got 16069"),
    (whole(2, 3), 4, "it must be an int from 2 to 3, got 4"),
    (whole(2, 2), 4, "it must be 2, got 4"),
    (integer, "1", "it must be an int, got '1'"),
    (number, None, "it must be a number, got None"),
    (flag, 1, "it must be True or False, got 1"),
    (text, b"a", "it must be a string, got b'a'"),
    (exactly(3), 3.0, "it must be 3, got 3.0"),
    (packed(), "A", "it must be Base64"),
    (packed(), "é", "it must be Base64"),
    (packed(4), "AAAA", "it must be 4 bytes in Base64"),
    (items(count), {"a": 1}, "it must be a list, got"),
    (items(count), "ab", "it must be a list, got"),
    (items(count, 2), [1], "it must be a list of 2, got"),
    (items(count), [1, None], r"it\[1\] must be an int"),
    (each(count, text), [1], "it must be a list of 2, got"),
    (each(count, optional=text), [1, 2], r"it\[1\] must be a string"),
    (each(count, optional=text), [1, "a", 3], "it must be a list of 1 or 2, got"),
    (table(count), {1: 1}, "a name in it must be a string, got 1"),
    (table(count), {"a": -1}, r"it\['a'\] must be an int"),
    (POINT, [], "it must be a mapping, got"),
    (POINT, {"name": "a"}, "it must be a mapping with x, got"),
    (POINT, {"x": 1, "y": 2}, "it must be a mapping of x, name only, got"),
    (POINT, {"x": "1"}, r"it\.x must be an int of at least 0, got '1'"),
    (SHAPE, {"points": [{"x": 1}, {"x": -1}]}, r"it\.points\[1\]\.x must be an int"),
    (SHAPE, {"points": None, "x": 1}, "it must be a mapping of points only"),
    (SHAPE, None, "it must be a mapping"),
    (like({"pos": 3}, {"pos": 4}), {"pos": 5}, r"it\.pos must be an int from 0 to 4"),
    (like([1, "a"]), [1], "it must be a list of 2"),
]


@pytest.mark.parametrize(("schema", "value", "reason"), BAD)
def test_refused(schema, value, reason):
    with pytest.raises(StateError, match=reason):
        schema(value, "it")


def test_tuples_become_lists():
    assert each(count, items(count))((1, (2, 3)), "it") == [1, [2, 3]]


def test_anything_is_shown_in_a_few_words():
    deep = []
    for _ in range(10**5):
        deep = [deep]
    assert shown(deep) == "a value of type list"
    assert len(shown("x" * 10**6)) < 200
    assert shown(10**5000) == "a value of type int"

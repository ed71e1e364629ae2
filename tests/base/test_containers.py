"""Containers keep their type and their extras when their contents change."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from types import MappingProxyType

import pytest

from headrace.base.containers import Kind, kind_of, map_leaves, mapping_like, sequence_like

Point = namedtuple("Point", "x y")


class FrozenBox(dict):
    """A mapping that cannot be rebuilt."""

    def __copy__(self):
        raise TypeError("one of a kind")


class Labelled(list):
    """A list with an attribute."""

    label = None


def double(value):
    return value * 2


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (int, Kind.LEAF),
        (str, Kind.LEAF),
        (bytes, Kind.LEAF),
        (set, Kind.LEAF),
        (UserDict, Kind.MAPPING),
        (Point, Kind.NAMED_TUPLE),
        (tuple, Kind.TUPLE),
        (range, Kind.SEQUENCE),
    ],
)
def test_every_type_has_its_kind(cls, kind):
    assert kind_of(cls) is kind
    assert kind_of(type("Derived", (cls,), {}) if cls is not range else cls) is kind


def test_a_mapping_keeps_its_type_and_its_default_factory():
    result = mapping_like(defaultdict(list, a=1), {"a": 10})
    assert type(result) is defaultdict
    assert result.default_factory is list
    assert result == {"a": 10}


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType])
def test_mappings_keep_their_type(kind):
    example = kind({"a": 1, "b": 2})
    result = mapping_like(example, {"a": 10, "b": 20})
    assert type(result) is kind
    assert dict(result) == {"a": 10, "b": 20}
    assert dict(example) == {"a": 1, "b": 2}


def test_a_mapping_that_cannot_be_rebuilt_becomes_a_dict():
    result = mapping_like(FrozenBox(a=1), {"a": 2})
    assert type(result) is dict
    assert result == {"a": 2}


def test_a_sequence_keeps_its_type_and_its_attributes():
    example = Labelled([1, 2])
    example.label = "mine"
    result = sequence_like(example, [10, 20])
    assert type(result) is Labelled
    assert (result, result.label) == ([10, 20], "mine")
    assert example == [1, 2]


def test_a_sequence_that_cannot_be_rebuilt_becomes_a_list():
    assert sequence_like(range(2), [5, 6]) == [5, 6]
    assert type(sequence_like(UserList([1, 2]), [5, 6])) is UserList


def test_every_leaf_is_mapped_and_every_container_kept():
    value = {"a": [1, (2, 3)], "b": Point(4, OrderedDict(c=5)), "text": "ab", "raw": b"c"}
    result = map_leaves(double, value)
    assert result == {"a": [2, (4, 6)], "b": Point(8, {"c": 10}), "text": "abab", "raw": b"cc"}
    assert type(result["b"]) is Point
    assert type(result["b"].y) is OrderedDict
    assert value["a"] == [1, (2, 3)]


def test_plain_tuples_become_lists_on_request_but_named_ones_never():
    assert map_leaves(double, (1, Point(2, (3,))), tuples_to_lists=True) == [2, Point(4, [6])]


def test_is_leaf_decides_before_the_container_is_opened():
    assert map_leaves(len, {"a": [1, 2, 3]}, is_leaf=lambda value: isinstance(value, list)) == {"a": 3}

"""A fast method is used only if it was written with the plain one in mind."""

from __future__ import annotations

from headrace.base.overrides import stands_in


class Both:
    def plain(self): ...
    def fast(self): ...


class PlainOnly:
    def plain(self): ...


class FastLater(PlainOnly):
    def fast(self): ...


class PlainAgain(Both):
    def plain(self): ...


class BothAgain(PlainAgain):
    def fast(self): ...


def test_fast_stands_in_for_the_plain_method_of_its_own_class_or_of_a_base():
    assert stands_in(Both, "fast", "plain")
    assert stands_in(FastLater, "fast", "plain")
    assert stands_in(BothAgain, "fast", "plain")


def test_a_subclass_that_overrides_the_plain_method_alone_rules_the_fast_one_out():
    assert not stands_in(PlainAgain, "fast", "plain")


def test_without_a_fast_method_there_is_nothing_to_stand_in():
    assert not stands_in(PlainOnly, "fast", "plain")


def test_every_plain_method_counts_and_missing_ones_do_not():
    assert not stands_in(PlainAgain, "fast", "missing", "plain")
    assert stands_in(Both, "fast", "missing", "plain")

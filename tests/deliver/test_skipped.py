"""What is said of samples that are left out."""

from __future__ import annotations

import pytest

from headrace.base.errors import TooManyBadSamplesError
from headrace.base.messages import BadSample
from headrace.deliver.skipped import SkippedSamples


def bad(key, batch=0):
    return BadSample(key, batch, 1, f"ValueError: {key} is bad", f"Traceback of {key}")


@pytest.mark.parametrize(
    ("key", "place"),
    [
        (5, "sample 5 in batch 3"),
        ("a.png", "sample 'a.png' in batch 3"),
        (None, "batch 3"),
        ([1, 2], "samples [1, 2] in batch 3"),
    ],
)
def test_the_first_is_told_with_its_place_and_where_to_look(key, place):
    told = []
    SkippedSamples([], None, told.append).note((bad(key, 3), bad(7, 3)))
    (text,) = told
    assert f"here {place}: ValueError: {key} is bad" in text
    assert "loader.errors" in text


def test_all_are_listed_and_long_keys_are_cut_in_what_is_told():
    errors, told = [bad(0)], []
    skipped = SkippedSamples(errors, None, told.append)
    skipped.note((bad(list(range(1000))), bad(2)))
    assert [each.key for each in errors] == [0, list(range(1000)), 2]
    assert "… in batch 0" in told[0]


def test_an_epoch_without_a_batch_is_an_error_once():
    skipped = SkippedSamples([], None, lambda text: None)
    skipped.note((bad(1), bad(2)))
    with pytest.raises(TooManyBadSamplesError, match=r"The epoch gave no batch: .* 2 ") as caught:
        skipped.check_epoch(0)
    assert "ValueError: 2 is bad" in str(caught.value)
    assert "Traceback of 2" in str(caught.value)
    skipped.check_epoch(0)


def test_an_epoch_with_a_batch_or_without_errors_is_none():
    skipped = SkippedSamples([bad("of another epoch")], None, lambda text: None)
    skipped.check_epoch(0)
    skipped.note((bad(1),))
    skipped.check_epoch(1)


def test_too_many_are_told_once_and_without_a_warning():
    told = []
    skipped = SkippedSamples([], 1, told.append)
    with pytest.raises(TooManyBadSamplesError, match="2 samples were left out, and max_errors=1"):
        skipped.note((bad(1), bad(2)))
    skipped.check_epoch(0)
    assert told == []

"""The iterator that users hold."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace.deliver.iterator import LoaderIterator, PromisedLength


def test_batches_are_finished_one_by_one():
    finished = []
    iterator = LoaderIterator(iter("abc"), "abc", lambda batch: finished.append(batch) or batch.upper(), None)
    assert iter(iterator) is iterator
    assert next(iterator) == "A"
    assert finished == ["a"]
    assert list(iterator) == ["B", "C"]
    assert len(iterator) == 3


def test_more_samples_than_promised_warn_and_are_delivered():
    iterator = LoaderIterator(iter("abc"), [], None, PromisedLength("letters", 2))
    assert [next(iterator), next(iterator)] == ["a", "b"]
    with pytest.warns(UserWarning, match=r"Length of IterableDataset letters was reported to be 2 .* but 3 samples"):
        assert next(iterator) == "c"


def test_it_cannot_be_pickled_or_copied():
    iterator = LoaderIterator(iter("abc"), [], None, None)
    for act in (pickle.dumps, copy.copy):
        with pytest.raises(NotImplementedError, match="LoaderIterator cannot be pickled"):
            act(iterator)

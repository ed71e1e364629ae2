"""The iterator that users hold."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace.deliver.iterator import LoaderIterator, PromisedLength
from headrace.order.key_plan import KeyPlan


class Batches:
    """Some batches, and how often the source was closed."""

    def __init__(self, batches, epoch=0, workers=0):
        self.batches = iter(batches)
        self.plan = KeyPlan(iter(()), epoch)
        self.plan.workers = workers
        self.closed = 0

    @property
    def latest(self):
        return self.plan.latest

    def __next__(self):
        return next(self.batches)

    def close(self):
        self.closed += 1
        self.batches = iter([])


class Counts:
    """Epoch number 2 has 7 batches, all others 3."""

    def n_batches(self, epoch):
        return 7 if epoch == 2 else 3


def promised(batches, dataset, samples, **options):
    iterator = LoaderIterator(batches, Counts(), **options)
    iterator.promise = PromisedLength(dataset, samples)
    return iterator


def test_batches_are_finished_one_by_one():
    finished = []
    iterator = LoaderIterator(Batches("abc"), Counts(), finish=lambda batch: finished.append(batch) or batch.upper())
    assert iter(iterator) is iterator
    assert next(iterator) == "A"
    assert finished == ["a"]
    assert list(iterator) == ["B", "C"]
    assert len(iterator) == 3


def test_more_samples_than_promised_warn_and_are_delivered():
    iterator = promised(Batches("abc"), "letters", 2)
    assert [next(iterator), next(iterator)] == ["a", "b"]
    with pytest.warns(UserWarning, match=r"Length of IterableDataset letters was reported to be 2 .* but 3 samples"):
        assert next(iterator) == "c"


def test_it_cannot_be_pickled_or_copied():
    iterator = LoaderIterator(Batches("abc"), Counts())
    for act in (pickle.dumps, copy.copy):
        with pytest.raises(NotImplementedError, match="LoaderIterator cannot be pickled"):
            act(iterator)


def test_the_end_closes_the_source_unless_it_stays():
    for stays in (False, True):
        batches = Batches("ab")
        iterator = LoaderIterator(batches, Counts(), stays=stays)
        assert next(iterator) == "a"
        assert batches.closed == 0
        assert list(iterator) == ["b"]
        assert list(iterator) == []
        assert (batches.closed > 0) is not stays
        assert batches.plan.is_over


def test_closing_ends_the_epoch_and_may_be_done_again():
    batches = Batches("ab")
    iterator = LoaderIterator(batches, Counts(), stays=True)
    next(iterator)
    iterator.close()
    iterator.close()
    assert batches.closed == 2
    assert list(iterator) == []


def test_another_epoch_begins_with_counts_of_its_own():
    iterator = promised(Batches("ab"), "letters", 2, stays=True)
    assert list(iterator) == ["a", "b"]
    assert len(iterator) == 3
    iterator.begin(Batches("cde", epoch=2))
    assert iterator.promise is None
    iterator.promise = PromisedLength("letters", 3)
    assert list(iterator) == ["c", "d", "e"]  # and no warning
    assert len(iterator) == 7


def test_with_several_workers_the_warning_says_what_to_do():
    for workers in (1, 2):
        iterator = promised(Batches("ab", workers=workers), "letters", 1)
        next(iterator)
        with pytest.warns(UserWarning, match="2 samples have been fetched") as caught:
            next(iterator)
        assert ("get_worker_info" in str(caught[0].message)) is (workers > 1)


def test_an_error_of_the_last_step_is_raised_in_the_place_of_its_batch():
    def finish(batch):
        if batch == "b":
            raise ValueError("cannot be moved")
        return batch

    iterator = LoaderIterator(Batches("abc"), Counts(), finish=finish)
    assert next(iterator) == "a"
    with pytest.raises(ValueError, match="cannot be moved"):
        next(iterator)
    assert next(iterator) == "c"

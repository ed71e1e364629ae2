"""The iterator that users hold."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from headrace.deliver.iterator import LoaderIterator, PromisedLength
from headrace.order.key_plan import KeyPlan


class Batches:
    """Some batches, and how often the source was closed."""

    ready = None

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


def begun(batches, **options):
    iterator = LoaderIterator()
    iterator.begin(batches, Counts(), **options)
    return iterator


def promised(batches, dataset, samples, **options):
    iterator = begun(batches, **options)
    iterator.promise = PromisedLength(dataset, samples)
    return iterator


def test_batches_are_finished_one_by_one():
    finished = []
    iterator = begun(Batches("abc"), finish=lambda batch: finished.append(batch) or batch.upper())
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
    iterator = begun(Batches("abc"))
    for act in (pickle.dumps, copy.copy):
        with pytest.raises(NotImplementedError, match="LoaderIterator cannot be pickled"):
            act(iterator)


def test_the_end_closes_the_source_unless_it_stays():
    for stays in (False, True):
        batches = Batches("ab")
        iterator = begun(batches, stays=stays)
        assert next(iterator) == "a"
        assert batches.closed == 0
        assert list(iterator) == ["b"]
        assert list(iterator) == []
        assert (batches.closed > 0) is not stays
        assert batches.plan.is_over


def test_closing_ends_the_epoch_and_may_be_done_again():
    batches = Batches("ab")
    iterator = begun(batches, stays=True)
    next(iterator)
    iterator.close()
    iterator.close()
    assert batches.closed == 2
    assert list(iterator) == []


def test_another_epoch_begins_with_counts_of_its_own():
    iterator = promised(Batches("ab"), "letters", 2, stays=True)
    assert list(iterator) == ["a", "b"]
    assert len(iterator) == 3
    iterator.begin(Batches("cde", epoch=2), Counts())
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

    iterator = begun(Batches("abc"), finish=finish)
    assert next(iterator) == "a"
    with pytest.raises(ValueError, match="cannot be moved"):
        next(iterator)
    assert next(iterator) == "c"


class Timer:
    """Notes the numbers of the turns that are timed."""

    def __init__(self, mask):
        self.batches, self.mask, self.open, self.timed = 0, mask, None, []

    def ask(self):
        self.timed.append(self.batches)
        self.open = self.batches

    def give(self, number, batch):
        self.open = None

    def stop(self):
        pass

    end = stop


class Run(Batches):
    """Batches that may be taken without asking."""

    def __init__(self, batches):
        super().__init__(batches)
        self.broke_off = []

    @property
    def ready(self):
        return self.batches

    def break_off(self, error):
        self.broke_off.append(error)

    def close(self):
        self.batches = iter(())


@pytest.mark.parametrize("mask", [0, 1, 2, 6, 12, 31 * 4])
def test_batches_that_lie_ready_are_taken_and_counted_and_the_same_turns_are_timed(mask):
    run, timer = Run(range(300)), Timer(mask)
    run.plan.on_given = lambda n_batches, n_samples: setattr(timer, "batches", timer.batches + n_batches)
    iterator = begun(run)
    iterator.timer = timer
    assert list(iterator) == list(range(300))
    assert [number for number in timer.timed if number < 300] == [n for n in range(300) if not n & mask]
    assert timer.batches == 300


def test_a_batch_that_cannot_be_taken_breaks_off():
    def batches():
        yield from range(3)
        raise KeyError("gone")

    run = Run(batches())
    iterator = begun(run)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(iterator)
    assert len(run.broke_off) == 1


def test_nothing_is_taken_from_what_was_closed():
    iterator = begun(Run(range(10)))
    assert [next(iterator), next(iterator)] == [0, 1]
    iterator.close()
    assert list(iterator) == []


def waiting(log, *, draws=True, text="ab"):
    iterator = LoaderIterator()

    def begin(one):
        log.append(text)
        one.begin(Batches(text), Counts())

    iterator.wait(begin, lambda: 7, draws=draws)
    return iterator


def test_an_epoch_begins_with_the_first_batch():
    log = []
    iterator = waiting(log)
    assert iterator.is_waiting
    assert (len(iterator), log) == (7, [])
    assert list(iterator) == ["a", "b"]
    assert (log, iterator.is_waiting) == (["ab"], False)


def test_those_that_draw_begin_in_the_order_they_were_made_in():
    log = []
    first, dropped, quiet, last = (
        waiting(log, text=text, draws=text != "quiet") for text in ("first", "dropped", "quiet", "last")
    )
    del dropped
    assert next(last) == "l"
    assert log == ["first", "last"]
    assert [next(first), next(quiet), log[2:]] == ["f", "q", ["quiet"]]


def test_an_iterator_that_is_closed_before_it_begins_has_no_batches():
    log = []
    iterator = waiting(log)
    iterator.close()
    assert (list(iterator), log) == ([], [])


def test_two_threads_that_ask_at_once_begin_one_epoch():
    log = []
    iterator, may_go_on = LoaderIterator(), threading.Event()

    def begin(one):
        log.append("begun")
        may_go_on.wait(10)
        one.begin(Batches("ab"), Counts())

    iterator.wait(begin, lambda: 0, draws=True)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(next(iterator))) for _ in range(2)]
    for thread in threads:
        thread.start()
    may_go_on.set()
    for thread in threads:
        thread.join()
    assert (sorted(seen), log) == (["a", "b"], ["begun"])


def test_ctrl_c_while_an_epoch_begins_leaves_it_to_begin_later():
    attempts = []
    iterator = LoaderIterator()

    def begin(one):
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        one.begin(Batches("ab"), Counts())

    iterator.wait(begin, lambda: 0, draws=True)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert list(iterator) == ["a", "b"]

"""`on_error="skip"`: samples that raise are left out and recorded, on every engine alike."""

from __future__ import annotations

import warnings

import pytest

from headrace import BadSample, DataLoader, TooManyBadSamplesError
from headrace.testing import FlakyDataset
from tests.failures.outcomes import Each, outcomes, until
from tests.failures.test_exception_in_stream import Generated, Stream
from tests.failures.test_exceptions_that_hardly_travel import BrokenTextError, HoldsLockError

pytestmark = pytest.mark.filterwarnings("ignore:on_error='skip' leaves out")


def keys(loader):
    return [bad.key for bad in loader.errors]


def test_bad_samples_are_left_out_of_their_batches(engine):
    loader = DataLoader(FlakyDataset(range(10), bad=[0, 4, 5]), batch_size=3, on_error="skip", **engine)
    assert outcomes(loader) == [[1, 2], [3], [6, 7, 8], [9]]
    assert keys(loader) == [0, 4, 5]


def test_what_is_recorded(engine):
    loader = DataLoader(FlakyDataset(range(10), bad=[7]), batch_size=2, on_error="skip", **engine)
    outcomes(loader)
    (bad,) = loader.errors
    assert type(bad) is BadSample
    assert (bad.key, bad.batch) == (7, 3)
    assert bad.worker == (1 if engine else None)
    assert bad.error == "ValueError: sample 7 is bad"
    assert "in __getitem__" in bad.traceback
    assert "raise self._error(index)" in bad.traceback


def test_errors_of_all_epochs_are_kept(engine):
    loader = DataLoader(FlakyDataset(range(4), bad=[1]), batch_size=2, on_error="skip", **engine)
    for epoch in range(3):
        assert outcomes(loader) == [[0], [2, 3]]
        assert keys(loader) == [1] * (epoch + 1)


def test_persistent_workers(workers):
    loader = DataLoader(
        FlakyDataset(range(4), bad=[1]), batch_size=2, on_error="skip", persistent_workers=True, **workers
    )
    for _ in range(3):
        assert outcomes(loader) == [[0], [2, 3]]
    loader.close()
    assert keys(loader) == [1, 1, 1]


def test_single_samples(engine):
    loader = DataLoader(FlakyDataset(range(6), bad=[0, 3]), batch_size=None, on_error="skip", **engine)
    assert outcomes(loader) == [1, 2, 4, 5]
    assert keys(loader) == [0, 3]


def test_a_batch_of_bad_samples_is_left_out(engine):
    loader = DataLoader(FlakyDataset(range(8), bad=[2, 3, 6, 7]), batch_size=2, on_error="skip", **engine)
    assert outcomes(loader) == [[0, 1], [4, 5]]
    assert keys(loader) == [2, 3, 6, 7]


def test_an_epoch_of_bad_samples_ends_with_an_error(engine):
    loader = DataLoader(FlakyDataset(range(8), bad=range(8)), batch_size=2, on_error="skip", **engine)
    for epoch in (1, 2):
        (error,) = outcomes(loader)
        assert type(error) is TooManyBadSamplesError
        assert "The epoch gave no batch" in str(error)
        assert "sample 7 in batch 3: ValueError: sample 7 is bad" in str(error)
        assert "loader.errors" in str(error)
        assert keys(loader) == list(range(8)) * epoch


def test_a_collate_fn_that_always_raises_ends_with_an_error(engine):
    def collate(samples):
        raise NameError("stakc")

    loader = DataLoader(range(4), batch_size=2, collate_fn=collate, on_error="skip", **engine)
    with pytest.raises(TooManyBadSamplesError, match=r"samples \[2, 3\] in batch 1: NameError: stakc"):
        list(loader)


def test_persistent_workers_end_every_empty_epoch_with_an_error(workers):
    loader = DataLoader(FlakyDataset(range(2), bad=[0, 1]), on_error="skip", persistent_workers=True, **workers)
    for _ in range(2):
        assert [type(each) for each in outcomes(loader)] == [TooManyBadSamplesError]
    loader.close()


@pytest.mark.filterwarnings("default")
def test_the_first_one_is_told_once_and_at_the_users_line(engine):
    loader = DataLoader(FlakyDataset(range(6), bad=[2, 3, 5]), batch_size=2, on_error="skip", **engine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for _ in loader:
                pass
    (warning,) = [each for each in caught if "on_error" in str(each.message)]
    assert "sample 2 in batch 1: ValueError: sample 2 is bad" in str(warning.message)
    assert "loader.errors" in str(warning.message)
    assert warning.filename == __file__
    assert len(loader.errors) == 6


def test_an_empty_dataset_is_no_error(engine):
    loader = DataLoader([], batch_size=2, on_error="skip", **engine)
    assert outcomes(loader) == []
    assert loader.errors == []


def test_without_order(workers):
    loader = DataLoader(
        FlakyDataset(range(12), bad=[4, 6, 7]), batch_size=2, in_order=False, on_error="skip", **workers
    )
    assert sorted(outcomes(loader)) == [[0, 1], [2, 3], [5], [8, 9], [10, 11]]
    assert sorted(keys(loader)) == [4, 6, 7]


class Whole(Each):
    """Fetches batches whole, and fails as a whole."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_getitems_that_raises_is_replaced_by_single_samples(engine):
    def odd(index):
        if index == 3:
            raise ValueError("bad")
        return index

    loader = DataLoader(Whole(odd, 6), batch_size=2, on_error="skip", **engine)
    assert outcomes(loader) == [[0, 1], [2], [4, 5]]
    assert keys(loader) == [3]


def test_a_collation_that_raises_costs_its_batch(engine):
    def collate(samples):
        if 2 in samples:
            raise ArithmeticError("two")
        return samples

    loader = DataLoader(range(6), batch_size=2, collate_fn=collate, on_error="skip", **engine)
    assert outcomes(loader) == [[0, 1], [4, 5]]
    (bad,) = loader.errors
    assert (bad.key, bad.batch) == ([2, 3], 1)
    assert bad.error == "ArithmeticError: two"


def test_samples_that_do_not_fit_together_cost_their_batch(engine):
    loader = DataLoader(Each(lambda i: [0] * (1 + (i == 2)), 6), batch_size=2, on_error="skip", **engine)
    assert len(outcomes(loader)) == 2
    (bad,) = loader.errors
    assert bad.key == [2, 3]
    assert "CollateError" in bad.error


def test_a_single_sample_whose_conversion_raises(engine):
    def convert(sample):
        if sample == 2:
            raise ArithmeticError("two")
        return sample

    loader = DataLoader(range(4), batch_size=None, collate_fn=convert, on_error="skip", **engine)
    assert outcomes(loader) == [0, 1, 3]
    (bad,) = loader.errors
    assert (bad.key, bad.batch) == (2, 2)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_stream_that_goes_on_after_an_error(engine, batch_size):
    loader = DataLoader(Stream(12, bad=[0, 7, 8]), batch_size=batch_size, on_error="skip", **engine)
    seen = outcomes(loader)
    numbers = seen if batch_size is None else [number for batch in seen for number in batch]
    assert sorted(numbers) == [i for i in range(12) if i not in (0, 7, 8)]
    assert keys(loader) == [None] * 3
    assert sorted(bad.error for bad in loader.errors) == [f"EOFError: record {i} is cut off" for i in (0, 7, 8)]


def test_a_generator_ends_with_its_error_and_the_others_go_on(workers):
    loader = DataLoader(Generated(12, bad=[5]), batch_size=2, on_error="skip", **workers)
    assert sorted(number for batch in outcomes(loader) for number in batch) == [0, 1, 2, 3, 4, 6, 8, 10]
    assert len(loader.errors) == 1


def test_the_last_batch_of_a_stream_that_ends_with_an_error(engine):
    loader = DataLoader(Stream(4, bad=[2, 3]), batch_size=4, on_error="skip", **engine)
    assert sorted(number for batch in outcomes(loader) for number in batch) == [0, 1]
    assert len(loader.errors) == 2


@pytest.mark.parametrize("max_errors", [0, 2])
def test_too_many_are_an_error_that_tells_the_last(engine, max_errors):
    loader = DataLoader(
        FlakyDataset(range(8), bad=[1, 3, 5]), batch_size=2, on_error="skip", max_errors=max_errors, **engine
    )
    iterator = iter(loader)
    seen, error = until(TooManyBadSamplesError, iterator)
    assert seen == [[0], [2]][:max_errors]
    text = str(error)
    assert f"{max_errors + 1} samples were left out" in text
    assert f"max_errors={max_errors}" in text
    assert f"sample {2 * max_errors + 1} is bad" in text
    assert len(loader.errors) == max_errors + 1
    iterator.close()


def test_too_many_end_the_epoch(engine):
    loader = DataLoader(FlakyDataset(range(8), bad=[1, 3]), batch_size=2, on_error="skip", max_errors=1, **engine)
    seen = outcomes(loader)
    assert [type(each) for each in seen] == [list, TooManyBadSamplesError]


def test_as_many_as_allowed_are_no_error(engine):
    loader = DataLoader(FlakyDataset(range(8), bad=[1, 3, 5]), batch_size=2, on_error="skip", max_errors=3, **engine)
    assert outcomes(loader) == [[0], [2], [4], [6, 7]]


@pytest.mark.parametrize(("error", "name"), [(BrokenTextError, "BrokenTextError"), (HoldsLockError, "HoldsLockError")])
def test_errors_that_hardly_travel_are_recorded_too(engine, error, name):
    loader = DataLoader(FlakyDataset(range(4), [1], lambda index: error("text")), on_error="skip", **engine)
    assert outcomes(loader) == [[0], [2], [3]]
    assert name in loader.errors[0].error


def test_errors_outside_of_samples_are_raised_all_the_same(engine):
    class Broken:
        def __iter__(self):
            yield 0
            raise ConnectionError("no more keys")

    seen = outcomes(DataLoader(range(4), sampler=Broken(), on_error="skip", **engine))
    assert seen[0] == [0]
    assert type(seen[1]) is ConnectionError


def test_worker_init_fn_that_raises_is_raised(workers):
    def refuse(number):
        raise PermissionError("no")

    loader = DataLoader(range(4), worker_init_fn=refuse, on_error="skip", **workers)
    with pytest.raises(PermissionError):
        next(iter(loader))


def test_interrupts_are_not_skipped():
    def interrupt(index):
        raise KeyboardInterrupt

    for options in ({}, {"num_workers": 1, "engine": "threads"}):
        with pytest.raises(KeyboardInterrupt):
            next(iter(DataLoader(Each(interrupt, 2), on_error="skip", **options)))

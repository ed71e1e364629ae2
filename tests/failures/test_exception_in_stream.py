"""An exception in the iterator of an iterable dataset."""

from __future__ import annotations

import traceback

import pytest

from headrace import DataLoader, IterableDataset, get_worker_info
from tests.failures.outcomes import outcomes, split, told


class Stream(IterableDataset):
    """Numbers, dealt to the workers; some of them raise. It goes on after an error, which a generator cannot."""

    def __init__(self, n, bad=()):
        self._n = n
        self._bad = bad

    def __iter__(self):
        info = get_worker_info()
        numbers = range(self._n) if info is None else range(info.id, self._n, info.num_workers)
        return _Numbers(iter(numbers), self._bad)


class _Numbers:
    def __init__(self, numbers, bad):
        self._numbers = numbers
        self._bad = bad

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self._numbers)
        if number in self._bad:
            raise EOFError(f"record {number} is cut off")
        return number


class Generated(Stream):
    """The same as a generator, which ends with its first error."""

    def __iter__(self):
        yield from super().__iter__()


class Unopenable(IterableDataset):
    def __iter__(self):
        raise FileNotFoundError("no such stream")


def test_a_stream_that_goes_on_loses_one_batch_per_error(engine):
    batches, errors = split(outcomes(DataLoader(Stream(12, bad=[0, 7]), batch_size=None, **engine)))
    assert sorted(batches) == [i for i in range(12) if i not in (0, 7)]
    assert [(type(error), str(error)) for error in errors] == [
        (EOFError, "record 0 is cut off"),
        (EOFError, "record 7 is cut off"),
    ]


def test_a_generator_ends_with_its_error_and_the_other_workers_go_on(workers):
    batches, errors = split(outcomes(DataLoader(Generated(12, bad=[5]), batch_size=2, **workers)))
    assert batches == [[0, 2], [1, 3], [4, 6], [8, 10]]
    assert [str(error) for error in errors] == ["record 5 is cut off"]


def test_the_traceback_of_the_stream_is_shown(engine):
    error = next(each for each in outcomes(DataLoader(Generated(6, bad=[3]), **engine)) if isinstance(each, EOFError))
    assert "record {number} is cut off" in "".join(traceback.format_exception(error))


def test_worker_batch_and_place_are_named(workers):
    _, (error,) = split(outcomes(DataLoader(Generated(12, bad=[5]), batch_size=2, **workers)))
    assert "worker process 1 (pid " in told(error) or "worker thread 1 (pid " in told(error)
    assert "batch 3" in told(error)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_stream_that_cannot_be_opened(workers, batch_size):
    seen = outcomes(DataLoader(Unopenable(), batch_size=batch_size, **workers), most=20)
    assert type(seen[0]) is FileNotFoundError
    assert "__iter__" in "".join(traceback.format_exception(seen[0]))


def test_a_stream_that_cannot_be_opened_without_workers():
    with pytest.raises(FileNotFoundError, match="no such stream"):
        next(iter(DataLoader(Unopenable())))

"""An exception in a sampler or batch sampler: the batches before it come, then the error, then the end."""

from __future__ import annotations

import traceback

import pytest

from headrace import DataLoader
from tests.failures.outcomes import outcomes


def failing_keys(keys):
    """Gives the keys, then fails."""
    yield from keys
    raise ConnectionError("the list of samples is gone")


class FailingSampler:
    def __init__(self, keys):
        self._keys = keys

    def __iter__(self):
        return failing_keys(self._keys)


class SometimesFailing:
    """An iterator that goes on after an error, which a generator cannot."""

    def __iter__(self):
        self._next = -1
        return self

    def __next__(self):
        self._next += 1
        if self._next == 6:
            raise StopIteration
        if self._next in (0, 3):
            raise ConnectionError(f"no batch {self._next}")
        return [self._next]


@pytest.mark.parametrize("n", [0, 3, 4, 9])
def test_a_sampler(engine, n):
    seen = outcomes(DataLoader(range(20), batch_size=2, sampler=FailingSampler(range(n)), **engine))
    assert seen[:-1] == [[i, i + 1] for i in range(0, n - 1, 2)]
    assert type(seen[-1]) is ConnectionError
    assert traceback.extract_tb(seen[-1].__traceback__)[-1].name == "failing_keys"


def test_a_batch_sampler(engine):
    batches = [[0, 1], [2], [3, 4, 5], [6], [7], [8], [9]]
    seen = outcomes(DataLoader(range(20), batch_sampler=FailingSampler(batches), **engine))
    assert seen[:-1] == batches
    assert type(seen[-1]) is ConnectionError


def test_a_sampler_of_single_samples(engine):
    seen = outcomes(DataLoader(range(20), batch_size=None, sampler=FailingSampler(range(5)), **engine))
    assert seen[:-1] == [0, 1, 2, 3, 4]
    assert type(seen[-1]) is ConnectionError


def test_a_batch_sampler_that_goes_on_is_asked_on(engine):
    seen = outcomes(DataLoader(range(20), batch_sampler=SometimesFailing(), **engine))
    assert [type(each) for each in seen] == [ConnectionError, list, list, ConnectionError, list, list]
    assert [each for each in seen if type(each) is list] == [[1], [2], [4], [5]]


def test_batches_before_the_error_come_first_without_order_too(workers):
    seen = outcomes(DataLoader(range(20), batch_sampler=SometimesFailing(), in_order=False, **workers))
    assert sorted(each for each in seen if type(each) is list) == [[1], [2], [4], [5]]
    assert sum(type(each) is ConnectionError for each in seen) == 2


def test_a_sampler_that_cannot_start_starts_no_worker(engine):
    class Broken:
        def __iter__(self):
            raise ConnectionError("not now")

    with pytest.raises(ConnectionError, match="not now"):
        list(DataLoader(range(4), sampler=Broken(), **engine))


def test_persistent_workers_serve_the_next_epoch(workers):
    sampler = FailingSampler(range(3))
    loader = DataLoader(range(20), sampler=sampler, persistent_workers=True, **workers)
    assert type(outcomes(loader)[-1]) is ConnectionError
    sampler._keys = range(2)
    assert outcomes(loader)[:-1] == [[0], [1]]
    loader.close()


def test_a_key_that_no_dataset_knows_is_an_error_of_its_batch(engine):
    seen = outcomes(DataLoader(range(4), sampler=[0, 99, 1], **engine))
    assert (seen[0], seen[2]) == ([0], [1])
    assert type(seen[1]) is IndexError

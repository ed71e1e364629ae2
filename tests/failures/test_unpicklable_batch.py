"""A batch that cannot leave its worker: an error for this batch, which says so."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace import DataLoader
from tests.failures.outcomes import outcomes


class BreaksInTheLoop:
    """Can be pickled, and not rebuilt."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ValueError("not in this process")


class Greedy:
    """Pickling it needs more stack than there is."""

    def __reduce__(self):
        return Greedy, (Greedy(),)


def with_odd_second(odd):
    """A collate function whose second batch holds something odd."""

    def collate(samples):
        return {"index": samples, "odd": odd()} if samples == [1] else samples

    return collate


@pytest.mark.parametrize(
    ("odd", "name"), [(threading.Lock, "lock"), (lambda: (i for i in range(3)), "generator")], ids=["lock", "generator"]
)
def test_the_error_names_what_cannot_be_sent_and_the_others_come(odd, name):
    seen = outcomes(DataLoader(range(4), collate_fn=with_odd_second(odd), num_workers=2))
    assert [seen[0], seen[2], seen[3]] == [[0], [2], [3]]
    assert type(seen[1]) is TypeError
    assert name in str(seen[1])
    assert "cannot be sent" in str(seen[1])
    assert "batch 1" in str(seen[1].__cause__)


def test_a_batch_that_cannot_be_rebuilt_in_the_loop():
    seen = outcomes(DataLoader(range(4), collate_fn=with_odd_second(BreaksInTheLoop), num_workers=2))
    assert [seen[0], seen[2], seen[3]] == [[0], [2], [3]]
    assert type(seen[1]) is ValueError
    assert "not in this process" in str(seen[1])


def test_a_batch_that_is_too_deep():
    seen = outcomes(DataLoader(range(4), collate_fn=with_odd_second(Greedy), num_workers=2))
    assert [seen[0], seen[2], seen[3]] == [[0], [2], [3]]
    assert "recursion" in str(seen[1])


def test_the_memory_of_a_batch_that_was_not_sent_is_used_again():
    """The large array goes to shared memory before the lock is found; a leak would fill it."""
    lock = threading.Lock()
    array = np.ones(2**22, np.uint8)

    def collate(samples):
        return [array, lock] if samples[0] % 2 else array

    loader = DataLoader(range(200), collate_fn=collate, num_workers=1, prefetch_factor=1)
    seen = 0
    iterator = iter(loader)
    for i in range(200):
        if i % 2:
            with pytest.raises(TypeError, match="cannot be sent"):
                next(iterator)
        else:
            assert next(iterator)[-1] == 1
            seen += 1
    arena = next(iter(iterator._batches._engine._handles.values())).arena
    assert bytes(arena._states).count(2) < 8  # a few blocks are in use, and not a hundred
    iterator.close()
    assert seen == 100


def test_threads_send_nothing_and_so_give_everything():
    lock = threading.Lock()
    loader = DataLoader(range(2), collate_fn=lambda samples: lock, num_workers=1, engine="threads")
    assert [batch is lock for batch in loader] == [True, True]

"""How many batches worker processes load ahead: as many as were asked for, and more only where nobody can tell."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headrace import DataLoader, IterableDataset
from headrace.engines.engine import Job
from headrace.engines.processes import ProcessEngine
from headrace.flow import Flow
from headrace.order.key_plan import KeyPlan


class Numbers:
    def __init__(self, n, seconds=0.0, n_bytes=8):
        self.n, self.seconds, self.n_bytes = n, seconds, n_bytes

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return np.full(self.n_bytes // 8, index)


def depths(dataset, n, *, deepens=True):
    """The engine's depth after each of n batches of two samples."""
    engine = ProcessEngine(2, 2, deepens=deepens)
    engine.start(
        Job(dataset, iterable=False, batched=True, drop_last=False, collate_fn=None, output="numpy", convert=True)
    )
    try:
        flow = Flow(KeyPlan([i % len(dataset)] * 2 for i in range(n)), engine)
        found = []
        for i, batch in enumerate(flow):
            assert (batch == i % len(dataset)).all()
            found.append(engine.depth)
        assert len(found) == n
        return found
    finally:
        engine.close()


def test_quick_and_small_batches_are_loaded_further_ahead():
    for _ in range(20):  # on a busy machine, they may not be quick at once
        deepest = max(depths(Numbers(50), 2000))
        if deepest == 512:
            break
    assert deepest == 512


def test_slow_batches_are_not():
    assert set(depths(Numbers(50, seconds=2e-3), 100)) == {4}


def test_large_batches_are_not_loaded_as_far_ahead():
    assert max(depths(Numbers(50, n_bytes=2**20), 300)) <= 16


def test_nothing_is_if_it_was_not_allowed():
    assert set(depths(Numbers(50), 500, deepens=False)) == {4}


class Noted:
    """A sampler that counts how often it is asked."""

    def __init__(self, n):
        self.n, self.drawn = n, 0

    def __iter__(self):
        self.drawn = 0
        for i in range(self.n):
            self.drawn += 1
            yield i

    def __len__(self):
        return self.n


@pytest.mark.parametrize("prefetch_factor", [None, 3])
def test_a_users_sampler_is_drawn_from_no_further_ahead_than_asked(prefetch_factor):
    sampler = Noted(3000)
    loader = DataLoader(
        Numbers(3000), batch_size=1, sampler=sampler, num_workers=2, prefetch_factor=prefetch_factor, output="numpy"
    )
    for i, _ in enumerate(loader):
        assert sampler.drawn <= i + 1 + 2 * (prefetch_factor or 2)


class Counting(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


@pytest.mark.filterwarnings("ignore:.*same")
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dataset", [Numbers(3001), Counting(1500)], ids=["map", "stream"])
def test_nothing_is_lost_or_doubled(dataset, in_order):
    loader = DataLoader(dataset, batch_size=2, num_workers=2, in_order=in_order, output="numpy")
    got = np.concatenate([np.ravel(batch) for batch in loader])
    want = np.arange(3001) if isinstance(dataset, Numbers) else np.repeat(np.arange(1500), 2)
    assert (np.sort(got) == want).all()
    if in_order and isinstance(dataset, Numbers):
        assert (got == want).all()

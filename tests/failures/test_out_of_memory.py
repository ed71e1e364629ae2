"""A worker that runs out of memory: a MemoryError if the allocation fails, a death if the kernel kills."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from headrace import DataLoader
from tests.failures.outcomes import Each, outcomes

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


def limit_memory(worker):
    """Leave 300 MB of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 300 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def test_a_sample_that_is_too_large():
    def read(index):
        return int(np.zeros(2**33 if index == 2 else 2, np.uint8)[0]) + index

    seen = outcomes(DataLoader(Each(read, 5), num_workers=2, worker_init_fn=limit_memory))
    assert [seen[i] for i in (0, 1, 3, 4)] == [[0], [1], [3], [4]]
    assert isinstance(seen[2], MemoryError)
    assert "sample 2" in str(seen[2].__cause__)


def test_a_batch_that_is_too_large():
    """The samples fit, one after the other, and their batch does not."""
    sample = np.zeros(50 * 2**20, np.uint8)

    def collate(samples):
        return int(np.concatenate(samples).sum()) if len(samples) == 1 else np.concatenate(samples)

    batches = [[0], [0] * 10, [0]]
    loader = DataLoader([sample], batch_sampler=batches, collate_fn=collate, num_workers=1, worker_init_fn=limit_memory)
    seen = outcomes(loader)
    assert (seen[0], seen[2]) == (0, 0)
    assert isinstance(seen[1], MemoryError)


def test_a_batch_that_does_not_fit_while_it_is_sent():
    """A list of large strings is copied to be sent; whatever fails, the next batch comes."""

    def collate(samples):
        return ["x" * (200 * 2**20)] if samples == [1] else samples

    seen = outcomes(DataLoader(range(3), collate_fn=collate, num_workers=1, worker_init_fn=limit_memory))
    assert (seen[0], seen[2]) == ([0], [2])
    assert "Memory" in str(seen[1]) + repr(seen[1]) + str(seen[1].__cause__)

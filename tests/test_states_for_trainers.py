"""States as trainers use them, of every kind of loader: loaded in the middle of an epoch, twice, and told at once."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

import headrace
from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, Stream

N = 24


class Counting(IterableDataset):
    """An iterable of a user's, which knows its state."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        worker = headrace.get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        while self.next * step + first < N:
            self.next += 1
            yield (self.next - 1) * step + first
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Plain(IterableDataset):
    """One that does not."""

    def __iter__(self):
        worker = headrace.get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        return iter(range(first, N, step))


def read_block(block):
    return range(*block)


def numbers(first=0):
    blocks = [(i + first, i + first + 4) for i in range(0, N, 4)]
    return Stream.from_blocks(blocks, read_block, counts=[4] * len(blocks))


def tokens(number):
    return [number] * (number % 3 + 1)


STREAMS = {
    "stream": numbers,
    "shuffled stream": lambda: numbers().shuffle(blocks=2),
    "mixed stream": lambda: headrace.mix([numbers().shuffle(blocks=2), numbers(100)], [2, 1], stop="all"),
    "packed stream": lambda: numbers().map(tokens).pack(4),
}
MAPS = {"by key": {}, "shuffled": {"shuffle": True}}
OWN = {"iterable": Plain, "iterable with a state": Counting}
LANES = {"lanes": {"lengths": [3] * (N // 3)}, "lanes of unknown lengths": {}}
WORKERS = {
    "alone": {},
    "processes": {"num_workers": 2},
    "persistent threads": {"num_workers": 2, "engine": "threads", "persistent_workers": True},
}


def sequence(start):
    def items():
        yield from range(start, start + 3)

    return items


def make(kind, seed, **options):
    if kind in STREAMS:
        return DataLoader(STREAMS[kind](), 3, seed=seed, collate_fn=list, **options)
    if kind in MAPS:
        return DataLoader(list(range(N)), 3, seed=seed, **MAPS[kind], **options)
    if kind in OWN:
        return DataLoader(OWN[kind](), 3, seed=seed, **options)
    sequences = [sequence(start) for start in range(0, N, 3)]
    return MultiStreamDataLoader(
        sequences, 4, assign="partition", cycle=False, seed=seed or 0, **LANES[kind], **options
    )


def plain(batches):
    return [json.loads(json.dumps(as_lists(batch))) for batch in batches]


def as_lists(batch):
    if isinstance(batch, (list, tuple)):
        return [as_lists(part) for part in batch]
    return np.asarray(batch).tolist()


KINDS = [*STREAMS, *MAPS, *OWN, *LANES]
pytestmark = pytest.mark.filterwarnings("ignore:The dataset .* is iterated again")


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=[None, 5], ids=["no seed", "seed"])
def seed(request, kind):
    if request.param is None and kind in LANES:
        pytest.skip("lanes always have one")
    return request.param


@pytest.fixture(params=WORKERS)
def workers(request):
    return WORKERS[request.param]


def saved(state):
    return json.loads(json.dumps(state))


def test_a_state_that_was_loaded_is_told_again_and_resumes_twice(kind, seed, workers):
    with make(kind, seed, **workers) as loader, make(kind, seed, **workers) as other:
        batches = iter(loader)
        plain(islice(batches, 2))
        state = saved(loader.state_dict())
        rest = plain(batches)
        assert len(rest) > 1
        for _ in range(2):
            other.load_state_dict(state)
            assert saved(other.state_dict()) == state
            assert plain(other) == rest


def test_a_state_loaded_while_an_epoch_runs_counts_from_the_next_on(kind, seed, workers):
    with make(kind, seed, **workers) as loader, make(kind, seed, **workers) as other:
        batches = iter(loader)
        plain(islice(batches, 2))
        state = saved(loader.state_dict())
        rest = plain(batches)
        running = iter(other)
        plain(islice(running, 1))
        other.load_state_dict(state)
        assert saved(other.state_dict()) == state
        assert plain(other) == rest
        assert saved(other.state_dict())["epoch"] == state["epoch"] + 1


def test_a_state_at_the_last_batch_and_one_after_the_loop_lead_to_the_next_epoch(kind, seed, workers):
    with make(kind, seed, **workers) as loader, make(kind, seed, **workers) as other:
        for _ in loader:
            state = saved(loader.state_dict())
        after = saved(loader.state_dict())
        expected = None if kind == "shuffled" and seed is None else plain(loader)
        for one in (state, after):
            other.load_state_dict(one)
            assert expected in (None, plain(other))
            plain(other)
            assert other.state_dict()["epoch"] in (2, 3)

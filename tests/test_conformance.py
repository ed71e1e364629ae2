"""`check_loader` passes loaders of every kind, and finds every fault, in headrace's loaders and in others."""

from __future__ import annotations

import random

import pytest

import headrace
from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, Stream
from headrace.testing import check_loader
from tests.needs import needs_torch

N = 26
pytestmark = pytest.mark.filterwarnings("ignore:The dataset .* is iterated again")


def read_block(block):
    return range(*block)


def numbers(first=0):
    blocks = [(i + first, i + first + 3) for i in range(0, N, 3)]
    return Stream.from_blocks(blocks, read_block, counts=[3] * len(blocks))


class Own(IterableDataset):
    def __iter__(self):
        return iter(range(N))


def tokens(number):
    return [number, number]


def by_key(rank, world, num_workers):
    return DataLoader(
        list(range(N)), 3, shuffle=True, shard=(rank, world), num_workers=num_workers, engine="threads", even="allow"
    )


def unseeded(num_workers):
    return DataLoader(list(range(N)), 3, shuffle=True, num_workers=num_workers, engine="threads")


def of_stream(make):
    def loader(rank, world, num_workers):
        return DataLoader(
            make(), 4, shard=(rank, world), even="allow", seed=1, num_workers=num_workers, engine="threads",
            collate_fn=list,
        )  # fmt: skip

    return loader


def lanes(rank, world, num_workers):
    sequences = [list(range(start, start + 4)) for start in range(0, 24, 4)]
    return MultiStreamDataLoader(
        sequences, 4, assign="partition", cycle=False, shard=(rank, world), num_workers=num_workers, engine="threads"
    )


def whole_rows(batch):
    return [tuple(row.tolist() if hasattr(row, "tolist") else row) for row in batch]


CHECKED = {
    "by key": (by_key, {"resume_on": (1, 3)}),
    "unseeded": (unseeded, {}),
    "iterable": (lambda: DataLoader(Own(), 3), {}),
    "stream": (of_stream(numbers), {"resume_on": (1, 3)}),
    "shuffled stream": (of_stream(lambda: numbers().shuffle(blocks=2)), {"resume_on": (1, 3)}),
    "mixed stream": (
        of_stream(lambda: headrace.mix([numbers().shuffle(blocks=2), numbers(100)], [2, 1], stop="all")),
        {"resume_on": (1, 3)},
    ),
    "packed stream": (of_stream(lambda: numbers().map(tokens).pack(2)), {"key": whole_rows}),
    "lanes": (lanes, {"resume_on": (1, 4), "shuffles": False}),
}


@pytest.mark.parametrize("kind", CHECKED)
def test_every_kind_of_loader_conforms(kind):
    make, options = CHECKED[kind]
    result = check_loader(make, **options)
    assert not result.findings
    assert {"epochs", "resume"} <= set(result.checked)
    if kind not in ("iterable", "unseeded"):
        assert {"ranks", "workers"} <= set(result.checked)


def test_a_loader_itself_will_do():
    result = check_loader(DataLoader(range(7), 2))
    assert result.checked == ["length", "epochs", "resume"]
    assert [reason.partition(":")[0] for reason in result.skipped] == ["workers", "ranks"]


def test_the_generators_are_left_alone():
    random.seed(5)
    before = random.getstate()
    check_loader(unseeded)
    assert random.getstate() == before


class Faulty:
    """A loader by hand, right except for one fault."""

    def __init__(self, fault, rank=0, world=1, num_workers=0):
        self.fault, self.rank, self.world, self.workers = fault, rank, world, num_workers
        self.epoch = self.given = 0
        self.state = {}

    def order(self):
        seed = 0 if self.fault == "same order" else self.epoch
        samples = list(range(16))
        random.Random(seed).shuffle(samples)
        if self.fault == "by workers" and self.workers:
            samples = samples[::-1]
        if self.fault == "other samples" and self.epoch:
            samples[0] = samples[1]
        if self.fault == "no deal":
            return samples
        if self.fault == "dealt twice":
            samples = samples[self.rank :: self.world]
        if self.fault == "uneven" and self.world > 1:
            return samples[:6] if self.rank == 0 else samples[6:]
        return samples[self.rank :: self.world]

    def __len__(self):
        return len(self.order()) // 2 + (self.fault == "length")

    def __iter__(self):
        samples = self.order()
        while 2 * self.given < len(samples):
            self.given += 1
            yield samples[2 * self.given - 2 : 2 * self.given]
        if self.fault != "epoch not counted":
            self.epoch += 1
        self.given = 0

    def state_dict(self):
        if self.fault == "states change":
            self.state.update(epoch=self.epoch, given=self.given)
            return self.state
        if self.fault == "last batch":
            return {"epoch": self.epoch, "given": self.given}
        over = 2 * self.given >= len(self.order())
        return {"epoch": self.epoch + over, "given": 0 if over else self.given}

    def load_state_dict(self, state):
        self.epoch, self.given = state["epoch"], state["given"]
        if self.fault == "off by one" and self.given:
            self.given -= 1
        if self.fault == "only once" and self.state:
            self.given = 0
        if self.fault in ("only once",):
            self.state = state


FAULTS = {
    "none": None,
    "length": "length: len.. must be the number of batches, got 9 for 8",
    "same order": "epochs: the second one must differ",
    "epoch not counted": "epochs: the second one must differ",
    "other samples": "epochs: all must have the same samples, but 1 are missing",
    "by workers": "workers: 2 must give the same batches as 0; in epoch 0 they differ: batch 0",
    "no deal": "ranks: in epoch 0, 16 samples came too often",
    "dealt twice": "ranks: in epoch 0, 8 of 16 samples came to no rank",
    "uneven": r"ranks: all must take as many steps, got \[3, 5\]",
    "off by one": "resume: a state soon after a resume at batch 0 must lead on: batch 0 from there",
    "only once": "resume: a state after 1 of 8 batches must lead on",
    "states change": "resume: a state must not change after it was taken",
    "last batch": "resume: a state taken at the last batch must lead to the next epoch of 8 batches, got 0",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(fault):
    def make(rank, world, num_workers):
        return Faulty(fault, rank, world, num_workers)

    if FAULTS[fault] is None:
        assert check_loader(make).findings == []
        return
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_loader(make)


@needs_torch
def test_torchs_own_loader():
    from torch.utils.data import DataLoader as TorchLoader
    from torch.utils.data import DistributedSampler

    def plain(num_workers):
        return TorchLoader(list(range(N)), 3, shuffle=True, num_workers=num_workers)

    result = check_loader(plain)
    assert result.checked == ["length", "epochs", "workers"]
    assert "has no state_dict" in result.skipped[-1]

    def untold(rank, world):
        return TorchLoader(list(range(N)), 3, sampler=DistributedSampler(range(N), world, rank))

    with pytest.raises(AssertionError, match="epochs: the second one must differ from the first"):
        check_loader(untold)


def test_samples_that_are_dropped_must_be_allowed():
    def make(rank, world):
        return DataLoader(range(25), 2, shard=(rank, world))

    with pytest.raises(AssertionError, match="1 of 25 samples came to no rank: 24"):
        check_loader(make)
    check_loader(make, may_drop=1)

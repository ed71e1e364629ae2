"""`save_generators`: without a seed, too, random augmentations resume bit for bit."""

from __future__ import annotations

import json
import random
from itertools import islice

import numpy as np
import pytest

import headrace
from headrace import DataLoader, Dataset, IterableDataset, Stream, rng
from tests.needs import HAS_TORCH
from tests.resuming import own_generators

pytestmark = pytest.mark.filterwarnings("ignore:The dataset .* is iterated again")


def noise():
    """Of every generator that user code may draw from."""
    drawn = [random.random(), float(np.random.rand()), float(rng().random())]
    if HAS_TORCH:
        import torch

        drawn.append(float(torch.rand(())))
    return drawn


class Augmented(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, noise()


class AugmentedIterable(IterableDataset):
    def __iter__(self):
        worker = headrace.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, 24, step):
            yield number, noise()


class KnowsItsPlace(IterableDataset):
    next = 0

    def __iter__(self):
        worker = headrace.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while first + step * self.next < 24:
            self.next += 1
            yield first + step * (self.next - 1), noise()
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def noisy_collate(samples):
    return [list(sample) for sample in samples], noise()


KINDS = {"by key": Augmented, "iterable": AugmentedIterable, "iterable with a state": KnowsItsPlace}
WORKERS = {"alone": {}, "processes": {"num_workers": 2}, "persistent": {"num_workers": 2, "persistent_workers": True}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("every", [1, 3])
def test_augmentations_resume_bit_for_bit(kind, workers, every):
    def make():
        shuffle = {"shuffle": True} if kind == "by key" else {}
        return DataLoader(
            KINDS[kind](), 3, collate_fn=noisy_collate, save_generators=True, snapshot_every_n_steps=every,
            **shuffle, **WORKERS[workers],
        )  # fmt: skip

    with own_generators(3), make() as loader:
        batches = iter(loader)
        states = []
        whole = []
        for batch in batches:
            whole.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
    for stop in (1, 2, 4, 7):
        with own_generators(99), make() as other:  # whatever the process has drawn
            other.load_state_dict(states[stop - 1])
            resumed = iter(other)
            rest = list(islice(resumed, 1))
            again = json.loads(json.dumps(other.state_dict()))
            rest += resumed
            assert rest == whole[stop:]
        if stop < 7:
            with own_generators(98), make() as third:
                third.load_state_dict(again)
                assert list(third) == whole[stop + 1 :]


def test_without_it_the_state_is_small_and_workers_draw_anew():
    def make(**options):
        return DataLoader(Augmented(), 3, collate_fn=list, num_workers=2, **options)

    sizes = []
    for options in ({}, {"save_generators": True}):
        with make(**options) as loader:
            next(iter(loader))
            sizes.append(len(json.dumps(loader.state_dict()["course"].get("states", []))))
    assert sizes[0] == 2
    assert 5_000 < sizes[1] < 40_000


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"seed": 1}, "random numbers that no seed decides"),
        ({"num_workers": 1, "engine": "threads"}, "needs worker processes"),
        ({"dataset": Stream.from_blocks([0], list)}, "Pass seed= instead"),
    ],
)
def test_what_it_cannot_do_is_refused(arguments, match):
    arguments = {"dataset": Augmented(), **arguments}
    with pytest.raises(ValueError, match=match):
        DataLoader(save_generators=True, **arguments)


def test_a_damaged_generator_is_refused():
    loader = DataLoader(Augmented(), 3, collate_fn=list, save_generators=True)
    next(iter(loader))
    state = loader.state_dict()
    del state["digest"], state["kind"]
    state["course"]["states"][0]["generators"]["python"][1] = "AAAA"
    with pytest.raises(headrace.StateError, match="generators"):
        loader.load_state_dict(state)

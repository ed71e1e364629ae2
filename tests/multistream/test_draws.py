"""What the user's own sequences draw is a function of the seed and the place, and nobody else's business."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest

from headrace import Dataset, rng
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import take, through_json
from tests.needs import HAS_TORCH
from tests.resuming import DRAW, global_generators

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Walks(Dataset):
    """Sequences that begin where chance will have it, and go on from item to item by chance."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 5

    def __getitem__(self, index):
        start = index + DRAW[self.draw]()

        def walk():
            place = start
            for k in range(7 + index):
                place += DRAW[self.draw]() if k % 2 else 0
                yield place

        return walk()


class Late(Walks):
    """Draws nothing for long."""

    def __getitem__(self, index):
        return (DRAW[self.draw]() if k == 6 and index == 3 else float(k) for k in range(9))


class Indexed(Walks):
    """Sequences by key, each item of which is drawn."""

    def __getitem__(self, index):
        return Noisy(self.draw)


class Noisy(Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index + DRAW[self.draw]()


def make(kind, draw, **others):
    return MultiStreamDataLoader(kind(draw), 4, seed=3, **others)


@pytest.mark.parametrize("draw", DRAW)
@pytest.mark.parametrize("kind", [Walks, Late, Indexed])
def test_draws_do_not_depend_on_workers_nor_on_stops(kind, draw):
    undisturbed = take(make(kind, draw), 60)
    assert take(make(kind, draw, num_workers=2), 60) == undisturbed
    for stop in (1, 20, 37):
        loader = make(kind, draw)
        with loader:
            list(islice(loader, stop))
            state = through_json(loader.state_dict())
        loader = make(kind, draw, num_workers=1, engine="processes")
        loader.load_state_dict(state)
        assert take(loader, 60 - stop) == undisturbed[stop:]


def test_threads_share_all_but_rng():
    assert take(make(Walks, "rng", engine="threads", num_workers=3), 60) == take(make(Walks, "rng"), 60)


def test_other_seeds_and_epochs_draw_otherwise():
    loader = make(Walks, "rng")
    first, second = (take(loader, 20) for _ in range(2))
    other = take(MultiStreamDataLoader(Walks("rng"), 4, seed=4), 20)
    assert len({str(first), str(second), str(other)}) == 3


def test_the_loop_keeps_its_own_generators():
    before = global_generators()
    own = rng().random(), random.random(), np.random.random()
    again = global_generators()
    for kind in (Walks, Indexed):
        take(make(kind, "random"), 20)
        take(make(kind, "numpy"), 20)
        take(make(kind, "torch" if HAS_TORCH else "numpy"), 20)
    take(MultiStreamDataLoader([np.arange(9)], 4, num_workers=1), 20)
    assert str(global_generators()) == str(again)
    assert len(own) == len(before)


def test_counting_leaves_the_generators_alone():
    before = str(global_generators())

    def noise():
        return (random.random() for _ in range(10))

    loader = MultiStreamDataLoader(noise, 2, assign="offset")
    assert str(global_generators()) == before
    assert take(loader, 12) == take(MultiStreamDataLoader(noise, 2, assign="offset", num_workers=2), 12)

"""With a seed, batches are a function of the seed, the epoch and the position: whoever makes them, and when."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
    rng,
)
from headrace.base.generators import GENERATORS
from headrace.testing import DyingDataset
from tests.needs import as_lists, needs_torch
from tests.resuming import (
    DRAW,
    ORDERS,
    Config,
    Eager,
    Lazy,
    Noisy,
    Way,
    own_generators,
    plain,
    run,
    seed_generators,
    ways,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SEEDED_ORDERS = [order for order in ORDERS if order != "with a state"]


class Each(Dataset):
    """Gives what a function makes of the index."""

    def __init__(self, fn, n=8):
        self.fn = fn
        self.n = n

    def __getitem__(self, index):
        return self.fn(index)

    def __len__(self):
        return self.n


# The same, whoever makes it


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 40),
    order=st.sampled_from(SEEDED_ORDERS),
    batch_size=st.sampled_from([1, 4, None]),
    seed=st.integers(-(2**70), 2**70),
    draw=st.sampled_from(list(DRAW)),
    way=ways("any order"),
)
def test_batches_do_not_depend_on_the_order_in_which_they_are_made(n, order, batch_size, seed, draw, way):
    config = Config(n, order, batch_size, seed=seed, draw=draw)
    with own_generators():
        want = run(config.loader(), 2)
        seed_generators(7)
        assert run(config.loader(way), 2) == want


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("order", ["shuffled", "weighted", "eager", "buckets"])
def test_threads_give_the_same(order, workers, persistent):
    config = Config(30, order, seed=3, draw="rng")
    assert run(config.loader(Way("threads", workers, persistent=persistent)), 3) == run(config.loader(), 3)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("draw", DRAW)
def test_processes_give_the_same(draw, workers):
    config = Config(30, seed=3, draw=draw)
    assert run(config.loader(Way("fork", workers, persistent=workers == 2)), 2) == run(config.loader(), 2)


def test_spawned_processes_give_the_same():
    config = Config(seed=3, draw="random")
    assert run(config.loader(Way("spawn", 1)), 1) == run(config.loader(), 1)


@pytest.mark.filterwarnings("ignore:.*died", "ignore:.*killed", "ignore:.*replaced")
@pytest.mark.parametrize("chance", range(3))
def test_workers_that_are_killed_and_replaced_give_the_same(chance, tmp_path):
    victims = dict.fromkeys(random.Random(chance).sample(range(40), 4), "kill")

    def make(data, **others):
        return DataLoader(data, 4, shuffle=True, seed=chance, **others)

    want = run(make(Noisy(40, "random")), 1)
    dying = DyingDataset(Noisy(40, "random"), victims, once_in=tmp_path)
    workers = {"num_workers": 1 + chance % 2, "multiprocessing_context": "fork", "on_worker_death": "restart"}
    assert run(make(dying, **workers), 1) == want
    assert len(list(tmp_path.iterdir())) == 4


def test_the_workers_own_seeds_are_a_function_of_the_seed_and_the_epoch():
    def seeds(epochs):
        with DataLoader(
            Each(lambda index: get_worker_info().seed), 4, seed=2, num_workers=1, engine="threads"
        ) as loader:
            return [plain(batch) for _ in range(epochs) for batch in loader]

    with own_generators(1):
        first = seeds(2)
    with own_generators(2):
        assert seeds(2) == first
    assert first[0] != first[2]


def test_a_billion_samples_are_shuffled_at_once():
    loader = DataLoader(range(10**9), 4, shuffle=True, seed=1)
    first = plain(next(iter(loader)))
    assert len(loader) == 250_000_000
    loader.seek(200_000_000)
    later = plain(next(iter(loader)))
    assert len({*first, *later}) == 8
    assert loader.state_dict()["course"]["position"] == 4 * 200_000_001


# Each sample has its own


def noise(**arguments):
    """What is drawn for each sample, in the order of the samples."""
    config = Config(**{"seed": 3, "draw": "rng", **arguments})
    return [number for _, batch in run(config.loader(), 1) for number in np.ravel(batch[1]).tolist()]


@pytest.mark.parametrize("draw", [draw for draw in DRAW if draw != "nothing"])
def test_samples_draw_numbers_of_their_own(draw):
    drawn = noise(draw=draw)
    assert len(set(drawn)) == len(drawn) == 20


@pytest.mark.parametrize("batch_size", [1, 5, None])
@pytest.mark.parametrize("order", ["shuffled", "eager", "weighted"])
def test_what_a_sample_draws_does_not_depend_on_the_batch_size(order, batch_size):
    assert noise(order=order, batch_size=batch_size) == noise(order=order, batch_size=3)


def test_what_a_sample_draws_goes_by_its_position_not_by_its_index():
    """So a sample that comes twice is augmented in two ways."""
    loader = DataLoader(Noisy(4, "rng"), sampler=[1, 1, 2, 1], seed=1)
    drawn = [plain(batch)[1][0] for batch in loader]
    assert len(set(drawn)) == 4


def test_other_seeds_and_epochs_have_other_orders_and_other_noise():
    orders, noises = set(), set()
    for seed in (0, 1, -1, 2**64):
        for _, batch in run(Config(20, batch_size=20, seed=seed, draw="rng").loader(), 3):
            orders.add(str(batch[0]))
            noises.add(str(batch[1]))
    assert len(orders) == len(noises) == 12


def test_what_one_sample_draws_does_not_shift_the_next():
    def some(index):
        return [random.random() for _ in range(index)][-1]

    def more(index):
        return [random.random() for _ in range(index)][-1] if index != 3 else sum(random.random() for _ in range(99))

    first, second = (
        [plain(batch)[0] for batch in DataLoader(Each(fn, 9), sampler=range(1, 9), seed=1)] for fn in (some, more)
    )
    assert [i for i in range(8) if first[i] != second[i]] == [2]


def test_a_collate_function_draws_for_its_batch():
    def collate(samples):
        return samples, float(rng().random()), random.random()

    def make(**others):
        return DataLoader(Noisy(12, "random"), 3, collate_fn=collate, seed=1, **others)

    want = run(make(), 2)
    assert run(make(num_workers=2, multiprocessing_context="fork"), 2) == want
    assert len({batch[1] for _, batch in want}) == len({batch[2] for _, batch in want}) == 8


def test_a_dataset_that_gives_whole_batches_draws_for_the_batch():
    class Whole(Noisy):
        def __getitems__(self, indices):
            return [(index, float(rng().random()), random.random()) for index in indices]

    def make(**others):
        return DataLoader(Whole(12), 3, seed=1, **others)

    want = run(make(), 1)
    assert run(make(num_workers=2, multiprocessing_context="fork"), 1) == want
    assert len({number for _, batch in want for number in batch[1]}) == 12


# The training loop's own generators


def snapshot():
    return [generator.glance() for generator in GENERATORS]


@pytest.mark.parametrize("order", SEEDED_ORDERS)
@pytest.mark.parametrize("draw", DRAW)
def test_the_loops_generators_are_left_as_they_are(order, draw):
    with own_generators():
        before = snapshot()
        for batch in Config(order=order, seed=1, draw=draw).loader():
            assert snapshot() == before
            del batch
        assert snapshot() == before


@pytest.mark.parametrize("draw", ["random", "numpy", "a normal number of numpy"])
def test_also_if_a_dataset_begins_late_to_draw(draw):
    """What is drawn from is learned from the first batch, and later ones are watched."""

    def late(index):
        return DRAW[draw]() if index >= 4 else 0.0

    with own_generators():
        before = snapshot()
        loader = DataLoader(Each(late), 2, seed=1)
        first = []
        for batch in loader:
            assert snapshot() == before
            first.append(plain(batch))
        seed_generators(5)
        assert as_lists(DataLoader(Each(late), 2, seed=1)) == first
    assert len({*first[2], *first[3]}) == 4


@needs_torch
def test_also_if_it_begins_late_to_draw_from_torch():
    test_also_if_a_dataset_begins_late_to_draw("torch")


def test_a_normal_number_that_was_drawn_ahead_is_nobodys():
    """NumPy draws them in pairs, and keeps the second."""

    def late(index):
        return float(np.random.randn()) if index == 2 else 0.0

    def run_after(n_draws):
        np.random.seed(0)
        for _ in range(n_draws):
            np.random.randn()
        return as_lists(DataLoader(Each(late, 4), seed=1))

    with own_generators():
        assert run_after(0) == run_after(1)


def test_a_dataset_that_raises_leaves_the_loops_generators_too():
    def bad(index):
        random.random()
        raise ValueError("bad")

    with own_generators():
        before = snapshot()
        with pytest.raises(ValueError, match="bad"):
            next(iter(DataLoader(Each(bad), seed=1)))
        assert snapshot() == before


@pytest.mark.parametrize("sampler", [Eager, Lazy])
def test_a_sampler_of_ones_own_finds_seeded_generators_and_nobody_else_does(sampler):
    def order():
        return as_lists(DataLoader(range(100), 10, sampler=sampler(100), seed=4))

    with own_generators(1):
        before = snapshot()
        first = order()
        assert snapshot() == before
    with own_generators(2):
        assert order() == first


def test_a_stream_draws_by_its_own_generators_too():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(np.random.permutation(10).tolist())

    def order():
        loader = DataLoader(Stream(), batch_size=2, seed=1)
        return [as_lists(loader), as_lists(loader)]

    with own_generators(1):
        before = snapshot()
        first = order()
        assert snapshot() == before
    with own_generators(2):
        assert order() == first
    assert first[0] != first[1]


def test_without_a_seed_nothing_is_seeded():
    """A dataset draws from the loop's generator, as in torch."""
    with own_generators(1):
        want = [random.random() for _ in range(4)]
    with own_generators(1):
        assert [plain(batch)[0] for batch in DataLoader(Each(lambda index: random.random(), 4))] == want


# `rng`


def test_rng_outside_of_samples_is_kept_by_a_loop():
    own = rng()
    for _ in DataLoader(Each(lambda index: float(rng().random())), seed=1):
        assert rng() is own


def test_rng_in_nested_loaders():
    def nested(index):
        list(DataLoader(range(3), seed=9))
        return float(rng().random())

    with own_generators(1):
        first = as_lists(DataLoader(Each(nested, 3), seed=1))
    with own_generators(2):
        assert as_lists(DataLoader(Each(nested, 3), seed=1)) == first
    assert first == as_lists(DataLoader(Each(lambda index: float(rng().random()), 3), seed=1))


def test_rng_without_a_seed_differs_between_workers():
    rng()  # in this process, too
    with DataLoader(Each(lambda index: float(rng().random())), num_workers=2, multiprocessing_context="fork") as loader:
        assert len({plain(batch)[0] for batch in loader}) == 8


def test_rng_does_not_repeat_within_a_sample():
    loader = DataLoader(Each(lambda index: [float(rng().random()), float(rng().random())], 3), seed=1)
    drawn = [number for batch in loader for number in np.ravel(plain(batch)).tolist()]
    assert len(set(drawn)) == 6


# Refusals


@pytest.mark.parametrize("seed", [1.0, "1", True, np.float64(3)])
def test_a_seed_must_be_an_int(seed):
    with pytest.raises(TypeError, match="seed must be an int or None"):
        DataLoader(range(4), seed=seed)


def test_a_seed_may_be_any_integer():
    loader = DataLoader(range(9), shuffle=True, seed=np.int64(3))
    assert as_lists(loader) == as_lists(DataLoader(range(9), shuffle=True, seed=3))
    json.dumps(loader.state_dict())


def test_a_seed_excludes_a_generator():
    with pytest.raises(ValueError, match="mutually exclusive with generator"):
        DataLoader(range(4), shuffle=True, seed=1, generator=np.random.Generator(np.random.PCG64(1)))


@pytest.mark.parametrize(
    "sampler",
    [
        lambda generator: RandomSampler(range(4), generator=generator),
        lambda generator: SubsetRandomSampler([1, 2], generator=generator),
        lambda generator: WeightedRandomSampler([1.0, 2.0], 3, generator=generator),
    ],
    ids=["RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"],
)
def test_a_seed_excludes_a_sampler_that_has_a_generator(sampler):
    generator = np.random.Generator(np.random.PCG64(1))
    with pytest.raises(ValueError, match="Sampler has one"):
        DataLoader(range(4), sampler=sampler(generator), seed=1)
    with pytest.raises(ValueError, match="Sampler has one"):
        DataLoader(range(4), sampler=sampler(generator), shard=(0, 2))


def test_the_loops_own_numbers_do_not_change_the_batches():
    """And the other way round: a loop may draw between the batches."""

    def batches(draws):
        given = []
        for batch in Config(seed=1, draw="random").loader():
            given.append(plain(batch))
            for _ in range(draws):
                random.random()
        return given

    with own_generators():
        assert batches(0) == batches(3)

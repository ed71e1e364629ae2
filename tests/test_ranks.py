"""Any order is spread over ranks by position, and what is left of it over others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, StateError
from headrace.testing import HandDrivenEngine
from tests.needs import as_lists, needs_torch
from tests.resuming import INLINE, ORDERS, Config, Way, epochs_of, run, stop_after, through_json

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EVEN = ["drop", "pad", "repeat", "allow"]
BATCHED = [order for order in ORDERS if "batch_sampler" in ORDERS[order](3)]
CUT = ["batches of a sampler", "torch, batches"]  # from a sampler: they are dealt out by sample
SEEDED = [order for order in ORDERS if order not in ("with a state", *CUT)]


def positions(n, start, rank, world, even, size):
    """Which of the n positions of an order, from `start` on, a rank gets; those after the last go round again."""
    left = n - start
    match even:
        case "drop":
            count = left // world
        case "allow":
            count = len(range(rank, left, world))
        case "pad":
            count = -(-left // world)
        case _:
            count = -(-left // (world * size)) * size
    return [start + rank + i * world for i in range(count)] if left > 0 else []


def cut(items, size, drop_last):
    batches = [items[i : i + size] for i in range(0, len(items), size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


def pairs(batch):
    """The samples of a batch: index and noise."""
    indices, noise = batch
    return list(zip(np.ravel(indices).tolist(), np.ravel(noise).tolist(), strict=True))


def whole(order, n):
    """All samples of an order without ranks, or its batches."""
    batches = [pairs(batch) for _, batch in run(Config(n, order, None, seed=7, draw="rng").loader(), 1)]
    return batches if order in BATCHED else [pair for batch in batches for pair in batch]


def expected(order, items, own, size, drop_last):
    """The batches of these positions. What goes round again has the same indices, but noise of its own."""
    n = len(items)
    known = [items[i] if i < n else _without_noise(items[i % n]) for i in own]
    return known if order in BATCHED else cut(known, size, drop_last)


def _without_noise(item):
    return [(index, None) for index, _ in item] if isinstance(item, list) else (item[0], None)


def alike(batch, want):
    got = pairs(batch)
    return [(i, None if w[1] is None else x) for (i, x), w in zip(got, want, strict=True)] == want


CONFIGS = {
    "order": st.sampled_from(SEEDED),
    "n": st.integers(1, 50),
    "world": st.integers(1, 5),
    "even": st.sampled_from(EVEN),
    "batch_size": st.sampled_from([1, 2, 5, None]),
    "drop_last": st.booleans(),
}


def rank_loader(order, n, rank, world, even, batch_size, drop_last, way=INLINE):
    config = Config(n, order, batch_size, drop_last, seed=7, draw="rng")
    return config.loader(way, shard=(rank, world), even=even)


@settings(deadline=None, max_examples=100)
@given(**CONFIGS)
def test_any_order_over_any_number_of_ranks(order, n, world, even, batch_size, drop_last):
    items = whole(order, n)
    size = 1 if order in BATCHED else batch_size or 1
    drop_last = drop_last and batch_size is not None and order not in BATCHED
    for rank in range(world):
        loader = rank_loader(order, n, rank, world, even, batch_size, drop_last)
        own = positions(len(items), 0, rank, world, even, size)
        want = expected(order, items, own, size, drop_last)
        got = [batch for _, batch in run(loader, 1)]
        assert len(got) == len(want)
        assert all(map(alike, got, want))
        if order != "a batch sampler of one's own":  # which has no length
            assert len(loader) == len(want)


@settings(deadline=None, max_examples=80)
@given(**CONFIGS, stop=st.integers(1, 8), others=st.integers(1, 5), size=st.sampled_from([1, 3, 4]), data=st.data())
def test_another_number_of_ranks_and_another_batch_size(
    order, n, world, even, batch_size, drop_last, stop, others, size, data
):
    """A state that any rank has taken fits all ranks, and other ones; together they give exactly the rest."""
    items = whole(order, n)
    loaders = [rank_loader(order, n, rank, world, even, batch_size, drop_last) for rank in range(world)]
    taken = [stop_after(loader, stop, 1) for loader in loaders]
    states = [state["course"] for given, state in taken if len(given) == stop]
    if len(states) < world:
        return  # the epoch is over before
    assert states == [states[0]] * world
    state = taken[data.draw(st.integers(0, world - 1))][1]
    size = batch_size if batch_size is None else size
    start = min(len(items), stop * world * (1 if order in BATCHED else batch_size or 1))
    per_batch = 1 if order in BATCHED else size or 1
    drop_last = drop_last and batch_size is not None and order not in BATCHED
    for rank in range(others):
        loader = rank_loader(order, n, rank, others, even, size, drop_last)
        loader.load_state_dict(state)
        own = positions(len(items), start, rank, others, even, per_batch)
        want = expected(order, items, own, per_batch, drop_last)
        got = [batch for _, batch in epochs_of(loader, 0, 1)]
        assert len(got) == len(want)
        assert all(map(alike, got, want))


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("order", ["shuffled", "weighted", "eager", "buckets"])
def test_ranks_have_equally_many_batches_unless_it_is_allowed(order, even):
    counts = set()
    for rank in range(3):
        batches = run(rank_loader(order, 31, rank, 3, even, 4, False), 1)
        counts.add(tuple(len(batch[0]) if order != "buckets" else 1 for _, batch in batches))
    assert len(counts) == 1 or even == "allow"


def test_repeat_fills_all_batches():
    for rank in range(3):
        batches = run(rank_loader("shuffled", 31, rank, 3, "repeat", 4, False), 1)
        assert [len(batch[0]) for _, batch in batches] == [4, 4, 4]


@pytest.mark.parametrize("order", ["shuffled", "weighted, each once", "eager", "told the epoch", "torch, shuffled"])
def test_epochs_agree_on_every_rank(order):
    if order not in ORDERS:
        pytest.skip("needs torch")
    runs = [run(Config(20, order, 2).loader(shard=(rank, 4)), 3) for rank in range(4)]
    for epoch in range(3):
        indices = [i for given in runs for number, batch in given if number == epoch for i in batch[0]]
        assert sorted(indices) == list(range(20))
    assert len({str([batch for number, batch in runs[0] if number == epoch]) for epoch in range(3)}) == 3


def test_a_shard_implies_seed_zero():
    ranks = [run(Config(20).loader(shard=(rank, 2)), 1) for rank in range(2)]
    assert ranks == [run(Config(20, seed=0).loader(shard=(rank, 2)), 1) for rank in range(2)]


def test_one_rank_of_one_is_the_whole():
    assert run(Config(seed=3).loader(shard=(0, 1)), 2) == run(Config(seed=3).loader(), 2)


@pytest.mark.parametrize("even", EVEN)
def test_empty_data(even):
    assert [as_lists(DataLoader([], 2, shard=(rank, 3), even=even)) for rank in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    ("even", "want"),
    [
        ("drop", [[], [], []]),
        ("pad", [[[0]], [[1]], [[0]]]),
        ("repeat", [[[0, 1]], [[1, 0]], [[0, 1]]]),
        ("allow", [[[0]], [[1]], []]),
    ],
)
def test_fewer_samples_than_ranks(even, want):
    assert [as_lists(DataLoader(range(2), 2, shard=(rank, 3), even=even)) for rank in range(3)] == want


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("world", [2, 3])
def test_a_sampler_without_a_length(even, world):
    class Unsized:
        def __iter__(self):
            return iter(range(7))

    for rank in range(world):
        own, sized = (
            as_lists(DataLoader(range(14), 2, sampler=sampler, shard=(rank, world), even=even))
            for sampler in (Unsized(), range(7))
        )
        assert own == sized


def test_a_sampler_that_is_dealt_out_already_is_not_dealt_twice():
    """shard=None keeps torch's meaning, with a seed too."""
    given = []
    for rank in range(2):
        sampler = DistributedSampler(range(20), num_replicas=2, rank=rank)
        loader = DataLoader(range(20), 2, sampler=sampler, seed=5)
        batches = as_lists(loader)
        assert len(batches) == len(loader) == 5
        given += [index for batch in batches for index in batch]
    assert sorted(given) == list(range(20))


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_that_cuts_a_sampler_is_dealt_out_by_sample(even, drop_last):
    """As if the loader had cut it: all ranks have full batches, not every n-th batch of others."""
    for rank in range(3):
        shard = {"shard": (rank, 3), "even": even, "seed": 4}
        cut_before = DataLoader(range(20), batch_sampler=BatchSampler(RandomSampler(range(20)), 3, drop_last), **shard)
        cut_here = DataLoader(range(20), 3, shuffle=True, drop_last=drop_last, **shard)
        assert as_lists(cut_before) == as_lists(cut_here)
        assert len(cut_before) == len(cut_here)


def test_workers_make_no_difference():
    for rank in range(2):
        arguments = ("shuffled", 31, rank, 2, "pad", 3, False)
        assert run(rank_loader(*arguments, Way("threads", 2)), 2) == run(rank_loader(*arguments), 2)


def test_batches_given_ahead_fit_only_their_own_rank():
    def make(rank, world):
        engine = HandDrivenEngine(max, capacity=3)
        return DataLoader(range(24), 2, shuffle=True, shard=(rank, world), in_order=False, engine=engine)

    _, state = stop_after(make(1, 2), 1, 1)
    for rank, world in ((0, 2), (1, 3)):
        with pytest.raises(StateError, match="must be loaded with the same batch_size, rank and world"):
            make(rank, world).load_state_dict(state)
    loader = make(1, 2)
    loader.load_state_dict(state)
    assert len(as_lists(loader)) == 5


# Which rank this is


def auto(**others):
    return DataLoader(range(12), 2, shard="auto", **others)


@pytest.fixture
def _no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_launcher")
@pytest.mark.parametrize(
    "names",
    [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")],
)
def test_the_environment_tells_the_rank(monkeypatch, names):
    monkeypatch.setenv(names[0], "2")
    monkeypatch.setenv(names[1], "3")
    assert as_lists(auto()) == [[2, 5], [8, 11]]


@pytest.mark.usefixtures("_no_launcher")
def test_without_a_launcher_there_is_one_rank():
    assert len(as_lists(auto())) == 6


@needs_torch
@pytest.mark.usefixtures("_no_launcher")
def test_torch_distributed_tells_the_rank_before_the_environment_does(monkeypatch):
    from torch import distributed

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert len(as_lists(auto())) == 6
    finally:
        distributed.destroy_process_group()
    assert len(as_lists(auto())) == 2


# Refusals


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0), (0,), "all", 3, (0.0, 2), ("0", "2"), {}])
def test_what_is_no_shard(shard):
    with pytest.raises(ValueError, match="shard must be"):
        DataLoader(range(4), shard=shard)


def test_what_is_no_way_to_be_even():
    with pytest.raises(ValueError, match="even must be one of 'drop', 'pad', 'repeat', 'allow', 'agree', got 'fill'"):
        DataLoader(range(4), shard=(0, 2), even="fill")


def test_a_shard_excludes_a_generator():
    with pytest.raises(ValueError, match="mutually exclusive with generator"):
        DataLoader(range(4), shuffle=True, generator=np.random.Generator(np.random.PCG64(1)), shard=(0, 2))


def test_a_stream_of_ones_own_is_not_dealt_out():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    with pytest.raises(ValueError, match="must read its own part"):
        DataLoader(Stream(), shard=(0, 2))


def test_a_state_tells_nothing_of_the_ranks():
    _, state = stop_after(Config(20).loader(shard=(1, 2)), 2, 1)
    assert through_json(state)["course"]["position"] == 2 * 3 * 2
    assert "rank" not in str(state)

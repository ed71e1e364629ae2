"""What trainers rely on in a loader: torch's classes, arguments that can be read back, ranks, and epochs."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import headrace
from headrace import DataLoader, MultiStreamDataLoader, Stream
from tests.needs import needs_torch

DATA = list(range(12))


class Gang:
    """Stands for `torch.distributed`, which is initialised at some moment."""

    def __init__(self) -> None:
        self.rank, self.world = 0, 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.world > 0

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world

    def start(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world


@pytest.fixture
def gang(monkeypatch):
    made = Gang()
    monkeypatch.setattr("headrace.order.shard.loaded", lambda name: made if name == "torch.distributed" else None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return made


def rebuilt(loader):
    """As Lightning does it: by the attributes that have the names of arguments, where they are not the defaults."""
    parameters = inspect.signature(type(loader).__init__).parameters
    values = {**vars(loader), "multiprocessing_context": loader.multiprocessing_context}
    kept = {n: values[n] for n, p in parameters.items() if n in values and values[n] is not p.default}
    kept |= {"sampler": loader.sampler, "batch_sampler": None, "shuffle": False}
    return type(loader)(**kept)


def rows(loader):
    return [batch.tolist() for batch in loader]


@needs_torch
def test_the_classes_are_torchs():
    from torch.utils import data

    for name in (
        "DataLoader", "Sampler", "SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler",
        "BatchSampler", "DistributedSampler",
    ):  # fmt: skip
        assert issubclass(getattr(headrace, name), getattr(data, name)), name
    loader = DataLoader(DATA, 2, shuffle=True)
    assert isinstance(loader.batch_sampler, data.BatchSampler)
    assert isinstance(loader.sampler, data.RandomSampler)
    assert loader._iterator is None


@needs_torch
@pytest.mark.parametrize("shard", ["auto", (1, 2)])
def test_the_sampler_of_a_shard_is_a_distributed_one(shard):
    from torch.utils.data import DistributedSampler

    loader = DataLoader(DATA, 2, shuffle=True, shard=shard)
    assert isinstance(loader.sampler, DistributedSampler)
    assert loader.shard == shard
    keys = list(loader.sampler)
    assert keys == [key for batch in rows(loader) for key in batch]
    assert len(loader.sampler) == len(keys)
    assert (loader.sampler.rank, loader.sampler.num_replicas) == ((0, 1) if shard == "auto" else shard)
    assert not isinstance(DataLoader(DATA, 2, shuffle=True, seed=1).sampler, DistributedSampler)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "seed": 5},
        {"shuffle": True, "shard": (1, 2), "even": "pad"},
        {"seed": 5, "on_error": "skip", "max_errors": 3, "num_workers": 2, "engine": "threads"},
        {"shuffle": True, "seed": 5, "drop_last": True, "output": "numpy"},
    ],
    ids=str,
)
def test_a_loader_that_is_built_again_gives_the_same(options, tmp_path):
    if "on_error" in options:
        options = {**options, "quarantine": tmp_path / "bad.jsonl"}
    loader = DataLoader(DATA, 5, **options)
    again = rebuilt(loader)
    assert rows(again) == rows(loader)
    assert rows(again) == rows(loader)  # and in the next epoch
    assert {n: vars(again)[n] for n in ("shard", "even", "seed", "quarantine")} == {
        n: vars(loader)[n] for n in ("shard", "even", "seed", "quarantine")
    }


def test_the_sampler_of_a_seed_gives_the_order_of_the_loader():
    loader = DataLoader(DATA, 5, shuffle=True, seed=5)
    first, second = rows(loader), rows(loader)
    for epoch, expected in enumerate([first, second]):
        loader.sampler.set_epoch(epoch)
        assert list(loader.sampler) == [key for batch in expected for key in batch]
        assert rows(DataLoader(DATA, batch_sampler=loader.batch_sampler)) == expected


@pytest.mark.parametrize("shard", [None, (1, 2)])
def test_the_epoch_can_be_chosen_at_the_sampler(shard):
    def epochs(choose):
        loader = DataLoader(DATA, 2, shuffle=True, seed=3, shard=shard)
        seen = [rows(loader)]
        choose(loader)
        return [*seen, loader.state_dict()["epoch"], rows(loader), rows(loader)]

    for epoch in (0, 1, 7):
        told = epochs(lambda loader, epoch=epoch: loader.sampler.set_epoch(epoch))
        assert told == epochs(lambda loader, epoch=epoch: loader.set_epoch(epoch))
        assert told[1] == epoch


def test_a_state_in_the_middle_survives_the_epoch_that_a_trainer_tells():
    loader = DataLoader(DATA, 2, shuffle=True, seed=3)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = rows(iterator)
    resumed = DataLoader(DATA, 2, shuffle=True, seed=3)
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(1)
    assert rows(resumed) == expected


def test_a_users_sampler_that_was_told_an_epoch_keeps_it():
    def second(tell):
        sampler = headrace.DistributedSampler(DATA, 2, 1)
        loader = DataLoader(DATA, 2, sampler=sampler, seed=3)
        tell(sampler, loader)
        return rows(loader)

    told = second(lambda sampler, loader: sampler.set_epoch(4))
    assert told == second(lambda sampler, loader: loader.set_epoch(4)) != second(lambda sampler, loader: None)


# Ranks


def numbers(known=True):
    return Stream.from_blocks([(0, 4), (4, 8), (8, 12)], read_block, counts=[4, 4, 4] if known else None)


def read_block(block):
    return range(*block)


KINDS = {
    "keys": lambda: DataLoader(DATA, 2, shuffle=True, shard="auto"),
    "stream": lambda: DataLoader(numbers(), 2),
    "stream in workers": lambda: DataLoader(numbers(), 2, num_workers=2, engine="threads"),
    "lanes": lambda: MultiStreamDataLoader(
        [[i] for i in DATA], 4, assign="partition", cycle=False, shard="auto", output="numpy"
    ),
    "lanes in workers": lambda: MultiStreamDataLoader(
        [[i] for i in DATA], 4, assign="partition", cycle=False, shard="auto", num_workers=2, engine="threads"
    ),
}


def seen_by(make, gang, rank, *, early):
    if early:
        gang.start(rank, 2)
        loader = make()
    else:
        gang.start(0, 0)
        loader = make()
        pickle.dumps(loader)
        gang.start(rank, 2)
    length = len(loader)
    batches = [batch[0] if isinstance(batch, (tuple, list)) else batch for batch in loader]
    assert length == len(batches)
    return [row for batch in batches for row in batch.reshape(-1).tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_may_become_known_after_the_loader_is_made(kind, gang):
    early, late = ([seen_by(KINDS[kind], gang, rank, early=early) for rank in (0, 1)] for early in (True, False))
    assert late == early
    assert sorted(late[0] + late[1]) == DATA


def test_ranks_are_settled_when_an_epoch_begins(gang):
    loader = DataLoader(DATA, 2, shard="auto")
    assert len(loader) == 6
    gang.start(1, 2)
    assert len(loader) == 3
    iterator = iter(loader)
    next(iterator)
    gang.start(0, 3)
    assert len(rows(iterator)) == 2


class Mesh:
    """Stands for torch's DeviceMesh: who is asked for is at these coordinates."""

    def __init__(self, sizes, names, at):
        self.mesh_dim_names, self._sizes, self._at, self.ndim = names, sizes, at, len(sizes)

    def size(self, dim=None):
        return self._sizes[0 if dim is None else dim]

    def get_local_rank(self, name=None):
        return self._at[0 if name is None else self.mesh_dim_names.index(name)]

    def get_coordinate(self):
        return self._at


@pytest.mark.parametrize(
    ("sizes", "names", "at", "dims", "expected"),
    [
        ((4,), None, [3], None, (3, 4)),
        ((4,), ("any",), [3], None, (3, 4)),
        ((2, 3), ("dp", "tp"), [1, 2], None, (1, 2)),
        ((2, 3), ("pp", "mine"), [1, 2], "mine", (2, 3)),
        ((2, 3, 2), ("dp_replicate", "dp_shard", "cp"), [1, 2, 0], None, (5, 6)),
        ((2, 3, 2), ("dp_replicate", "dp_shard", "cp"), [1, 2, 1], ("dp_shard",), (2, 3)),
    ],
)
def test_a_mesh_says_which_part_is_for_whom(sizes, names, at, dims, expected):
    mesh = Mesh(sizes, names, at)
    loader = DataLoader(DATA, 2, shuffle=True, seed=1, shard=mesh if dims is None else (mesh, dims))
    assert rows(loader) == rows(DataLoader(DATA, 2, shuffle=True, seed=1, shard=expected))


MESHED = {
    "stream": lambda shard: DataLoader(numbers(), 2, shard=shard, seed=1),
    "lanes": lambda shard: MultiStreamDataLoader(
        [[i] for i in DATA], 4, assign="partition", cycle=False, shard=shard, output="numpy"
    ),
}


@pytest.mark.parametrize("kind", MESHED)
def test_a_mesh_gives_peers_the_same_part_of_every_kind(kind):
    parts = [
        [as_lists(MESHED[kind](Mesh((2, 2), ("dp", "tp"), [data, tensor]))) for tensor in (0, 1)] for data in (0, 1)
    ]
    assert parts[0][0] == parts[0][1] != parts[1][0] == parts[1][1]
    assert parts[1][0] == as_lists(MESHED[kind]((1, 2)))


@needs_torch
def test_a_mesh_of_torch():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        assert len(rows(DataLoader(DATA, 2, shard=mesh))) == 6
        assert len(rows(DataLoader(DATA, 2, shard=(mesh, "dp")))) == 6
        with pytest.raises(ValueError, match="one of \\('dp', 'tp'\\), got \\('ep',\\)"):
            DataLoader(DATA, 2, shard=(mesh, "ep"))
    finally:
        dist.destroy_process_group()


def test_a_mesh_without_a_data_parallel_dimension_is_refused():
    with pytest.raises(ValueError, match="must name the data-parallel dimension"):
        DataLoader(DATA, 2, shard=Mesh((2, 2), ("pp", "tp"), [0, 0]))


def test_every_rank_getting_everything_is_told_once(gang):
    gang.start(1, 2)
    loader = DataLoader(DATA, 2)
    with pytest.warns(UserWarning, match='Each of the 2 ranks gets all of the data.*shard="auto"') as caught:
        first = rows(loader)
    assert (len(caught), len(first), rows(loader)) == (1, 6, first)
    for options in (
        {"shard": (0, 1)},
        {"shard": "auto"},
        {"sampler": headrace.DistributedSampler(DATA, 2, 1)},
        {"sampler": [3, 1]},
        {"batch_sampler": [[3, 1]], "batch_size": 1},
    ):
        rows(DataLoader(DATA, **{"batch_size": 2, **options}))
    lanes = MultiStreamDataLoader([[1], [2]], 2, assign="partition", cycle=False)
    with pytest.warns(UserWarning, match="Each of the 2 ranks gets all of the positions"):
        list(lanes)


# States


def last_of(make, state_after):
    loader = make()
    for n, _ in enumerate(loader, 1):
        if n == state_after:
            return loader.state_dict()
    return loader.state_dict()


LAST = {
    "by key": lambda: DataLoader(DATA, 5, shuffle=True, seed=3),
    "by key, in torch's order": lambda: DataLoader(DATA, 5),
    "a sampler with a length": lambda: DataLoader(DATA, 5, sampler=[3, 1, 2, 0, 7, 5, 6, 4, 9, 8, 11]),
    "a stream of known length": lambda: DataLoader(numbers(), 5),
    "a stream of unknown length": lambda: DataLoader(numbers(known=False), 5),
    "in threads": lambda: DataLoader(DATA, 5, seed=3, num_workers=2, engine="threads"),
    "a stream in threads": lambda: DataLoader(numbers(), 5, num_workers=2, engine="threads"),
    "lanes": lambda: MultiStreamDataLoader([[i] for i in DATA], 4, assign="partition", cycle=False),
}


@pytest.mark.parametrize("kind", LAST)
def test_a_state_after_the_last_batch_means_the_next_epoch(kind):
    make = LAST[kind]
    whole = make()
    list(whole)
    second = as_lists(whole)
    n = len(as_lists(make()))
    resumed = make()
    resumed.load_state_dict(last_of(make, n))
    assert as_lists(resumed) == second
    assert resumed.state_dict()["epoch"] == 2


def as_lists(loader):
    return [[np.asarray(part).tolist() for part in batch] for batch in loader]


# Epochs of loaders that have no order by key: trainers choose them at `loader.sampler`, too.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["stream", "stream of unknown length", "lanes"])
def test_the_epoch_of_a_stream_or_of_lanes_can_be_chosen_at_the_sampler(kind, workers):
    options = {"num_workers": workers, "engine": "threads"}
    makers = {
        "stream": lambda: DataLoader(numbers().shuffle(), 2, seed=3, **options),
        "stream of unknown length": lambda: DataLoader(numbers(known=False).shuffle(), 2, seed=3, **options),
        "lanes": lambda: MultiStreamDataLoader(
            [[i, i + 1] for i in DATA], 4, assign="shuffle", cycle=False, seed=3, **options
        ),
    }

    def epochs(choose):
        loader = makers[kind]()
        seen = [as_lists(loader)]
        choose(loader)
        return [*seen, loader.state_dict()["epoch"], as_lists(loader), as_lists(loader)]

    for epoch in (0, 1, 7):
        told = epochs(lambda loader, epoch=epoch: loader.sampler.set_epoch(epoch))
        assert told == epochs(lambda loader, epoch=epoch: loader.set_epoch(epoch))
        assert told[1] == epoch
    assert told[0] != told[2]


@pytest.mark.parametrize("known", [True, False])
def test_an_epoch_of_a_stream_that_has_begun_when_it_is_told_goes_on(known):
    loader = DataLoader(numbers(known).shuffle(), 2, seed=3)
    expected = [rows(loader), rows(loader)]
    loader = DataLoader(numbers(known).shuffle(), 2, seed=3)
    iterator = iter(loader)
    first = next(iterator).tolist()
    loader.sampler.set_epoch(0)
    assert [first, *rows(iterator)] == expected[0]
    assert rows(loader) == expected[1]

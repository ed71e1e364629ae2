"""Loaders that are stopped, saved and gone on with elsewhere: what the tests of seeds and states share."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from hypothesis import strategies as st

from headrace import (
    BatchSampler,
    BucketBatchSampler,
    ClassBatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    rng,
)
from headrace.base.generators import GENERATORS
from headrace.testing import HandDrivenEngine
from tests.needs import HAS_TORCH

if HAS_TORCH:
    import torch
    from torch.utils import data as torch_data


def plain(batch: Any) -> Any:
    """A batch of whatever arrays and containers, as lists and numbers."""
    if hasattr(batch, "tolist"):
        return batch.tolist()
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def former(state: dict[str, Any]) -> dict[str, Any]:
    """A state as former versions saved it: nothing tells if it was altered."""
    return {name: value for name, value in state.items() if name not in ("kind", "digest")}


@contextmanager
def own_generators(seed: int = 0) -> Iterator[None]:
    """Inside, the global generators start from `seed`; afterwards they are as they were."""
    saved = global_generators()
    seed_generators(seed)
    try:
        yield
    finally:
        set_generators(saved)


def global_generators() -> list[Any]:
    return [generator.save() for generator in GENERATORS]


def set_generators(saved: list[Any]) -> None:
    for generator, state in zip(GENERATORS, saved, strict=True):
        generator.restore(state)


def seed_generators(seed: int) -> None:
    for generator in GENERATORS:
        generator.seed(seed)


DRAW: dict[str, Callable[[], float]] = {
    "nothing": lambda: 0.0,
    "rng": lambda: float(rng().random()),
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),
    "a normal number of numpy": lambda: float(np.random.randn()),
}
if HAS_TORCH:
    DRAW["torch"] = lambda: float(torch.rand(()))


class Noisy(Dataset[Any]):
    """Gives an index, any one, and what is drawn for it, now and then twice."""

    def __init__(self, n: int, draw: str = "nothing") -> None:
        self.n = n
        self.draw = draw

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        draw = DRAW[self.draw]
        return index, (draw() if index % 3 else draw() + draw())


# Orders


class Eager(Sampler[int]):
    """Draws the whole epoch in `__iter__`."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.n).tolist())

    def __len__(self) -> int:
        return self.n


class Lazy(Eager):
    """Draws as it goes."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield random.randrange(self.n)


class Counting(Eager):
    """Knows its state: the epoch, and how many of it it has given."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.epoch_number = self.given = 0

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.epoch_number).permutation(self.n).tolist()
        while self.given < self.n:
            self.given += 1
            yield order[self.given - 1]
        self.given = 0
        self.epoch_number += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch_number, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch_number, self.given = state["epoch"], state["given"]


class Telling(Eager):
    """Is told the epoch."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(self.n).tolist())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Pairs:
    """A batch sampler of the user's own, which has no length and knows no state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(self.n).tolist()
        for start in range(0, self.n, 2):
            yield order[start : start + 2]


ORDERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "in sequence": lambda n: {},
    "shuffled": lambda n: {"shuffle": True},
    "with replacement": lambda n: {"sampler": RandomSampler(range(n), replacement=True)},
    "more than there are": lambda n: {"sampler": RandomSampler(range(n), num_samples=2 * n + 1)},
    "weighted": lambda n: {"sampler": WeightedRandomSampler(np.arange(1.0, n + 1), n + 3)},
    "weighted, each once": lambda n: {"sampler": WeightedRandomSampler(np.arange(1.0, n + 1), n, replacement=False)},
    "a subset": lambda n: {"sampler": SubsetRandomSampler(list(range(0, n, 2)))},
    "eager": lambda n: {"sampler": Eager(n)},
    "lazy": lambda n: {"sampler": Lazy(n)},
    "with a state": lambda n: {"sampler": Counting(n)},
    "told the epoch": lambda n: {"sampler": Telling(n)},
    "a list": lambda n: {"sampler": list(range(n))[::-1]},
    "buckets": lambda n: {"batch_sampler": BucketBatchSampler(np.arange(n) % 7 + 1, 3, seed=5)},
    "classes": lambda n: {"batch_sampler": ClassBatchSampler([i % 3 for i in range(n + 2)], 2, 2, seed=5)},
    "batches of a sampler": lambda n: {"batch_sampler": BatchSampler(RandomSampler(range(n)), 3, True)},
    "a batch sampler of one's own": lambda n: {"batch_sampler": Pairs(n)},
    "a list of batches": lambda n: {"batch_sampler": [(i, n - 1 - i) for i in range(n)]},
}
if HAS_TORCH:
    ORDERS |= {
        "torch, shuffled": lambda n: {"sampler": torch_data.RandomSampler(range(n))},
        "torch, with replacement": lambda n: {"sampler": torch_data.RandomSampler(range(n), replacement=True)},
        "torch, weighted": lambda n: {"sampler": torch_data.WeightedRandomSampler([1.0 + i for i in range(n)], n)},
        "torch, a subset": lambda n: {"sampler": torch_data.SubsetRandomSampler(range(0, n, 2))},
        "torch, batches": lambda n: {"batch_sampler": torch_data.BatchSampler(range(n), 3, False)},
    }


# Loaders


@dataclass(frozen=True)
class Way:
    """How batches are made, which must not matter."""

    kind: str = "inline"
    workers: int = 2
    prefetch: int | None = None
    persistent: bool = False

    def arguments(self) -> dict[str, Any]:
        match self.kind:
            case "inline":
                return {}
            case "any order":
                choose = random.Random(self.workers).choice
                return {"engine": HandDrivenEngine(choose, self.prefetch or 2 * self.workers)}
            case "threads":
                kind: dict[str, Any] = {"engine": "threads"}
            case method:
                kind = {"multiprocessing_context": method}
        return {
            **kind,
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "persistent_workers": self.persistent,
        }


INLINE = Way()


def ways(*kinds: str, persistent: bool = True) -> st.SearchStrategy[Way]:
    return st.builds(
        Way,
        kind=st.sampled_from(kinds),
        workers=st.integers(1, 3),
        prefetch=st.sampled_from([None, 1, 3]),
        persistent=st.booleans() if persistent else st.just(False),
    )


@dataclass(frozen=True)
class Config:
    """What decides the batches."""

    n: int = 20
    order: str = "shuffled"
    batch_size: int | None = 3
    drop_last: bool = False
    seed: int | None = None
    draw: str = "nothing"
    in_order: bool = True
    own_generator: bool = False

    def loader(self, way: Way = INLINE, **others: Any) -> DataLoader[Any]:
        order = ORDERS[self.order](self.n)
        if "batch_sampler" not in order:
            order |= {"batch_size": self.batch_size, "drop_last": self.drop_last and self.batch_size is not None}
        if self.own_generator:
            order |= {"generator": np.random.Generator(np.random.PCG64(9))}
        arguments = {**order, "seed": self.seed, "in_order": self.in_order, **way.arguments(), **others}
        return DataLoader(Noisy(self.n, self.draw), **arguments)


def epochs_of(loader: DataLoader[Any], first: int, end: int, *, as_is: bool = False) -> Iterator[tuple[int, Any]]:
    """The batches of some epochs, each with the number of its epoch; as plain values, unless `as_is`."""
    epoch = first
    while epoch < end:
        batches = iter(loader)
        for batch in batches:
            epoch = batches.plan.epoch  # the next one, if a state was taken after the last batch
            if epoch == end:
                return
            yield epoch, batch if as_is else plain(batch)
        epoch += 1


def run(loader: DataLoader[Any], end: int) -> list[tuple[int, Any]]:
    """All batches up to epoch `end`."""
    with loader:
        return list(epochs_of(loader, 0, end))


def stop_after(loader: DataLoader[Any], n: int, end: int) -> tuple[list[tuple[int, Any]], Any]:
    """The next n batches, from where the loader is, and the state in the loop's body after the last of them."""
    with loader:
        epochs = epochs_of(loader, loader.state_dict()["epoch"], end)
        return list(islice(epochs, n)), through_json(loader.state_dict())


def interrupted(
    make: Callable[[Way], DataLoader[Any]], stops: list[int], on_the_way: list[Way], end: int, *, keeps: bool
) -> list[tuple[int, Any]]:
    """All batches of a run that stops several times, and goes on in a new loader each time, another way.

    Args:
        keeps: whether the global generators are restored with the training, as they must be without a seed; if not,
            they are spoiled.
    """
    given: list[tuple[int, Any]] = []
    state = generators = None
    for n, way in zip([*stops, 10**6], on_the_way, strict=True):
        loader = make(way)
        if state is not None:
            if keeps:
                set_generators(generators)
            else:
                seed_generators(len(given))
            loader.load_state_dict(state)
            assert through_json(loader.state_dict()) == state
        more, state = stop_after(loader, n, end)
        given += more
        generators = global_generators()
    return given

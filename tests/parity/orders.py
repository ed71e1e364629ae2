"""Samplers and batch samplers to try, as recipes that build the same one anew for every loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import strategies as st

import headrace

Build = Callable[[ModuleType, Any, "torch.Generator | None"], Any]


@dataclass(frozen=True)
class Order:
    """How to build a sampler: `build` gets the loader's library, the dataset, and a generator to draw from."""

    description: str
    build: Build = field(repr=False)


class UserSampler:
    """A user's own: no base class, no length, a generator function."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[int]:
        yield from self.indices


class ShufflingSampler(UserSampler):
    """A user's own that draws from torch's global generator as soon as its iteration starts."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self.indices)).tolist()
        return iter([self.indices[i] for i in order])

    def __len__(self) -> int:
        return len(self.indices)


class DrawingSampler(UserSampler):
    """A user's own that draws from torch's global generator for each index, so one sees how far it has been read."""

    def __iter__(self) -> Iterator[int]:
        for i in self.indices:
            torch.rand(1)
            yield i


libraries = st.sampled_from(["own", "own", "torch", "headrace"])


def _pick(library: str, own: ModuleType) -> ModuleType:
    return {"torch": torch_data, "headrace": headrace, "own": own}[library]


def _of_library(library: str, name: str, make: Callable[[Any, Any, Any], Any]) -> Order:
    def build(own: ModuleType, dataset: Any, generator: torch.Generator | None) -> Any:
        return make(_sampler_class(_pick(library, own), name), dataset, generator)

    return Order(f"{library} {name}", build)


def _sampler_class(library: ModuleType, name: str) -> Any:
    return getattr(library if library is headrace else torch_data, name)


def _indices(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(-n, n - 1), max_size=2 * n) if n else st.just([])


@st.composite
def samplers(draw: st.DrawFn, n: int) -> Order:
    """Every kind of sampler over a dataset of `n` samples."""
    library = draw(libraries)
    kind = draw(st.sampled_from(["sequential", "random", "random", "subset", "weighted", "distributed", "user"]))
    if kind == "sequential":
        return _of_library(library, "SequentialSampler", lambda cls, dataset, generator: cls(dataset))
    if kind == "random":
        replacement, count = draw(st.booleans()), draw(st.none() | st.integers(1, 80))
        order = _of_library(
            library,
            "RandomSampler",
            lambda cls, dataset, generator: cls(dataset, replacement, count, generator=generator),
        )
        return Order(f"{order.description}({replacement}, {count})", order.build)
    if kind == "subset":
        chosen: Any = draw(_indices(n))
        chosen = draw(st.sampled_from([chosen, np.array(chosen, dtype=np.int64)]))
        return _of_library(library, "SubsetRandomSampler", lambda cls, dataset, generator: cls(chosen, generator))
    if kind == "weighted":
        weights = draw(st.lists(st.floats(0.1, 10), min_size=max(n, 1), max_size=max(n, 1)))
        count, replacement = draw(st.integers(1, 20)), draw(st.booleans())
        return _of_library(
            library,
            "WeightedRandomSampler",
            lambda cls, dataset, generator: cls(weights[: len(dataset)], count, replacement, generator),
        )
    if kind == "distributed":
        return draw(distributed_samplers(library))
    return draw(user_samplers(n))


@st.composite
def distributed_samplers(draw: st.DrawFn, library: str) -> Order:
    replicas = draw(st.integers(1, 5))
    rank = draw(st.integers(0, replicas - 1))
    options = {
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 9)),
        "drop_last": draw(st.booleans()),
    }
    epoch = draw(st.integers(0, 3))

    def build(own: ModuleType, dataset: Any, generator: torch.Generator | None) -> Any:
        lib = _pick(library, own)
        cls = headrace.DistributedSampler if lib is headrace else torch_data.distributed.DistributedSampler
        sampler = cls(dataset, replicas, rank, **options)
        sampler.set_epoch(epoch)
        return sampler

    return Order(f"{library} DistributedSampler({replicas}, {rank}, {options}), epoch {epoch}", build)


@st.composite
def user_samplers(draw: st.DrawFn, n: int) -> Order:
    indices = draw(_indices(n))
    kind = draw(
        st.sampled_from(["list", "tuple", "range", "array", "UserSampler", "ShufflingSampler", "DrawingSampler"])
    )
    made: dict[str, Callable[[], Any]] = {
        "list": lambda: list(indices),
        "tuple": lambda: tuple(indices),
        "range": lambda: range(n - 1, -1, -2),
        "array": lambda: np.array(indices, dtype=np.int64),
        "UserSampler": lambda: UserSampler(indices),
        "ShufflingSampler": lambda: ShufflingSampler(indices),
        "DrawingSampler": lambda: DrawingSampler(indices),
    }
    kind = draw(st.sampled_from(list(made)))
    return Order(f"{kind} {indices}", lambda own, dataset, generator: made[kind]())


def can_be_read(order: Order, dataset: Any) -> bool:
    """Whether the sampler raises nothing by itself."""
    try:
        list(order.build(headrace, dataset, None))
    except Exception:  # noqa: BLE001 (whatever it is)
        return False
    return True


@st.composite
def batch_samplers(draw: st.DrawFn, n: int) -> Order:
    """Every kind of batch sampler over a dataset of `n` samples."""
    library = draw(st.sampled_from(["torch", "headrace", "own", "user"]))
    if library != "user":
        inner, size, drop_last = draw(samplers(n)), draw(st.integers(1, 9)), draw(st.booleans())

        def build(own: ModuleType, dataset: Any, generator: torch.Generator | None) -> Any:
            return _pick(library, own).BatchSampler(inner.build(own, dataset, generator), size, drop_last)

        return Order(f"{library} BatchSampler({inner}, {size}, {drop_last})", build)
    batches = draw(st.lists(_indices(n), max_size=4))
    kind = draw(st.sampled_from([list, tuple, np.array, torch.tensor]))
    if kind in (np.array, torch.tensor):
        batches = [batch for batch in batches if batch]  # an empty one would be of floats
    return Order(f"{kind.__name__}s {batches}", lambda own, dataset, generator: [kind(batch) for batch in batches])

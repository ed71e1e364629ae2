"""A loader that is dropped lets go of its dataset and of its workers at once, not when Python tidies up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import DataLoader, Dataset, IterableDataset, MultiStreamDataLoader, Stream
from headrace.base.endings import await_dropped

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "engine": "threads"},
}


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


class Reader:
    def __call__(self, key: int) -> Iterator[int]:
        yield from range(key, key + 10)


def map_loader(**options: Any) -> tuple[Any, Any]:
    dataset = Numbers()
    return dataset, DataLoader(dataset, batch_size=4, shuffle=True, **options)


def seeded_loader(**options: Any) -> tuple[Any, Any]:
    return map_loader(seed=1, **options)


def iterable_loader(**options: Any) -> tuple[Any, Any]:
    dataset = Counting()
    return dataset, DataLoader(dataset, batch_size=4, **options)


def stream_loader(**options: Any) -> tuple[Any, Any]:
    read = Reader()
    return read, DataLoader(
        Stream.from_blocks(range(0, 100, 10), read).shuffle(blocks=2), batch_size=4, seed=1, **options
    )


def multi_stream_loader(**options: Any) -> tuple[Any, Any]:
    read = Reader()
    return read, MultiStreamDataLoader([0, 10, 20], 3, read=read, cycle=False, **options)


LOADERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "map": map_loader,
    "seeded": seeded_loader,
    "iterable": iterable_loader,
    "stream": stream_loader,
    "multi-stream": multi_stream_loader,
}


@pytest.fixture(autouse=True)
def no_tidying_up() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("steps", [0, 2, 1000], ids=["unused", "in the middle", "at the end"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:Workers 0 and 1 return the same batches:UserWarning")
def test_a_loader_that_is_dropped_lets_go(kind, engine, steps):
    dataset, loader = LOADERS[kind](**ENGINES[engine])
    batches = iter(loader)
    for _ in zip(range(steps), batches, strict=False):
        pass
    there = weakref.ref(dataset)
    del dataset, loader, batches
    await_dropped()  # threads let go when they have left their sample
    assert there() is None

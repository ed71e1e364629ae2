"""When random numbers are drawn: nothing at `iter`; at the first batch, what torch has drawn by then."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.utils.data as torch_data

import headrace

DATA = list(range(10))
SAMPLERS: dict[str, Callable[[ModuleType, Any], Any]] = {
    "RandomSampler": lambda library, generator: library.RandomSampler(DATA, generator=generator),
    "with replacement": lambda library, generator: library.RandomSampler(DATA, True, 70, generator),
    "SubsetRandomSampler": lambda library, generator: library.SubsetRandomSampler(DATA, generator),
    "WeightedRandomSampler": lambda library, generator: library.WeightedRandomSampler([1.0] * 10, 5, True, generator),
}


def state(generator: Any) -> bytes:
    return (torch.get_rng_state() if generator is None else generator.get_state()).numpy().tobytes()


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("given", [True, False])
def test_samplers_draw_at_the_first_next(make: Callable[[ModuleType, Any], Any], given: bool) -> None:
    generator = torch.Generator().manual_seed(0) if given else None
    before = state(generator)
    iterator = iter(make(headrace, generator))
    assert state(generator) == before
    next(iterator)
    assert state(generator) != before


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("batch_size", [None, 1, 7, 64])
def test_the_state_after_every_batch(
    make: Callable[[ModuleType, Any], Any], given: bool, batch_size: int | None
) -> None:
    def states(library: ModuleType) -> list[bytes]:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(0) if given else None
        loader = library.DataLoader(DATA, batch_size, sampler=make(library, generator), generator=generator)
        return [state(generator), *(state(generator) for _ in loader), state(generator)]

    assert states(headrace) == states(torch_data)


@pytest.mark.parametrize("dataset", [DATA, torch_data.ChainDataset([])], ids=["map", "iterable"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("given", [True, False])
def test_nothing_is_drawn_at_iter(dataset: Any, workers: int, given: bool) -> None:
    def draw(library: ModuleType) -> tuple[bytes, bytes]:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(0) if given else None
        loader = library.DataLoader(dataset, num_workers=workers, generator=generator)
        iterator = iter(loader)
        then = state(generator)
        next(iterator, None)
        return then, state(generator)

    torch.manual_seed(3)
    before = state(torch.Generator().manual_seed(0) if given else None)
    (at_iter, after), (at_torchs_iter, after_torchs) = draw(headrace), draw(torch_data)
    assert at_iter == before != at_torchs_iter
    assert after == after_torchs


def test_len_and_construction_draw_nothing() -> None:
    before = state(None)
    assert len(headrace.DataLoader(DATA, 3, shuffle=True)) == 4
    assert state(None) == before


def test_the_distributed_sampler_leaves_the_global_state_alone() -> None:
    before = state(None)
    list(headrace.DistributedSampler(DATA, 2, 0))
    assert state(None) == before


def test_a_users_sampler_starts_with_the_first_batch() -> None:
    class Eager:
        started = 0

        def __iter__(self) -> Any:
            self.started += 1
            return iter(DATA)

    sampler = Eager()
    iterator = iter(headrace.DataLoader(DATA, None, sampler=sampler))
    assert sampler.started == 0
    next(iterator)
    assert sampler.started == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_several_iterators_draw_in_the_order_they_were_made_in(workers: int, first: int) -> None:
    def run(library: ModuleType) -> list[Any]:
        torch.manual_seed(3)
        one, other = (library.DataLoader(DATA, 5, shuffle=True, num_workers=workers) for _ in range(2))
        iterators = [iter(one), iter(other), iter(one)]
        seen = [next(iterators[first]).tolist(), state(None)]
        seen += [[batch.tolist() for batch in batches] for batches in zip(*iterators, strict=False)]
        return [*seen, state(None)]

    assert run(headrace) == run(torch_data)


def test_an_iterator_that_is_dropped_draws_nothing_and_counts_no_epoch() -> None:
    def run(checks: int, **options: Any) -> list[list[int]]:
        torch.manual_seed(3)
        loader = headrace.DataLoader(DATA, 5, shuffle=True, **options)
        for _ in range(checks):
            iter(loader)
        batches = [batch.tolist() for batch in loader]
        for _ in range(checks):
            iter(loader)
        loader.close()
        return batches + [batch.tolist() for batch in loader]

    for options in ({}, {"seed": 3}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        assert run(3, **options) == run(0, **options)


def test_an_error_of_a_beginning_is_raised_by_its_own_iterator() -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise LookupError("no order")

    broken, sound = headrace.DataLoader(DATA, None, sampler=Broken()), headrace.DataLoader(DATA, 5)
    bad, good = iter(broken), iter(sound)
    assert next(good).tolist() == DATA[:5]
    with pytest.raises(LookupError):
        next(bad)
    assert list(bad) == []
    assert len(list(good)) == 1

"""When random numbers are drawn: samplers at the first batch, the workers' base seed at `iter`."""

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
        seen = [state(generator)]
        iterator = iter(loader)
        seen.append(state(generator))
        seen += [state(generator) for _ in iterator]
        return [*seen, state(generator)]

    assert states(headrace) == states(torch_data)


@pytest.mark.parametrize("dataset", [DATA, torch_data.ChainDataset([])], ids=["map", "iterable"])
def test_the_base_seed_is_drawn_at_iter(dataset: Any) -> None:
    for library in (torch_data, headrace):
        generator = torch.Generator().manual_seed(0)
        loader = library.DataLoader(dataset, generator=generator)
        expected = torch.Generator().manual_seed(0)
        assert state(generator) == state(expected)
        iter(loader)
        torch.empty((), dtype=torch.int64).random_(generator=expected)
        assert state(generator) == state(expected)


def test_len_and_construction_draw_nothing() -> None:
    before = state(None)
    assert len(headrace.DataLoader(DATA, 3, shuffle=True)) == 4
    assert state(None) == before


def test_the_distributed_sampler_leaves_the_global_state_alone() -> None:
    before = state(None)
    list(headrace.DistributedSampler(DATA, 2, 0))
    assert state(None) == before


def test_a_users_sampler_starts_at_iter() -> None:
    class Eager:
        started = 0

        def __iter__(self) -> Any:
            self.started += 1
            return iter(DATA)

    for library in (torch_data, headrace):
        alone, batched = Eager(), Eager()
        iter(library.DataLoader(DATA, None, sampler=alone))
        iter(library.DataLoader(DATA, 2, sampler=batched))
        assert (alone.started, batched.started) == (1, 0)

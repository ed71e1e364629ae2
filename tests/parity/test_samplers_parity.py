"""Samplers by themselves: the same indices of the same type, lengths, attributes and random states as torch's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import given
from hypothesis import strategies as st

import headrace

from . import orders
from .equality import Fingerprint, outcome
from .exploring import explore

LIBRARIES = (torch_data, headrace)


def seen(build: Any, epochs: int) -> list[tuple[Fingerprint, bytes]]:
    """What construction, `len` and some epochs of a sampler give, and the random state after each."""
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(6)
    made: list[Any] = []
    notes = []

    def note(action: Any) -> None:
        states = torch.cat([torch.get_rng_state(), generator.get_state()])
        notes.append((outcome(action), states.numpy().tobytes()))

    note(lambda: made.append(build(generator)))
    for sampler in made:
        note(lambda sampler=sampler: len(sampler))
        for epoch in range(epochs):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            note(lambda sampler=sampler: list(sampler))
            note(lambda sampler=sampler: next(iter(sampler)))
    return notes


@explore(250)
@given(st.data(), st.integers(0, 40), st.booleans(), st.integers(1, 3))
def test_samplers(data: st.DataObject, n: int, with_generator: bool, epochs: int) -> None:
    order = data.draw(orders.samplers(n), label="sampler")
    expected, got = (
        seen(lambda generator, own=own: order.build(own, range(n), generator if with_generator else None), epochs)
        for own in LIBRARIES
    )
    assert got == expected


@explore(150)
@given(st.data(), st.integers(0, 40), st.integers(1, 2))
def test_batch_samplers(data: st.DataObject, n: int, epochs: int) -> None:
    order = data.draw(orders.batch_samplers(n), label="batch sampler")
    expected, got = (
        seen(lambda generator, own=own: order.build(own, range(n), generator), epochs) for own in LIBRARIES
    )
    assert got == expected


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("replacement", [True, False])
def test_random_sampler_around_its_chunks(n: int, count: int, replacement: bool) -> None:
    expected, got = (
        seen(lambda generator, own=own: own.RandomSampler(range(n), replacement, count, generator), 2)
        for own in LIBRARIES
    )
    assert got == expected


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 100])
def test_all_ranks_together(n: int, drop_last: bool) -> None:
    def shares(cls: Any) -> list[list[int]]:
        made = [cls(range(n), 5, rank, seed=3, drop_last=drop_last) for rank in range(5)]
        return [[sampler.num_samples, sampler.total_size, *sampler] for sampler in made]

    assert shares(headrace.DistributedSampler) == shares(torch_data.distributed.DistributedSampler)


def test_the_dataset_may_grow() -> None:
    for library in LIBRARIES:
        data = [0, 1]
        loaders = [library.DataLoader(data, 2, shuffle=shuffle) for shuffle in (False, True)]
        data += [2, 3, 4]
        assert [len(loader) for loader in loaders] == [3, 3]
        assert [sum(len(batch) for batch in loader) for loader in loaders] == [5, 5]


def test_weights_of_every_kind() -> None:
    for weights in ([1, 2, 3], np.array([0.5, 0.1, 0.0], np.float32), torch.tensor([1.0, 0, 5]), range(1, 4)):
        expected, got = (
            seen(lambda generator, own=own, w=weights: own.WeightedRandomSampler(w, 9, True, generator), 2)
            for own in LIBRARIES
        )
        assert got == expected
        assert headrace.WeightedRandomSampler(weights, 1).weights.dtype == torch.float64


@pytest.mark.parametrize(
    "name", ["Sampler", "SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"]
)
def test_ours_count_as_torch_samplers(name: str) -> None:
    assert issubclass(getattr(headrace, name), torch_data.Sampler)
    assert getattr(headrace, name).__module__.startswith("headrace")


def test_subclasses_that_override_iter_are_obeyed() -> None:
    def batches(library: ModuleType) -> list[list[int]]:
        class Backwards(library.SequentialSampler):
            def __iter__(self) -> Any:
                return iter(range(len(self.data_source) - 1, -1, -1))

        class Doubled(library.BatchSampler):
            def __iter__(self) -> Any:
                return (batch * 2 for batch in super().__iter__())

        data = np.arange(5)
        loaders = [
            library.DataLoader(data, 2, sampler=Backwards(data)),
            library.DataLoader(data, batch_sampler=Doubled(library.SequentialSampler(data), 3, True)),
        ]
        return [batch.tolist() for loader in loaders for batch in loader]

    assert batches(headrace) == batches(torch_data)

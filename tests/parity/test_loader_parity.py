"""The same loader twice, torch's and headrace's: the same batches, bit for bit, and the same random states.

The property tests below try 1,650 configurations in a run.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch.utils.data as torch_data
from hypothesis import given
from hypothesis import strategies as st

from . import orders, sources
from .exploring import explore
from .traces import Setting, Step, assert_same_traces, steps

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

lengths = st.integers(0, 12)
batch_sizes = st.none() | st.integers(1, 9) | st.just(20)
seeds = st.none() | st.integers(0, 5)
collations = st.sampled_from(["default", "default", "torch's default", "own default", "custom"])


def count_and_keep(batch: Any) -> Any:
    return {"size": len(batch) if isinstance(batch, list) else None, "batch": batch}


def collate_options(kind: str, setting: Setting, batch_size: int | None) -> dict[str, Any]:
    name = "default_convert" if batch_size is None else "default_collate"
    functions = {
        "torch's default": getattr(torch_data, name),
        "own default": getattr(setting.own, name),
        "custom": count_and_keep,
    }
    return {"collate_fn": functions[kind]} if kind in functions else {}


@explore(250)
@given(st.data(), lengths, batch_sizes, st.booleans(), st.booleans(), seeds, collations, steps)
def test_map_datasets(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    drop_last: bool,
    shuffle: bool,
    seed: int | None,
    collation: str,
    plan: list[Step],
) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(
            source.build(setting.own),
            batch_size,
            shuffle,
            drop_last=drop_last,
            generator=setting.new_generator(seed),
            **collate_options(collation, setting, batch_size),
        )

    assert_same_traces(build, plan)


@explore(100)
@given(st.data(), st.integers(2, 12), st.integers(2, 9), seeds, steps)
def test_random_augmentation(data: st.DataObject, n: int, batch_size: int, seed: int | None, plan: list[Step]) -> None:
    source = data.draw(sources.noisy_sources(n), label="dataset")

    def build(setting: Setting) -> Any:
        dataset = source.build(setting.own)
        return setting.own.DataLoader(dataset, batch_size, shuffle=True, generator=setting.new_generator(seed))

    assert_same_traces(build, plan)


@explore(175)
@given(st.data(), lengths, batch_sizes, st.booleans(), seeds, st.sampled_from(["shared", "private", "none"]), steps)
def test_samplers(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    drop_last: bool,
    seed: int | None,
    sampler_generator: str,
    plan: list[Step],
) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")
    order = data.draw(orders.samplers(n), label="sampler")

    def build(setting: Setting) -> Any:
        dataset = source.build(setting.own)
        generator = setting.new_generator(seed)
        others = {"shared": generator, "private": setting.new_generator(9), "none": None}
        sampler = order.build(setting.own, dataset, others[sampler_generator])
        return setting.own.DataLoader(dataset, batch_size, sampler=sampler, drop_last=drop_last, generator=generator)

    assert_same_traces(build, plan)


@explore(150)
@given(st.data(), lengths, seeds, collations, steps)
def test_batch_samplers(data: st.DataObject, n: int, seed: int | None, collation: str, plan: list[Step]) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")
    order = data.draw(orders.batch_samplers(n), label="batch sampler")

    def build(setting: Setting) -> Any:
        dataset = source.build(setting.own)
        generator = setting.new_generator(seed)
        return setting.own.DataLoader(
            dataset,
            batch_sampler=order.build(setting.own, dataset, generator),
            generator=generator,
            **collate_options(collation, setting, 1),
        )

    assert_same_traces(build, plan)


@explore(150)
@given(st.data(), lengths, batch_sizes, st.booleans(), seeds, collations, steps)
def test_iterable_datasets(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    drop_last: bool,
    seed: int | None,
    collation: str,
    plan: list[Step],
) -> None:
    source = data.draw(sources.stream_sources(n), label="dataset")

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(
            source.build(setting.own),
            batch_size,
            drop_last=drop_last,
            generator=setting.new_generator(seed),
            **collate_options(collation, setting, batch_size),
        )

    assert_same_traces(build, plan)

"""Loaders with worker processes, torch's and headrace's: the same batches, random states, warnings and errors.

The property tests below try some 340 configurations in a run.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import resource_sharer
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import assume, given
from hypothesis import strategies as st

import headrace

from . import orders, samples, sources
from .equality import TorchWorkerDiedError, outcome
from .exploring import explore
from .test_loader_parity import collate_options, collations, seeds
from .traces import (
    BuildLoader,
    Setting,
    Step,
    assert_same_epochs,
    compare_traces,
    end_torchs_workers,
    few_epochs,
    trace,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.timeout(600),
]


@pytest.fixture(autouse=True)
def _no_thread_of_torchs_left() -> Iterator[None]:
    """Keys that are tensors go to torch's workers through a thread that stays."""
    yield
    resource_sharer.stop()


_TRIES = 3
lengths = st.integers(0, 14)
batch_sizes = st.none() | st.integers(1, 5) | st.just(20)


def assert_same_traces(build: BuildLoader, plan: list[Step]) -> None:
    for _ in range(_TRIES):
        settings = (Setting(library, exact_strides=False) for library in (torch_data, headrace))
        with suppress(TorchWorkerDiedError):  # there is nothing to compare with
            compare_traces(*(trace(build, setting, plan) for setting in settings))
            return
    raise AssertionError(f"Workers of torch's own died in each of {_TRIES} tries.")


@pytest.mark.parametrize("library", [torch_data, headrace])
@pytest.mark.parametrize("deaths", [1, 9])
def test_only_deaths_that_torch_tells_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, library: Any, deaths: int
) -> None:
    """torch's own message from its handler, wherever it comes; headrace's error of the same words counts."""
    raised, genuine = [], trace

    def interrupted(build: Any, setting: Setting, plan: Any) -> Any:
        if setting.own is library and len(raised) < deaths:
            raised.append(library)
            outcome(_fail_as_torch)
        return genuine(build, setting, plan)

    def _fail_as_torch() -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. ")

    monkeypatch.setitem(assert_same_traces.__globals__, "trace", interrupted)
    if deaths == 1:
        assert_same_traces(lambda setting: setting.own.DataLoader(range(3)), [])
    else:
        with pytest.raises(AssertionError, match="died in each of 3 tries"):
            assert_same_traces(lambda setting: setting.own.DataLoader(range(3)), [])

    def fail_as_headrace() -> None:
        raise headrace.WorkerDiedError("DataLoader worker 0 (pid(s) 7) exited unexpectedly: it left.")

    assert outcome(fail_as_headrace)[:2] == ("raised", headrace.WorkerDiedError)


def spend_random_numbers(worker: int) -> None:
    """Moves the generators of this worker, and no other's."""
    for _ in range(worker + 1):
        random.random()
        np.random.rand()
        torch.rand(1)


def seed_again(worker: int) -> None:
    """What many training scripts do."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker)


def prefer_doubles(worker: int) -> None:
    """Changes how this worker collates."""
    torch.set_default_dtype(torch.float64)


init_functions = st.sampled_from([None, None, spend_random_numbers, seed_again, prefer_doubles])
worker_options = st.fixed_dictionaries(
    {
        "num_workers": st.sampled_from([1, 2, 2, 3, 4]),
        "persistent_workers": st.booleans(),
        "prefetch_factor": st.sampled_from([None, 1, 2, 5]),
        "worker_init_fn": init_functions,
    }
)


@explore(70)
@given(st.data(), lengths, batch_sizes, st.booleans(), st.booleans(), seeds, collations, worker_options, few_epochs)
def test_map_datasets(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    drop_last: bool,
    shuffle: bool,
    seed: int | None,
    collation: str,
    workers: dict[str, Any],
    plan: list[Step],
) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(
            source.build(setting.own),
            batch_size,
            shuffle,
            drop_last=drop_last and batch_size is not None,
            generator=setting.new_generator(seed),
            **collate_options(collation, setting, batch_size),
            **workers,
        )

    assert_same_traces(build, plan)


@explore(42)
@given(st.data(), st.integers(2, 14), st.integers(1, 5), seeds, worker_options, few_epochs)
def test_random_augmentation(
    data: st.DataObject, n: int, batch_size: int, seed: int | None, workers: dict[str, Any], plan: list[Step]
) -> None:
    source = data.draw(sources.noisy_sources(n), label="dataset")

    def build(setting: Setting) -> Any:
        dataset, generator = source.build(setting.own), setting.new_generator(seed)
        return setting.own.DataLoader(dataset, batch_size, shuffle=True, generator=generator, **workers)

    assert_same_traces(build, plan)


@explore(42)
@given(
    st.data(), lengths, batch_sizes, seeds, st.sampled_from(["shared", "private", "none"]), worker_options, few_epochs
)
def test_samplers(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    seed: int | None,
    sampler_generator: str,
    workers: dict[str, Any],
    plan: list[Step],
) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")
    order = data.draw(orders.samplers(n), label="sampler")
    assume(orders.can_be_read(order, source.build(headrace)))  # else see test_intended_differences

    def build(setting: Setting) -> Any:
        dataset = source.build(setting.own)
        generator = setting.new_generator(seed)
        others = {"shared": generator, "private": setting.new_generator(9), "none": None}
        sampler = order.build(setting.own, dataset, others[sampler_generator])
        return setting.own.DataLoader(dataset, batch_size, sampler=sampler, generator=generator, **workers)

    assert_same_traces(build, plan)


@explore(42)
@given(st.data(), lengths, seeds, collations, worker_options, few_epochs)
def test_batch_samplers(
    data: st.DataObject, n: int, seed: int | None, collation: str, workers: dict[str, Any], plan: list[Step]
) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")
    order = data.draw(orders.batch_samplers(n), label="batch sampler")
    assume(orders.can_be_read(order, source.build(headrace)))

    def build(setting: Setting) -> Any:
        dataset = source.build(setting.own)
        generator = setting.new_generator(seed)
        return setting.own.DataLoader(
            dataset,
            batch_sampler=order.build(setting.own, dataset, generator),
            generator=generator,
            **collate_options(collation, setting, 1),
            **workers,
        )

    assert_same_traces(build, plan)


@explore(70)
@given(st.data(), lengths, batch_sizes, st.booleans(), seeds, collations, worker_options, few_epochs)
def test_iterable_datasets(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    drop_last: bool,
    seed: int | None,
    collation: str,
    workers: dict[str, Any],
    plan: list[Step],
) -> None:
    source = data.draw(sources.worker_streams(n) | sources.chains(n), label="dataset")

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(
            source.build(setting.own),
            batch_size,
            drop_last=drop_last and batch_size is not None,
            generator=setting.new_generator(seed),
            **collate_options(collation, setting, batch_size),
            **workers,
        )

    assert_same_traces(build, plan)


@explore(35)
@given(st.data(), st.integers(1, 14), batch_sizes, worker_options, few_epochs)
def test_errors(data: st.DataObject, n: int, batch_size: int | None, workers: dict[str, Any], plan: list[Step]) -> None:
    source = data.draw(sources.failing_sources(n), label="dataset")
    assert_same_traces(lambda setting: setting.own.DataLoader(source.build(setting.own), batch_size, **workers), plan)


@explore(30)
@given(st.data(), st.integers(1, 14), batch_sizes, st.booleans(), seeds, worker_options, st.integers(1, 2))
def test_any_order(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    stream: bool,
    seed: int | None,
    workers: dict[str, Any],
    n_epochs: int,
) -> None:
    """With `in_order=False`, which worker makes a batch of a map dataset is left to chance."""
    source = data.draw(sources.worker_streams(n) if stream else sources.quiet_sources(n), label="dataset")
    if not stream:
        workers = {**workers, "worker_init_fn": None}

    def build(setting: Setting) -> Any:
        options = {} if stream else {"shuffle": True}
        generator = setting.new_generator(seed)
        dataset = source.build(setting.own)
        return setting.own.DataLoader(dataset, batch_size, generator=generator, in_order=False, **options, **workers)

    assert_same_epochs(build, n_epochs)


@explore(12)
@given(samples.large, st.integers(1, 9), st.none() | st.integers(1, 4), st.booleans(), worker_options, few_epochs)
def test_large_samples(
    structure: Any, n: int, batch_size: int | None, keep: bool, workers: dict[str, Any], plan: list[Step]
) -> None:
    def build(setting: Setting) -> Any:
        dataset = _Made(samples.Container("dict", (structure, samples.Scalar("int"))), n)
        return setting.own.DataLoader(dataset, batch_size, collate_fn=_as_is if keep else None, **workers)

    assert_same_traces(build, plan)


class _Made(torch_data.Dataset):
    def __init__(self, structure: Any, n: int) -> None:
        self.structure, self.n = structure, n

    def __getitem__(self, index: int) -> Any:
        return self.structure(index)

    def __len__(self) -> int:
        return self.n


def _as_is(samples_: Any) -> Any:
    return samples_


def _as_record(samples_: Any) -> Any:
    return samples.Record("batch", samples_)


WHOLE_EPOCH = [Step("start", 0), Step("drain", 0)]


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("collate_fn", [_as_is, _as_record, None])
@pytest.mark.parametrize("kinds", [samples.every_leaf, samples.every_object], ids=["leaves", "objects"])
def test_one_of_each_kind_of_sample(kinds: Any, collate_fn: Any, batch_size: int | None) -> None:
    if collate_fn is None and batch_size is not None and kinds is samples.every_object:
        kinds = samples.Container("dict", (samples.Record,))  # cannot be collated

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(_Made(kinds, 5), batch_size, num_workers=2, collate_fn=collate_fn)

    assert_same_traces(build, WHOLE_EPOCH)


@pytest.mark.parametrize("dims", [3, 4, 5])
def test_the_memory_format_of_a_batch(dims: int) -> None:
    """Pictures, clips and volumes whose channels lie last."""
    channels_last = torch.channels_last if dims < 5 else torch.channels_last_3d
    whole = torch.rand((2, 3, 4, 5, 6)[: max(dims, 4)]).contiguous(memory_format=channels_last)
    sample = whole[0] if dims == 3 else whole

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader([sample] * 4, 2, num_workers=1)

    assert_same_traces(build, WHOLE_EPOCH)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_share_of_each_rank(shuffle: bool) -> None:
    def build(setting: Setting) -> Any:
        own = headrace if setting.own is headrace else torch_data.distributed
        sampler = own.DistributedSampler(range(20), 2, 1, shuffle=shuffle)
        return setting.own.DataLoader(range(20), 3, sampler=sampler, num_workers=2)

    assert_same_traces(build, [*WHOLE_EPOCH, *WHOLE_EPOCH])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_two_iterators_at_once(persistent: bool, stream: bool) -> None:
    """Without persistent workers they are apart; with them they are one and the same."""

    class Stream(torch_data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return ((i, torch.rand(1)) for i in range(9))

    class Map(_Made):
        def __getitem__(self, index: int) -> Any:
            return index, torch.rand(1)

    def build(setting: Setting) -> Any:
        dataset = Stream() if stream else Map(None, 9)
        return setting.own.DataLoader(dataset, 2, num_workers=2, persistent_workers=persistent)

    plan = [Step("start", 0), Step("next", 0), Step("start", 1), *[Step("next", 0), Step("next", 1)] * 2]
    assert_same_traces(build, [*plan, Step("drain", 1), Step("start", 1), Step("drain", 1)])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["init", "iter"])
def test_an_error_before_the_first_sample(stream: bool, where: str) -> None:
    """It is raised once for each worker, in the place of a batch."""

    class Stream(headrace.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            if where == "iter":
                raise OSError("no connection")
            return iter(range(9))

    def fail(worker: int) -> None:
        raise LookupError(f"no worker {worker}")

    def build(setting: Setting) -> Any:
        dataset = Stream() if stream else list(range(9))
        return setting.own.DataLoader(dataset, 2, num_workers=2, worker_init_fn=fail if where == "init" else None)

    # After that, torch stumbles over what was not made.
    traces = [trace_of_nexts(build, library, 2) for library in (torch_data, headrace)]
    assert traces[0] == traces[1]


def trace_of_nexts(build: Any, library: Any, count: int) -> list[Any]:
    iterator = iter(build(Setting(library)))
    outcomes = [outcome(lambda: next(iterator)) for _ in range(count)]
    end_torchs_workers(iterator)
    return outcomes


def test_what_a_worker_knows_of_itself() -> None:
    class Asking(torch_data.Dataset):
        def __getitem__(self, index: int) -> Any:
            ours, theirs = headrace.get_worker_info(), torch_data.get_worker_info()
            assert ours.dataset is theirs.dataset is self
            fields = {name: getattr(theirs, name) for name in theirs.__dataclass_fields__ if name != "dataset"}
            assert {name: getattr(ours, name) for name in fields} == fields
            assert torch.initial_seed() == ours.seed
            return index, fields, torch.get_num_threads(), torch.rand(()).item(), np.random.rand(), random.random()

        def __len__(self) -> int:
            return 6

    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(Asking(), None, num_workers=3, generator=setting.new_generator(3))

    assert_same_traces(build, [*WHOLE_EPOCH, *WHOLE_EPOCH])


def test_the_warning_of_a_wrong_length() -> None:
    class Stream(torch_data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

        def __len__(self) -> int:
            return 4

    def texts(library: Any) -> list[str]:
        loader = library.DataLoader(dataset, num_workers=2)
        assert len(loader) == 4
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(list(loader)) == 8
        return [text for w in caught if (text := str(w.message)).startswith("Length of IterableDataset")]

    dataset = Stream()
    expected, got = texts(torch_data), texts(headrace)
    assert len(got) == 4
    start_of = lambda text: text.split("have been fetched.")[0].replace(" ", "")  # noqa: E731 (torch forgets a space)
    assert [start_of(text) for text in got] == [start_of(text) for text in expected]
    assert all("get_worker_info" in text for text in got)


def test_batches_of_workers_can_be_written_to_and_kept() -> None:
    class Fresh(torch_data.Dataset):
        def __getitem__(self, index: int) -> Any:
            return torch.full((300,), index), np.full(300, index)

        def __len__(self) -> int:
            return 12

    for library in (torch_data, headrace):
        kept = list(library.DataLoader(Fresh(), None, num_workers=2, collate_fn=_as_is))
        for tensor, array in kept:
            tensor += 1
            array += 1
        assert [(t[0].item(), t[-1].item(), a[0], a[-1]) for t, a in kept] == [(i + 1,) * 4 for i in range(12)]

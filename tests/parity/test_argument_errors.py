"""Every wrong argument raises the same type of error as torch, at the same moment."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
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

from .equality import outcome
from .exploring import explore

LIBRARIES = (torch_data, headrace)


class Stream(torch_data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Lengthless:
    def __repr__(self) -> str:
        return "Lengthless()"

    def __getitem__(self, index: int) -> int:
        return index


class Nothing:
    pass


DATASETS: dict[str, Any] = {
    "list": [1, 2, 3],
    "empty": [],
    "stream": Stream(),
    "lengthless": Lengthless(),
    "nothing": Nothing(),
    "none": None,
    "int": 3,
    "dict": {0: 1, 1: 2},
}

# What stands for itself is one value; the first of each is the default.
ODD_VALUES: dict[str, list[Any]] = {
    "batch_size": [1, None, 2, 0, -1, True, False, "4", 2.5, np.int64(2), [2]],
    "shuffle": [None, True, False, 3, 0, "yes", "", [], [1], np.True_],
    "sampler": [None, 3, [0, 1], [], "01", iter([0]), object(), [5], [None]],
    "batch_sampler": [None, 3, [[0], [1]], [], [0], object(), [[5]], ["a"], [[]]],
    "num_workers": [0, -1, "2", None, True, [], 1, np.int64(0), np.int64(1)],
    "collate_fn": [None, len, list, lambda batch: 1 / 0],
    "pin_memory": [False, True, "yes", 0],
    "drop_last": [False, True, 3, None, "x", 0, np.True_],
    "timeout": [0, -1, None, 5, 0.5, "1", 0.0],
    "worker_init_fn": [None, print],
    "multiprocessing_context": [None, "fork", "bad", 3, multiprocessing.get_context("spawn"), "", object],
    "generator": [None, 42, "x", torch.Generator(), object()],
    "prefetch_factor": [None, 0, -1, 2, "2", np.int64(2)],
    "persistent_workers": [False, True, 3, "x"],
    "pin_memory_device": ["", "cuda", 3],
    "in_order": [True, False, 3],
}


def moments(library: ModuleType, dataset: Any, options: dict[str, Any]) -> list[Any]:
    """What construction, `len`, `iter` and two batches give, until something fails."""
    torch.manual_seed(0)
    made: list[Any] = []
    seen = [outcome(lambda: made.append(library.DataLoader(dataset, **options)))]
    if not made:
        return seen
    loader = made[0]
    seen.append(outcome(lambda: len(loader)))
    if loader.num_workers:  # workers are not started here
        return seen
    iterators: list[Any] = []
    seen.append(outcome(lambda: _first_of(loader, iterators)))
    return seen + [outcome(lambda iterator=iterator: next(iterator)) for iterator in iterators]


def _first_of(loader: Any, iterators: list[Any]) -> Any:
    """The first batch, and what gives the next ones; of what torch raises at `iter`, headrace raises some here."""
    iterator = iter(loader)
    batch = next(iterator)
    iterators.append(iterator)
    return batch


def assert_same_moments(dataset: Any, options: dict[str, Any]) -> None:
    fresh = {name: iter([0]) if hasattr(value, "__next__") else value for name, value in options.items()}
    expected = moments(torch_data, dataset, fresh)
    fresh = {name: iter([0]) if hasattr(value, "__next__") else value for name, value in options.items()}
    assert moments(headrace, dataset, fresh) == expected


SINGLE = [(name, value) for name, values in ODD_VALUES.items() for value in values]


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS.keys())
@pytest.mark.parametrize("workers", [0, 1])
def test_one_odd_argument(dataset: Any, workers: int) -> None:
    for name, value in SINGLE:
        assert_same_moments(dataset, {"num_workers": workers, name: value})


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS.keys())
def test_every_mix_of_ordering_arguments(dataset: Any) -> None:
    values = {
        "batch_size": [1, None, 2, 0],
        "shuffle": [None, True, 3],
        "sampler": [None, 3, [0, 1]],
        "batch_sampler": [None, 3, [[0]]],
        "drop_last": [False, True, 3],
    }
    for mix in itertools.product(*values.values()):
        assert_same_moments(dataset, dict(zip(values, mix, strict=True)))


@pytest.mark.parametrize("workers", [-1, 0, 1, "2", None])
def test_every_mix_of_worker_arguments(workers: Any) -> None:
    values = {
        "timeout": [0, -1, 5, None],
        "prefetch_factor": [None, -1, 0, 2, "2"],
        "persistent_workers": [False, True, 3],
        "multiprocessing_context": [None, "fork", "bad", 3],
    }
    for mix in itertools.product(*values.values()):
        assert_same_moments([1, 2], {"num_workers": workers, **dict(zip(values, mix, strict=True))})


@explore(400)
@given(
    st.sampled_from(sorted(DATASETS)),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in ODD_VALUES.items()}),
)
def test_any_mix(dataset: str, options: dict[str, Any]) -> None:
    assert_same_moments(DATASETS[dataset], options)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers", "num_workers",
             "timeout", "collate_fn", "generator", "pin_memory", "prefetch_factor", "multiprocessing_context", "other"]
)  # fmt: skip
@pytest.mark.parametrize("value", [None, 2, "fork"])
def test_setting_attributes_afterwards(name: str, value: Any) -> None:
    def change(library: ModuleType, **options: Any) -> None:
        setattr(library.DataLoader([1, 2], **options), name, value)

    for options in ({}, {"num_workers": 1}):
        theirs, ours = (outcome(lambda lib=lib, o=options: change(lib, **o)) for lib in LIBRARIES)
        assert ours == theirs


def test_missing_and_unknown_arguments() -> None:
    for arguments, options in [((), {}), (([1],), {"unknown": 1}), (([1], 1, None, None, None, 0, None, False, False, 0,
                               None, None, None, 2), {})]:  # fmt: skip
        theirs, ours = (outcome(lambda lib=lib, a=arguments, o=options: lib.DataLoader(*a, **o)) for lib in LIBRARIES)
        assert ours == theirs == ("raised", TypeError, ())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size.*0"),
        ({"batch_size": "4"}, "batch_size.*'4'"),
        ({"num_workers": -7}, "num_workers.*-7"),
        ({"timeout": -3}, "timeout.*-3"),
        ({"prefetch_factor": 9}, "prefetch_factor.*num_workers > 0.*9"),
        ({"num_workers": 1, "prefetch_factor": -9}, "prefetch_factor.*-9"),
        ({"persistent_workers": True}, "persistent_workers.*num_workers > 0"),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context.*num_workers=0"),
        ({"num_workers": 1, "multiprocessing_context": "bad"}, "multiprocessing_context.*fork.*'bad'"),
        ({"num_workers": 1, "multiprocessing_context": 3}, "multiprocessing_context.*3"),
        ({"drop_last": 3}, "drop_last.*3"),
        ({"sampler": [0], "shuffle": True}, "sampler.*shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler.*batch_size"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None.*drop_last"),
        ({"output": "pandas"}, "output.*'pandas'"),
    ],
    ids=str,
)
def test_messages_name_the_argument_and_the_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        headrace.DataLoader([1, 2], **options)


@pytest.mark.parametrize(("name", "value"), [("shuffle", True), ("sampler", [0]), ("batch_sampler", [[0]])])
def test_messages_for_streams(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"IterableDataset.*{name}"):
        headrace.DataLoader(Stream(), **{name: value})

"""Datasets to try, as recipes: each builds the same dataset anew for every loader."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import strategies as st

import headrace

from . import samples

Structure = Callable[[int], Any]


class Plain:
    """No base class at all."""


@dataclass(frozen=True)
class Source:
    """How to build a dataset: `build` gets the library whose loader it is for.

    `batched_noise` says that samples are random and come by a user's `__getitems__`. headrace's ConcatDataset calls
    that, torch's does not, so their random numbers may be drawn in different orders.
    """

    description: str
    length: int
    build: Callable[[ModuleType], Any] = field(repr=False)
    batched_noise: bool = False


def _pick(library: str, own: ModuleType) -> ModuleType:
    return {"torch": torch_data, "headrace": headrace, "own": own}[library]


libraries = st.sampled_from(["own", "own", "torch", "headrace"])


def _map_class(base: type, *, batched: bool, noise: str) -> type:
    """A user's map dataset: of any base class, with or without `__getitems__` and random augmentation."""

    class MapDataset(base):
        def __init__(self, structure: Structure, n: int) -> None:
            self.structure = structure
            self.n = n

        def __getitem__(self, i: int) -> Any:
            if not -self.n <= i < self.n:
                raise IndexError(f"no sample {i}")
            sample = self.structure(int(i) % self.n)
            return sample if noise == "none" else (sample, _NOISES[noise]())

        def __len__(self) -> int:
            return self.n

    if batched:
        MapDataset.__getitems__ = lambda self, indices: [self[i] for i in indices]
    return MapDataset


def _who_is_asking() -> list[tuple[Any, ...]]:
    """What headrace's and torch's `get_worker_info` say here, in numbers."""
    infos = headrace.get_worker_info(), torch_data.get_worker_info()
    return [(-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed) for info in infos]


_NOISES: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(2),
    "numpy": lambda: np.random.standard_normal(2),
    "python": random.random,
    "worker": _who_is_asking,
    "headrace's worker": lambda: _who_is_asking()[:1],
}


def _iterable_class(base: type, announced: int | None, noise: str = "none", share: str = "all") -> type:
    """A user's stream, whose `len` may be missing or wrong, and which may give each worker a share of its own."""

    class Stream(base):
        def __init__(self, structure: Structure, n: int) -> None:
            self.structure = structure
            self.n = n

        def __iter__(self) -> Iterator[Any]:
            for i in _SHARES[share](self.n):
                sample = self.structure(i)
                yield sample if noise == "none" else (sample, _NOISES[noise]())

    if announced is not None:
        Stream.__len__ = lambda self: announced
    return Stream


def _interleaved(n: int) -> range:
    info = headrace.get_worker_info()
    return range(n) if info is None else range(info.id, n, info.num_workers)


def _uneven(n: int) -> range:
    """Some workers end long before the others, some have nothing at all."""
    info = torch_data.get_worker_info()
    return range(n) if info is None else range(n * info.id // info.num_workers)


_SHARES: dict[str, Callable[[int], range]] = {"all": range, "interleaved": _interleaved, "uneven": _uneven}
# torch keeps who is asking in a variable of the process, which no thread can have for itself.
SHARES_FOR_THREADS = ("all", "interleaved")


@st.composite
def sequences(draw: st.DrawFn, n: int) -> Source:
    """Lists, tuples and ranges."""
    kind = draw(st.sampled_from([list, tuple, range]))
    if kind is range:
        return Source(f"range({n})", n, lambda own: range(n))
    structure = draw(samples.structures)
    return Source(f"{kind.__name__} of {n} {structure}", n, lambda own: kind(map(structure, range(n))))


def _has_no_uint64_scalars(leaf: Any) -> bool:
    """Not one of the intended differences: the rows of a vector are scalars."""
    return (leaf.dtype, leaf.shape) != ("u8", ())


@st.composite
def arrays(draw: st.DrawFn, n: int, kinds: st.SearchStrategy[Any] = samples.arrays | samples.tensors) -> Source:
    """An array or tensor as a dataset."""
    leaf = draw(kinds.filter(_has_no_uint64_scalars))
    whole = type(leaf)(leaf.dtype, (n, *leaf.shape), leaf.layout)
    return Source(repr(whole), n, lambda own: whole(1))


@st.composite
def tensor_datasets(draw: st.DrawFn, n: int) -> Source:
    """Ours of tensors and arrays, or torch's of tensors."""
    library = draw(libraries)
    kinds = samples.tensors | samples.arrays if library == "headrace" else samples.tensors
    columns = draw(st.lists(arrays(n, kinds), min_size=1, max_size=3))
    return Source(
        f"{library} TensorDataset of {columns}",
        n,
        lambda own: _pick(library, own).TensorDataset(*(column.build(own) for column in columns)),
    )


@st.composite
def user_datasets(draw: st.DrawFn, n: int, noises: tuple[str, ...] = ("none", "none", *_NOISES)) -> Source:
    """Users' own classes."""
    base = draw(st.sampled_from([Plain, headrace.Dataset, torch_data.Dataset]))
    batched = draw(st.booleans())
    noise = draw(st.sampled_from(noises))
    structure = draw(samples.structures)
    cls = _map_class(base, batched=batched, noise=noise)
    description = f"{base.__name__} of {n} {structure}, __getitems__: {batched}, noise: {noise}"
    return Source(description, n, lambda own: cls(structure, n), batched and noise != "none")


@st.composite
def subsets(draw: st.DrawFn, inner: Callable[[int], st.SearchStrategy[Source]], n: int) -> Source:
    """A part of another dataset, by a list, a range, an array or a tensor of indices."""
    library = draw(libraries)
    source = draw(inner(n + draw(st.integers(1, 3))))
    indices = draw(st.lists(st.integers(-source.length, source.length - 1), min_size=n, max_size=n))
    kind = draw(st.sampled_from(["list", "tuple", "array", "tensor", "range"]))
    chosen: Any = {
        "list": indices,
        "tuple": tuple(indices),
        "array": np.array(indices, dtype=draw(st.sampled_from(["i8", "i4"]))),
        "tensor": torch.tensor(indices, dtype=torch.int64),
        "range": range(n, 0, -1),
    }[kind]
    return Source(
        f"{library} Subset {chosen!r} of {source}",
        n,
        lambda own: _pick(library, own).Subset(source.build(own), chosen),
        source.batched_noise,
    )


@st.composite
def concatenations(draw: st.DrawFn, inner: Callable[[int], st.SearchStrategy[Source]], n: int) -> Source:
    """The same kind of samples, one dataset after the other."""
    library = draw(libraries)
    cut = draw(st.integers(0, n))
    source = draw(inner(max(n, 1)).filter(lambda source: not source.batched_noise))

    def build(own: ModuleType) -> Any:
        lib = _pick(library, own)
        parts = [list(range(cut)), list(range(cut, n))]
        return lib.ConcatDataset([lib.Subset(source.build(own), part) for part in parts])

    return Source(f"{library} ConcatDataset, cut at {cut}, of {source}", n, build)


@st.composite
def stacks(draw: st.DrawFn, inner: Callable[[int], st.SearchStrategy[Source]], n: int) -> Source:
    """Datasets side by side."""
    library = draw(libraries)
    columns = draw(st.lists(inner(n), min_size=1, max_size=3))
    named = draw(st.booleans())

    def build(own: ModuleType) -> Any:
        built = [column.build(own) for column in columns]
        stack = _pick(library, own).StackDataset
        return stack(**{f"c{j}": column for j, column in enumerate(built)}) if named else stack(*built)

    noisy = any(column.batched_noise for column in columns)
    return Source(f"{library} StackDataset, named: {named}, of {columns}", n, build, noisy)


def _simple(n: int) -> st.SearchStrategy[Source]:
    return sequences(n) | arrays(n) | tensor_datasets(n) | user_datasets(n)


def _combined(n: int) -> st.SearchStrategy[Source]:
    return _simple(n) | subsets(_simple, n) | concatenations(_simple, n) | stacks(_simple, n)


def map_sources(n: int) -> st.SearchStrategy[Source]:
    """Every kind of map dataset with `n` samples, up to two combinations deep."""
    return _simple(n) | subsets(_combined, n) | concatenations(_combined, n) | stacks(_combined, n)


def _quiet(n: int) -> st.SearchStrategy[Source]:
    return sequences(n) | arrays(n) | tensor_datasets(n) | user_datasets(n, ("none",))


def quiet_sources(n: int) -> st.SearchStrategy[Source]:
    """Map datasets that give the same samples to whoever asks, in any order."""
    return _quiet(n) | subsets(_quiet, n) | concatenations(_quiet, n) | stacks(_quiet, n)


def _noisy(n: int) -> st.SearchStrategy[Source]:
    return user_datasets(n, tuple(_NOISES))


def noisy_sources(n: int) -> st.SearchStrategy[Source]:
    """Datasets whose samples depend on the order in which they are asked for, alone and combined."""
    return _noisy(n) | subsets(_noisy, n) | concatenations(_noisy, n) | stacks(_noisy, n)


@st.composite
def streams(draw: st.DrawFn, n: int) -> Source:
    """Iterable datasets, headrace's and torch's."""
    base = draw(st.sampled_from([headrace.IterableDataset, torch_data.IterableDataset]))
    announced = draw(st.sampled_from([None, n, max(0, n - 2), n + 2]))
    structure = draw(samples.structures)
    cls = _iterable_class(base, announced)
    description = f"{base.__module__} IterableDataset of {n} {structure}, len {announced}"
    return Source(description, n, lambda own: cls(structure, n))


@st.composite
def chains(draw: st.DrawFn, n: int) -> Source:
    """The same stream several times in a row."""
    library = draw(libraries)
    source = draw(streams(n))
    times = draw(st.integers(0, 3))
    return Source(
        f"{library} ChainDataset of {times} {source}",
        n * times,
        lambda own: _pick(library, own).ChainDataset([source.build(own) for _ in range(times)]),
    )


@st.composite
def worker_streams(
    draw: st.DrawFn, n: int, noises: tuple[str, ...] = ("none", *_NOISES), shares: tuple[str, ...] = tuple(_SHARES)
) -> Source:
    """Streams that know which worker they are in, or do not, with and without random augmentation."""
    base = draw(st.sampled_from([headrace.IterableDataset, torch_data.IterableDataset]))
    announced = draw(st.sampled_from([None, n, max(0, n - 2)]))
    noise, share = draw(st.sampled_from(noises)), draw(st.sampled_from(sorted(shares)))
    structure = draw(samples.structures)
    cls = _iterable_class(base, announced, noise, share)
    description = f"{base.__module__} stream of {n} {structure}, len {announced}, noise: {noise}, share: {share}"
    return Source(description, n, lambda own: cls(structure, n))


class UsersError(Exception):
    """A user's own error."""


ERRORS = (ValueError, KeyError, IndexError, OSError, ZeroDivisionError, UsersError, AssertionError)


@dataclass(frozen=True)
class Failing:
    """Samples of which some raise."""

    bad: frozenset[int]
    error: type[Exception]

    def __call__(self, i: int) -> Any:
        if i in self.bad:
            raise self.error(f"no sample {i}")
        return samples.Point(i, torch.rand(1))


class _Resumable:
    """An iterator that goes on after an error, unlike a generator."""

    def __init__(self, structure: Structure, n: int) -> None:
        self._structure, self._left = structure, iter(range(n))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._structure(next(self._left))


@st.composite
def failing_sources(draw: st.DrawFn, n: int) -> Source:
    """Map datasets and streams that raise for some samples."""
    failing = Failing(frozenset(draw(st.sets(st.integers(0, n - 1), max_size=3))), draw(st.sampled_from(ERRORS)))
    kind = draw(st.sampled_from(["map", "batched map", "generator", "resumable"]))
    base = headrace.IterableDataset if kind in ("generator", "resumable") else headrace.Dataset
    if kind.endswith("map"):
        cls = _map_class(base, batched=kind == "batched map", noise="none")
    else:
        cls = _iterable_class(base, None)
    if kind == "resumable":
        cls.__iter__ = lambda self: _Resumable(self.structure, self.n)
    return Source(f"{kind} of {n} {failing}", n, lambda own: cls(failing, n))


def stream_sources(n: int) -> st.SearchStrategy[Source]:
    """Every kind of iterable dataset."""
    return streams(n) | chains(n)

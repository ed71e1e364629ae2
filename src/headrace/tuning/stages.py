"""How long the stages of a batch take, each alone: measured in a worker process, on a copy of the dataset.

The dataset here is not touched. Many open their file at the first sample; once that has happened in the loader's
process, forked workers would share the place in it, and read each other's bytes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeAlias

import numpy as np

from headrace.base.containers import map_leaves
from headrace.base.generators import GENERATORS
from headrace.data.dataset import is_iterable_dataset

MakeLoader: TypeAlias = Callable[..., Any]
"""headrace's DataLoader, which this part knows by its arguments only: it asks here itself."""

_MOST_KEYS = 64


@dataclass(frozen=True)
class Stages:
    """Times of the stages of one batch, in seconds.

    Attributes:
        batch_size: samples in it; 1 if single samples are loaded.
        fetch_s: to get one sample from the dataset.
        cpu_share: how much of that keeps a core busy; the rest is waiting, for a disk or a network.
        unevenness: how many times as long as the middle sample the slow ones took, one in ten.
        collate_s: to make the samples a batch.
        batch_bytes: how large it is.
        draws: whether samples draw from the global random generators.
        transport_s: to bring it from a worker process to the loop; None if nobody has measured it.
    """

    batch_size: int
    fetch_s: float
    cpu_share: float
    unevenness: float
    collate_s: float
    batch_bytes: int
    draws: bool
    transport_s: float | None = None

    @property
    def batch_s(self) -> float:
        """To make a whole batch."""
        return self.batch_size * self.fetch_s + self.collate_s


@dataclass(frozen=True)
class Question:
    """What is to be measured.

    Attributes:
        keys: of some samples, spread over the dataset; None for a stream.
        seconds: to spend on it, about.
        patience_s: after which it is given up.
    """

    dataset: Any
    keys: Sequence[Any] | None
    batch_size: int | None
    collate_fn: Callable[[Any], Any] | None
    output: str
    seconds: float
    patience_s: float
    make_loader: MakeLoader

    def answer(self) -> Stages | None:
        """Measure, here and now; None if it takes too long."""
        next(iter(self.make_loader([0], output=self.output)))  # imports what arrays are made of, which may take seconds
        try:
            with _limited(self.patience_s):
                return self._of_stream() if self.keys is None else self._of_samples(self.keys)
        except _TooSlow:
            return None

    def _of_stream(self) -> Stages:
        unknown = Stages(self.batch_size or 1, 0.0, 1.0, 1.0, 0.0, 0, draws=False)
        loader = self.make_loader(self.dataset, **self._batching(self.batch_size or 1))
        return self._whole_batches(unknown, loader)

    def _of_samples(self, keys: Sequence[Any]) -> Stages:
        alone = self._single_samples(keys)
        affordable = int(self.seconds / 4 / max(alone.fetch_s, 1e-9))
        size = max(1, min(alone.batch_size, affordable))
        loader = self.make_loader(self.dataset, sampler=_Spread(keys, 4 * size), **self._batching(size))
        return self._whole_batches(alone, loader, size)

    def _batching(self, size: int) -> dict[str, Any]:
        size_or_none = None if self.batch_size is None else size
        return {"batch_size": size_or_none, "collate_fn": self.collate_fn, "output": self.output}

    def _single_samples(self, keys: Sequence[Any]) -> Stages:
        before = [generator.glance() for generator in GENERATORS]
        seconds, busy, started = [], _busy_s(), perf_counter()
        for key in islice(cycle(keys), _MOST_KEYS):
            began = perf_counter()
            self.dataset[key]
            seconds.append(perf_counter() - began)
            if perf_counter() - started > self.seconds / 2:
                break
        cpu_share = (_busy_s() - busy) / (perf_counter() - started)
        draws = before != [generator.glance() for generator in GENERATORS]
        warm = seconds[1:] or seconds  # the first one opens files and imports libraries
        middle = max(float(np.median(warm)), 1e-9)
        slow = sorted(warm)[-1 - len(warm) // 10]  # one in ten: a single one may have met another program
        return Stages(
            self.batch_size or 1, middle, min(cpu_share, 1.0), slow / middle, collate_s=0, batch_bytes=0, draws=draws
        )

    def _whole_batches(self, alone: Stages, loader: Any, size: int | None = None) -> Stages:
        """What batches of `size` samples tell beyond the single ones; reckoned up to the size that was asked for."""
        scale = 1.0 if size is None else alone.batch_size / size
        seconds: list[float] = []
        n_bytes = 0
        busy, started = _busy_s(), perf_counter()
        batches = iter(loader)
        with closing(batches):
            while not seconds or perf_counter() - started < self.seconds / 2:
                began = perf_counter()
                batch = next(batches, None)
                if batch is None:
                    break
                seconds.append(perf_counter() - began)
                n_bytes = n_bytes or _size_of(batch)
        if not seconds:
            raise ValueError("The dataset is empty: there is nothing to measure.")
        batch_s = scale * float(np.median(seconds[1:] or seconds))
        if size is None:
            cpu_share = min(1.0, (_busy_s() - busy) / (perf_counter() - started))
            alone = replace(alone, fetch_s=batch_s / alone.batch_size, cpu_share=cpu_share)
        fetch_s = min(alone.fetch_s, batch_s / alone.batch_size)  # less, where a batch is gathered in one step
        collate_s = batch_s - alone.batch_size * fetch_s
        return replace(alone, fetch_s=fetch_s, collate_s=collate_s, batch_bytes=int(scale * n_bytes))


class _TooSlow(BaseException):
    """Raised in the midst of the user's code, which must not take it for an error of its own."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt the body after so many seconds; compiled code goes on until it returns to Python."""

    def interrupt(*_: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def _busy_s() -> float:
    """Seconds that this process has worked, or wanted to while others had its core."""
    try:
        waited_ns = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):  # not Linux
        waited_ns = 0
    return process_time() + waited_ns / 1e9


def _size_of(batch: Any) -> int:
    sizes: list[int] = []
    map_leaves(lambda leaf: sizes.append(getattr(leaf, "nbytes", None) or sys.getsizeof(leaf)), batch)
    return sum(sizes)


class _Spread:
    """A sampler that goes round some keys."""

    def __init__(self, keys: Sequence[Any], n: int) -> None:
        self._keys = keys
        self._n = n

    def __iter__(self) -> Any:
        return islice(cycle(self._keys), self._n)

    def __len__(self) -> int:
        return self._n


def some_keys(dataset: Any) -> Sequence[Any] | None:
    """Keys of a few samples, spread over the whole dataset; None for a stream.

    Raises:
        TypeError: the dataset has no length, so nobody knows its keys.
        ValueError: it is empty.
    """
    if is_iterable_dataset(dataset):
        return None
    n = len(dataset)
    if n == 0:
        raise ValueError("The dataset is empty: there is nothing to measure.")
    return [i * n // min(n, _MOST_KEYS) for i in range(min(n, _MOST_KEYS))]


class _Asked:
    """A dataset of one sample: the answer to a question."""

    def __init__(self, question: Question) -> None:
        self._question = question

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Stages | None:
        return self._question.answer()


def measure_stages(question: Question, *, context: Any = None) -> Stages | None:
    """Measure in a worker process of its own; None if it takes too long.

    Raises:
        WorkerError: there can be no worker, or it died.
        Exception: what the dataset or the collate function raised.
    """
    loader = question.make_loader(
        _Asked(question),
        batch_size=None,
        num_workers=1,
        collate_fn=_untouched,
        output="numpy",
        seed=0,  # nothing is drawn from the caller's generators
        multiprocessing_context=context,
    )
    with loader:
        answer: Stages | None = next(iter(loader))
        return answer


def _untouched(sample: Any) -> Any:
    return sample

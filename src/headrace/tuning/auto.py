"""`num_workers="auto"`: measures the stages of a batch, and estimates how many workers a loader needs."""

from __future__ import annotations

import math
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
from headrace.streams.stream import Stream
from headrace.tuning.machine import Machine, this_machine

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
class StageProbe:
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

    def measure(self) -> Stages | None:
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
        """Add what batches of `size` samples show beyond single ones, scaled to the requested size."""
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
    """Interrupt the body after `seconds`; compiled code continues until it returns to Python."""

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


class _ProbeDataset:
    """A dataset of one sample: the answer to a probe."""

    def __init__(self, probe: StageProbe) -> None:
        self._probe = probe

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Stages | None:
        return self._probe.measure()


def measure_stages(probe: StageProbe, *, context: Any = None) -> Stages | None:
    """Measure in a worker process of its own; None if it takes too long.

    Raises:
        WorkerError: there can be no worker, or it died.
        Exception: what the dataset or the collate function raised.
    """
    loader = probe.make_loader(
        _ProbeDataset(probe),
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


_HAND_OVER_S = 3e-4
"""What a batch from a worker costs the loop, about; with what its bytes cost, below."""
_BYTES_PER_S = 4e9
_UNEVEN = 4.0
_WORTH_SMOOTHING_S = 1e-4
_PREFETCH = 2
_MEMORY_SHARE = 0.25


def estimate_workers(stages: Stages, machine: Machine, step_s: float = 0.0) -> int:
    """As many workers as keep the cores busy that the loop leaves over; 0 where handing over costs more than it saves.

    Args:
        step_s: what the training loop takes for a batch: no more workers than hide behind it are needed.
    """
    hand_over_s = stages.transport_s or _HAND_OVER_S + stages.batch_bytes / _BYTES_PER_S
    if stages.batch_s < 2 * hand_over_s:
        return 0
    if machine.cores == 1 and stages.cpu_share > 0.5:
        return 0  # there is no core that could work meanwhile
    spare = max(1, machine.cores - 1)
    workers = min(machine.cores, math.ceil(spare / max(stages.cpu_share, 1e-3)))  # who waits leaves its core to others
    if step_s > 0:
        workers = min(workers, math.ceil(1.25 * stages.batch_s / step_s))
    return max(1, min(workers, batches_in_memory(stages, machine) // _PREFETCH))


def estimate_prefetch(stages: Stages, machine: Machine, workers: int) -> int | None:
    """Batches to load ahead per worker; None where the default is right.

    More where some samples take much longer than others, less where memory is short.
    """
    if workers == 0:
        return None
    is_uneven = stages.unevenness > _UNEVEN and stages.fetch_s > _WORTH_SMOOTHING_S
    wanted = 2 * _PREFETCH if is_uneven else _PREFETCH
    chosen = max(1, min(wanted, batches_in_memory(stages, machine) // workers))
    return None if chosen == _PREFETCH else chosen


def batches_in_memory(stages: Stages, machine: Machine) -> int:
    """How many batches may lie ready, in a quarter of the memory that is free."""
    if machine.memory_free is None:
        return 2**20
    return int(_MEMORY_SHARE * machine.memory_free / machine.ranks / max(stages.batch_bytes, 1))


_SECONDS = 0.12
_PATIENCE_S = 0.5


@dataclass(frozen=True)
class Wanted:
    """The arguments of a DataLoader that decide how long a batch takes, and who could make it."""

    dataset: Any
    batch_size: int | None
    collate_fn: Any
    output: str
    engine: Any
    context: Any


def choose_workers(make_loader: MakeLoader, wanted: Wanted, *, needs_workers: bool) -> int:
    """How many workers a loader gets.

    Guarantees: batches come in the order that they would with any other number. The random generators of this process
    and the dataset in it are not touched: what is measured is a copy, in a worker process.

    Args:
        needs_workers: whether it has further arguments that make sense with workers only.
    """
    least = int(needs_workers or wanted.context is not None)
    if not isinstance(wanted.engine, str):
        return least  # it has its own workers
    machine = this_machine()
    if isinstance(wanted.dataset, Stream):
        return max(1, machine.cores - 1)
    if is_iterable_dataset(wanted.dataset):
        return least  # of several workers each would read everything, unless it was written for them
    return max(least, _measured(make_loader, wanted, machine))


def _measured(make_loader: MakeLoader, wanted: Wanted, machine: Machine) -> int:
    try:
        probe = StageProbe(
            wanted.dataset,
            some_keys(wanted.dataset),
            wanted.batch_size,
            wanted.collate_fn,
            wanted.output,
            _SECONDS,
            _PATIENCE_S,
            make_loader,
        )
        stages = measure_stages(probe, context=wanted.context)
    except Exception:  # noqa: BLE001 (the loop will meet it, and without workers its traceback is plain)
        return 0
    return machine.cores if stages is None else estimate_workers(stages, machine)

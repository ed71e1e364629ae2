"""What crosses the border between the loader and its workers. Frozen, and small enough to pickle.

They are named tuples, made in a fourth of the time that a frozen dataclass takes, and defined in a fifth of it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.base.indices import Indices


class PackedIndices(NamedTuple):
    """Indices that headrace drew itself, as one array. User code sees them as a list of Python ints."""

    array: Indices

    def __reduce__(self) -> Any:
        memory: Any = np.ascontiguousarray(self.array)
        return _unpack_indices, (pickle.PickleBuffer(memory),)  # a fifth of the time that an array takes


def _unpack_indices(buffer: bytearray) -> PackedIndices:
    return PackedIndices(np.frombuffer(buffer, np.int64))


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask an iterable dataset for its next samples: `count` of them as a batch, or a single one if None."""

    count: int | None

    def __reduce__(self) -> Any:
        return Pull, (self.count,)


class Place(NamedTuple):
    """Where the samples of a batch stand in the order of all ranks: what their random numbers are keyed by.

    Attributes:
        start: the position of the first sample.
        step: from one sample to the next.
    """

    epoch: int
    start: int
    step: int


class PlacedKeys(NamedTuple):
    """The keys of a batch, with the place that decides its random numbers."""

    keys: Any
    place: Place


class Task(NamedTuple):
    """What a worker is asked: mostly for one batch.

    Attributes:
        number: of the batch in the epoch, where a task makes one; below -1 for questions.
        keys: what to fetch: `PackedIndices`, a `Pull`, or whatever the user's sampler gave, maybe as `PlacedKeys`;
            a request about a window of a stream, or a block of steps of a multi-stream loader.
        worker: the one that is to make it.
        leave_out: positions of samples in the batch that must not be touched, because they kill workers.
    """

    number: int
    keys: Any
    worker: int = 0
    leave_out: tuple[int, ...] = ()


class IterableStart(NamedTuple):
    """Where in the middle a worker's iteration over a stream goes on.

    Attributes:
        epoch: that it belongs to.
        batches: how many it has given already, and `size` how many samples each of them took; None for single ones.
        state: what the stream told of itself, some batches ago; None if it knows no state.
        since: how many batches ago, which it is run forward; all of them without a state.
        has_ended: whether there is nothing left.
        is_new: whether the state is of the end of the epoch before.
    """

    epoch: int = 0
    batches: int = 0
    size: int | None = 1
    state: Any = None
    has_ended: bool = False
    since: int = 0
    is_new: bool = False


class BeginEpoch(NamedTuple):
    """Start over: iterate the dataset anew. Workers answer with `Begun`.

    Attributes:
        number: counts the epochs of this worker.
        shared_seed: for the random parts of a DataPipe, the same on all workers.
    """

    number: int
    shared_seed: int | None = None


class Stop(NamedTuple):
    """Leave."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that was left out of its batch because it raised, or because it killed its worker.

    Attributes:
        key: what the dataset was asked for; None for a stream.
        batch: the number of the batch in its epoch.
        worker: the number of the worker; None without workers.
        error: the type and text of the exception.
        traceback: where it was raised, as text.
    """

    key: Any
    batch: int
    worker: int | None
    error: str
    traceback: str


class Span(NamedTuple):
    """When a worker did a task, in nanoseconds of `time.perf_counter_ns`: one clock for all processes of a machine.

    Attributes:
        begun: it began.
        made: what the task asks for was there.
        sent: it was ready to be sent.
        cpu: how long the worker computed from `begun` to `made`; the rest it waited. -1 if it was not measured.
        stages: how long each took, from `begun` to `made`: name and nanoseconds, in the order of their first laps.
        n_samples: in the batch; -1 if only the keys tell.
        is_extra: whether it is reported only because it was slow, and would distort averages.
        slowest: which of `ends` came after the longest time, and `slowest_ns` after how long; -1 if none was timed.
        ends: when each sample was there, or several that came together, as int64.
    """

    begun: int
    made: int
    sent: int
    cpu: int
    stages: tuple[tuple[str, int], ...]
    n_samples: int = -1
    is_extra: bool = False
    slowest: int = -1
    slowest_ns: int = 0
    ends: bytes = b""


class LazyBatch(partial[Any]):
    """A batch as a worker has packed it. It is unpacked, by calling it, right before it is given out.

    So the memory of the batch before, which is in the cache, can serve it.
    """

    __slots__ = ()


class Finished(NamedTuple):
    """The batch of task `number`, without the samples in `bad`.

    Attributes:
        batch: may be `LazyBatch`; see `decoded`.
        fingerprint: tells a stream's first batches apart from those of another worker.
        state: what the worker told of its dataset and its generators after this batch, if that is wanted.
        span: when it was made, if that was timed.
        n_samples: how many it has, if fewer than were asked for; -1 else.
    """

    number: int
    batch: Any
    bad: tuple[BadSample, ...] = ()
    fingerprint: int | None = None
    state: Any = None
    span: Span | None = None
    n_samples: int = -1


class Failed(NamedTuple):
    """Task `number` raised; the others are not affected.

    Attributes:
        state: of a stream that knows its own, after this.
        bad: the samples that had been left out before.
    """

    number: int
    error: BaseException
    state: Any = None
    bad: tuple[BadSample, ...] = ()


class Skipped(NamedTuple):
    """Task `number` has no batch: all of its samples were bad."""

    number: int
    bad: tuple[BadSample, ...]
    state: Any = None


class Exhausted(NamedTuple):
    """The iterable dataset had nothing left for task `number`, except samples that were bad."""

    number: int
    bad: tuple[BadSample, ...] = ()
    state: Any = None


Outcome: TypeAlias = Finished | Failed | Skipped | Exhausted


def decoded(outcome: Outcome) -> Outcome:
    """The same, with its batch unpacked if it was `LazyBatch`; what cannot be unpacked has failed."""
    if type(outcome) is not Finished or type(outcome.batch) is not LazyBatch:
        return outcome
    try:
        return outcome._replace(batch=outcome.batch())
    except Exception as error:  # noqa: BLE001 (an object that cannot be rebuilt here)
        return Failed(outcome.number, error, outcome.state, outcome.bad)


class Begun(NamedTuple):
    """The worker is ready for the tasks of this epoch; nothing of the epoch before will come from it.

    Attributes:
        dataset: what an iterable dataset said of its state before, for a worker that may have to stand in.
    """

    epoch: int
    dataset: Any = None

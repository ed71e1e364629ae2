"""The work on one task, the same in every engine. Here the stages that run in workers meet."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np

from headrace.base.errors import WorkerError
from headrace.base.messages import (
    BadSample,
    Exhausted,
    Failed,
    Finished,
    Outcome,
    PackedIndices,
    PlacedKeys,
    Pull,
    Skipped,
    Span,
    Task,
)
from headrace.base.own_states import knows_state, load_state, state_of
from headrace.base.randomness import SampleRandomness
from headrace.base.state import load_worker_generators, save_worker_generators
from headrace.base.world import get_worker_info
from headrace.batch.collate import Collator, FrameworkCollate, collates_rows_by_default, teach
from headrace.batch.fetch import (
    POSITION,
    TASK,
    Abandoned,
    Board,
    Builder,
    EndOfStream,
    MapFetcher,
    NoSampleLeft,
    Watch,
)
from headrace.batch.iterable_fetch import IterableFetcher
from headrace.batch.rows import RowBuilder
from headrace.data.dataset import is_datapipe
from headrace.data.take import find_take, takes_by_user_code
from headrace.engines.engine import Job
from headrace.engines.stopwatch import Stopwatch
from headrace.frameworks.framework import Allocate, Framework, empty_aligned, framework_of

T = TypeVar("T")


class Fetcher(Protocol):
    """Gets what a task asks for."""

    def fetch(self, keys: Any) -> Any: ...


def _no_lap(stage: str) -> None:
    """Nothing is timed."""


@dataclass(frozen=True)
class Workplace:
    """Where a reader works: in a worker, or in the loop, which makes a few batches itself.

    Attributes:
        collate: makes a batch of a list of samples.
        number: of the worker; None for the loop.
        kind: what it is: a process, or a thread.
        framework: makes the arrays; None for that of the job's output, in memory from `allocate_here`.
        on_bad: hears of what is left out, and why; None if that is raised.
        lap: hears when a stage of the work ends.
        stopwatch: of the loop, and `spans` when it made batches.
    """

    job: Job
    collate: Callable[[Any], Any]
    number: int | None = None
    kind: str = "process"
    framework: Framework | None = None
    allocate_here: Allocate = empty_aligned
    on_bad: Callable[[Any, Exception], None] | None = None
    lap: Callable[[str], None] = _no_lap
    stopwatch: Stopwatch | None = None
    spans: list[Span] = field(default_factory=list)

    @property
    def is_apart(self) -> bool:
        """Whether the loop is in another process."""
        return self.number is not None and self.kind == "process"

    @property
    def allocate(self) -> Any:
        """Gives memory for arrays; such that the loop can see, if it is apart."""
        return self.allocate_here if self.framework is None else self.framework.allocate

    def randomness(self, seed: int, *, repeats: bool) -> SampleRandomness:
        """Random numbers for what is made here."""
        return SampleRandomness(
            seed, shares_generators=self.kind == "thread", gives_back=self.number is None, repeats=repeats
        )

    @cached_property
    def convert_columns(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Makes a batch of columns, whose arrays nobody else has."""
        framework = self.framework
        if framework is None:
            framework = framework_of(self.job.output, self.allocate_here)
        return partial(_convert_columns, Collator(framework))

    def describe_bad(self, key: Any, number: int, error: BaseException) -> BadSample:
        return describe_bad(key, Task(number, None), self.number, error)

    def timed(self, make: Callable[[], T]) -> T:
        """What `make` makes in the loop, which is noted as work of its own."""
        stopwatch = self.stopwatch
        if stopwatch is None:
            return make()
        stopwatch.begin(0)
        try:
            return make()
        finally:
            stopwatch.lap("collate")
            span = stopwatch.end()
            if span is not None:
                self.spans.append(span)


def loop_workplace(job: Job, spans: list[Span] | None = None) -> Workplace:
    """That of the loop.

    Args:
        spans: are filled with those of the batches that are made there.
    """
    return Workplace(
        job, _collation_of(job, None)[0], stopwatch=_stopwatch_of(job, 1), spans=[] if spans is None else spans
    )


def _stopwatch_of(job: Job, workers: int) -> Stopwatch | None:
    if not job.timed:
        return None
    return Stopwatch(workers, "fetch" if job.reader is None else "read", times_all=job.reader is not None)


class Worker:
    """Makes the batches of a job, one task at a time.

    Args:
        number: which worker it is; None for the loader's own process.
        board: where it tells what it is doing, and is told to stop; see `headrace.batch.fetch`.
        framework: makes the arrays; by default that of the job's output, in memory from `allocate`.
        kind: what it is: a process, or a thread.
    """

    def __init__(
        self,
        job: Job,
        number: int | None = None,
        board: Board | None = None,
        framework: Framework | None = None,
        kind: str = "process",
        allocate: Allocate = empty_aligned,
    ) -> None:
        self._job = job
        self._kind = kind
        self._number = number
        self._board = board
        if board is not None or job.skip_errors:
            self._watch: Watch | None = Watch([0, 0, 0, 0] if board is None else board, job.skip_errors)
        else:
            self._watch = None
        worker = get_worker_info()
        self._stopwatch = _stopwatch_of(job, 1 if worker is None else worker.num_workers)
        self._running: Stopwatch | None = None  # while a batch is timed
        if job.taught:
            teach(job.taught)
        self._framework = framework
        self._allocate = allocate
        self._n_workers = 1 if worker is None else worker.num_workers
        self._randomness = None if job.seed is None else self._make_randomness(job.seed)
        self._start = None if job.starts is None else job.starts[number or 0]
        self.begin_epoch(job.shared_seed)

    def begin_epoch(self, shared_seed: int | None) -> None:
        """Start over; a stream is iterated anew."""
        job = self._job
        if shared_seed is not None and is_datapipe(job.dataset):
            from headrace.frameworks.torch_datapipes import seed_graph

            seed_graph(job.dataset, shared_seed)
        collate, take, collator = _collation_of(job, self._framework, self._allocate)
        build: Callable[[int], Builder] | None = None if collator is None else partial(RowBuilder, collator)
        if self._stopwatch is not None and job.reader is None:  # else the reader says when it collates
            collate = self._stopwatch.watched(collate, batched=job.batched)
            build = self._stopwatch.builder(collator, collate)
        start, self._start = self._start, None
        self._tells_state = False  # of a dataset by key
        self._fetcher: Fetcher
        if job.reader is not None:
            self._fetcher = job.reader.open(
                Workplace(
                    job,
                    collate,
                    number=self._number,
                    kind=self._kind,
                    framework=self._framework,
                    allocate_here=self._allocate,
                    on_bad=self._note_bad if job.skip_errors else None,
                    lap=_no_lap if self._stopwatch is None else self._stopwatch.lap,
                )
            )
        elif job.iterable:
            self._fetcher = IterableFetcher(
                job.dataset,
                collate,
                drop_last=job.drop_last,
                build=build,
                watch=self._watch,
                randomness=self._randomness,
                lane=self._number or 0,
                start=start,
                snapshot_every=job.snapshot_every,
                saves_generators=job.saves_generators,
            )
        else:
            if start is not None:
                load_worker_state(job.dataset, start)
            self._tells_state = job.saves_generators or knows_state(job.dataset)
            is_ours = take is not None and not takes_by_user_code(job.dataset)
            self._fetcher = MapFetcher(
                job.dataset,
                collate,
                batched=job.batched,
                take=take,
                build=build,
                watch=self._watch,
                randomness=None if is_ours else self._randomness,
            )

    def _note_bad(self, row: Any, error: Exception) -> None:
        if self._watch is not None:
            self._watch.bad.append((row, error))

    def _make_randomness(self, seed: int) -> SampleRandomness:
        return SampleRandomness(
            seed,
            shares_generators=self._kind == "thread",
            gives_back=self._number is None,
            repeats=not self._job.iterable,
        )

    def work(self, task: Task) -> Outcome:
        """Make the batch of a task. Whatever the user's code raises is part of the outcome.

        The board tells of the task until `rest` is called.
        """
        running, watch = self._stopwatch, self._watch
        if running is not None:
            if task.number & running.tasks.mask:
                running = None
            else:
                running.begin(task.number)
        self._running = running
        if watch is None:
            return self._work(task)
        watch.leave_out = task.leave_out
        watch.board[POSITION] = -1
        watch.board[TASK] = task.number + 1
        outcome = self._work(task)
        if not watch.bad:
            return outcome
        described = self._described(watch.bad, task)
        watch.bad = []
        match outcome:
            case Finished():
                return outcome._replace(bad=described)
            case Skipped():
                return Skipped(task.number, described, outcome.state)
            case Exhausted():
                return Exhausted(task.number, described, outcome.state)
            case _:
                return outcome

    def rest(self) -> None:
        """The outcome has been handed over: the worker is at no task."""
        if self._watch is not None:
            self._watch.board[TASK] = 0

    def _work(self, task: Task) -> Outcome:
        try:
            batch = self._fetcher.fetch(task.keys)
            span = None if self._running is None else self._running.end()
            return Finished(task.number, batch, (), None, self._state(task), span, self._n_short())
        except EndOfStream:
            return Exhausted(task.number, (), self._state(task, is_last=True))
        except (NoSampleLeft, Abandoned):
            return Skipped(task.number, (), self._state(task))
        except Exception as error:  # noqa: BLE001 (any error of the user's code is told to the user)
            failure: Exception = error
            if isinstance(error, StopIteration):
                # It would end the epoch without a word, as it does inside a generator.
                failure = RuntimeError("A dataset or collate_fn raised StopIteration.")
                failure.__cause__ = error
            if self._job.skip_errors and self._watch is not None:
                self._watch.bad.append((key_at(task, -1), failure))
                return Skipped(task.number, (), self._state(task))
            return Failed(task.number, failure, self._state(task))

    def _n_short(self) -> int:
        """How many samples the batch has, if fewer than were asked for; -1 else."""
        return self._fetcher.n_short if isinstance(self._fetcher, IterableFetcher) else -1

    def _state(self, task: Task, *, is_last: bool = False) -> Any:
        """What is told of the dataset after a task, and of the generators, if that is wanted.

        Of datasets by key, each worker tells it after its last batch before every `snapshot_every`-th of all.
        """
        if isinstance(self._fetcher, IterableFetcher):
            return self._fetcher.state(is_last=is_last)
        if not self._tells_state or -(task.number + 1) % self._job.snapshot_every >= self._n_workers:
            return None
        return save_worker_state(self._job.dataset, saves_generators=self._job.saves_generators)

    def _described(self, bad: list[tuple[Any, Exception]], task: Task) -> tuple[BadSample, ...]:
        return tuple(describe_bad(key, task, self._number, error) for key, error in bad)

    def place(self, task: Task) -> str:
        """Where an error of this task was raised, for people: which worker, which batch, which sample."""
        position = -1 if self._watch is None else self._watch.board[POSITION]
        return f"in {whereabouts(self._kind, self._number)}, {place_of(task, position)}"


def save_worker_state(dataset: Any, *, saves_generators: bool) -> dict[str, Any]:
    """What a dataset by key tells of itself, if it does, and the generators that it draws from, if they are wanted."""
    state: dict[str, Any] = {"dataset": state_of(dataset)} if knows_state(dataset) else {}
    return {**state, "generators": save_worker_generators()} if saves_generators else state


def load_worker_state(dataset: Any, state: Mapping[str, Any]) -> None:
    """Go on from what `save_worker_state` gave."""
    if "dataset" in state:
        load_state(dataset, state["dataset"])
    if "generators" in state:
        load_worker_generators(state["generators"])


def _convert_columns(collator: Collator, columns: dict[str, Any]) -> dict[str, Any]:
    """Arrays become the framework's, but for those of times; lists, of strings and the like, stay lists."""
    return {
        name: column if type(column) is list else _convert_column(collator, column) for name, column in columns.items()
    }


def _convert_column(collator: Collator, column: Any) -> Any:
    if type(column) is np.ndarray:
        if column.dtype.kind in "biuf":  # what nearly all are
            return collator.framework.wrap(column)
        if column.dtype.kind in "mM":  # which only NumPy has
            return column
    return collator.convert(column)


def whereabouts(kind: str, worker: int | None) -> str:
    """Which worker, for people."""
    return f"DataLoader worker {kind} {worker} (pid {os.getpid()})"


def could_not_start(worker: int, task: Task, job: Job) -> Outcome:
    """The outcome of the tasks after the first, which told why: a stream that never began has ended."""
    if job.iterable:
        return Exhausted(task.number)
    return Failed(task.number, WorkerError(f"Worker {worker} could not start; the first error told why."))


def describe_bad(key: Any, task: Task, worker: int | None, error: BaseException) -> BadSample:
    """What is noted of a sample that is left out."""
    return BadSample(
        key,
        task.number,
        worker,
        "".join(traceback.format_exception_only(type(error), error)).strip(),
        "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    )


def place_of(task: Task, position: int) -> str:
    """Which sample of which batch, in words; position -1 means that no single one is known."""
    keys = _readable(task.keys)
    if hasattr(keys, "where"):  # of a stream: files, and rows in them
        return str(keys.where())
    batch = f"batch {task.number}"
    if isinstance(keys, Pull):
        return batch if position < 0 else f"{batch}, its sample {position}"
    if isinstance(keys, (list, tuple)) and len(keys) == 1:
        position = 0
    if isinstance(keys, (list, tuple)) and 0 <= position < len(keys):
        return f"{batch}, sample {keys[position]!r}"
    shown = repr(keys)
    return f"{batch}, keys {shown if len(shown) <= 200 else shown[:200] + '…'}"


def key_at(task: Task, position: int) -> Any:
    """The key of one sample of a task, or all of them if no single one is known."""
    keys = _readable(task.keys)
    if hasattr(keys, "where"):
        return str(keys.where())
    if isinstance(keys, (list, tuple)) and 0 <= position < len(keys):
        return keys[position]
    return None if isinstance(keys, Pull) else keys


def _readable(keys: Any) -> Any:
    if isinstance(keys, PlacedKeys):
        keys = keys.keys
    return keys.array.tolist() if isinstance(keys, PackedIndices) else keys


def _collation_of(
    job: Job, framework: Framework | None, allocate: Allocate = empty_aligned
) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None, Collator | None]:
    """What collates samples, what takes whole batches from the dataset, and what collates samples as they arrive.

    The latter two are None where there is no such way.
    """
    collate_fn = job.collate_fn
    if collate_fn is not None and not job.convert and not isinstance(collate_fn, FrameworkCollate):
        return collate_fn, None, None
    collator = Collator(framework_of(job.output, allocate) if framework is None else framework)
    if isinstance(collate_fn, FrameworkCollate):
        return partial(collate_fn.collate_into, collator=collator), None, None
    if collate_fn is not None:
        return lambda samples: collator.convert(collate_fn(samples), tuples_to_lists=False), None, None
    if not job.batched:
        return collator.convert, None, None
    take = None
    if not job.iterable and collates_rows_by_default():
        take = find_take(job.dataset, collator.framework, collator.convert)
    return collator, take, collator

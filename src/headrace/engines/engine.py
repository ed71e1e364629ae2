"""What every engine does, and what it is told about the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.base.messages import Outcome, Task


@dataclass(frozen=True)
class Job:
    """How tasks become batches; what every worker gets once, before the first task.

    Attributes:
        iterable: whether the dataset is a user's iterable, whose tasks are `Pull`s.
        batched: whether a task is a batch of samples or a single one.
        collate_fn: the user's, or None for the default one.
        output: the framework whose arrays the default collation makes.
        convert: whether the arrays of a user's collation are to be turned into the framework's too.
        init_fn: called with its number in every worker, before the first task.
        base_seed: what the workers' generators are seeded from.
        shared_seed: for the random parts of a DataPipe, the same on all workers.
        skip_errors: whether samples that raise are left out of their batch.
        seed: what the samples' random numbers are keyed by, together with their places; None for torch's meaning.
        starts: where the workers begin, one for each, as `Plan.starts` tells; None for the beginning.
        snapshot_every: after how many batches a dataset that knows its state is asked for it.
        saves_generators: whether the states of the workers' generators are wanted with it.
        reader: opened in the worker to answer its tasks, instead of a dataset; it has a method `open(workplace)`.
        taught: the collate functions that the user has registered, by type.
        timed: whether workers tell when they made their batches.
    """

    dataset: Any
    iterable: bool
    batched: bool
    drop_last: bool
    collate_fn: Callable[[Any], Any] | None
    output: str
    convert: bool
    init_fn: Callable[[int], None] | None = None
    base_seed: int = 0
    shared_seed: int | None = None
    skip_errors: bool = False
    seed: int | None = None
    starts: tuple[Any, ...] | None = None
    snapshot_every: int = 1
    saves_generators: bool = False
    reader: Any = None
    taught: Mapping[type, Any] = field(default_factory=dict)
    timed: bool = False


@dataclass(frozen=True)
class EngineOptions:
    """What a loader wants of an engine that is made for it.

    Attributes:
        workers: how many lanes tasks are dealt to.
        prefetch_factor: tasks that each has in flight.
        timeout: seconds without any outcome after which `receive` raises; 0 waits for ever.
        restart: whether a worker that was lost is replaced; `max_restarts` how many in a row, with no batch in between.
        on_restart: called for each worker that is replaced, with a text and its number.
        deepens: whether more tasks may be in flight while batches are quick and small.
    """

    workers: int
    prefetch_factor: int
    timeout: float = 0
    restart: bool = False
    max_restarts: int | None = None
    on_restart: Callable[[str, int], None] | None = None
    deepens: bool = False


class EngineMaker(Protocol):
    """Makes the engines of a loader; `DataLoader(engine=...)` takes one, too."""

    def make_engine(self, options: EngineOptions) -> Engine: ...


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """Somebody has called `interrupt`."""


class Engine(Protocol):
    """Runs tasks. One owner calls `start` once, then `submit` and `receive` in any order, then `close`.

    Guarantees: every submitted task comes back exactly once, as `Finished`, `Failed`, `Skipped` or `Exhausted`, in any
    order over workers.
    """

    workers: int
    """How many lanes tasks are dealt to."""

    capacity: int
    """How many tasks may ever be in flight at once."""

    @property
    def depth(self) -> int:
        """How many tasks are worth having in flight now; at most `capacity`."""
        ...

    works_ahead: bool
    """Whether tasks are worked on while nobody waits in `receive`."""

    def start(self, job: Job) -> None:
        """Get ready to work on `job`. Errors of the user's `__iter__` come from here, or as the first outcome."""

    def submit(self, task: Task, *, more: bool = False) -> None:
        """Accept a task; returns at once. At most `capacity` are in flight.

        Args:
            more: another one follows at once, or `flush`; so this one may be kept, to be sent with it.
        """

    def flush(self) -> None:
        """Send what was kept."""

    def receive(self) -> Outcome:
        """Wait for a task to end and tell how. Called only while tasks are in flight.

        Raises:
            WorkerError: a worker died, or nothing came in time.
        """

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        """Give up what is in flight and let the workers start over, with the same dataset and generators."""

    def interrupt(self) -> None:
        """Let a `receive` that waits in another thread raise `Interrupted`."""

    def close(self) -> None:
        """End everything that was started; may be called again, and from another thread than `receive`."""

"""What every engine does, and what it is told about the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.base.messages import Outcome, Task


@dataclass(frozen=True)
class Job:
    """How tasks become batches; what every worker gets once, before the first task.

    Attributes:
        iterable: whether the dataset is a stream, whose tasks are `Pull`s.
        batched: whether a task is a batch of samples or a single one.
        collate_fn: the user's, or None for the default one.
        output: the framework whose arrays the default collation makes.
        convert: whether the arrays of a user's collation are to be turned into the framework's too.
    """

    dataset: Any
    iterable: bool
    batched: bool
    drop_last: bool
    collate_fn: Callable[[Any], Any] | None
    output: str
    convert: bool


class Engine(Protocol):
    """Runs tasks. One owner calls `start` once, then `submit` and `receive` in any order, then `close`.

    Guarantees: every submitted task comes back exactly once, as `Finished`, `Failed` or `Exhausted`, in any order.
    """

    capacity: int
    """How many tasks may be in flight at once."""

    def start(self, job: Job) -> None:
        """Get ready to work on `job`. Errors of the user's `__iter__` come from here."""

    def submit(self, task: Task) -> None:
        """Accept a task; returns at once. At most `capacity` are in flight."""

    def receive(self) -> Outcome:
        """Wait for a task to end and tell how. Called only while tasks are in flight."""

    def close(self) -> None:
        """End everything that was started; may be called again."""

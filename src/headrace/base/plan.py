"""What a plan is: one epoch, as the loop is to get it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.messages import BadSample, Failed, Outcome, Span, Task

LOST: Final = object()
"""Stands where a batch would be that raised, and is left out."""


class Batches(NamedTuple):
    """Batches that are due, one after the other.

    Attributes:
        opened: makes them, each when it is taken; what it raises ends the epoch.
        marks: where the epoch is after each of them, for `Plan.give`.
        bad: samples that were left out on the way to the first of them.
        where: what they are made of, for people, if they are made in the loop.
        n_tasks: how many tasks they are the answers to.
    """

    opened: Callable[[], Iterable[Any]]
    marks: Iterator[Any]
    bad: tuple[BadSample, ...] = ()
    where: Callable[[], str] | None = None
    n_tasks: int = 1


Due: TypeAlias = "tuple[Task, Outcome] | Batches"
"""What the loop gets: the batch of a task, or its error; or several batches."""


class Plan(ABC):
    """One epoch: what to ask of the workers next, what their answers mean, and how far the loop has come.

    Guarantees: pure. It knows no engine and no clock; what must be read to plan on is asked for through `call`. The
    flow asks for tasks, sees that at most so many are in flight, and hands over each outcome once: a question's at
    once, any other's in the order of the tasks.

    Attributes:
        epoch: its number.
        start: the position that it began with, as `position` gave it; empty at its beginning.
        first: the number of the first batch that is to be given.
        batches: all batches before this number were given.
        latest: the number of the batch that was given last.
        is_complete: whether nothing more will be due, whatever is in flight.
        is_over: whether the loop has seen the end.
        workers: how many there are, and `base_seed` what their generators are seeded from.
        shared_seed: of a DataPipe.
        spans: when batches were made in the loop.
        marks: of the batches that are being given out. Since the last `give`, the flow gave `pending` of them, and
            `taken` were taken without asking it.
        on_given: hears how many batches were taken, and how many samples were given.
        flow: what runs it, as long as that is there: a cycle of references would keep workers alive.
        skips: the ranges of batches that are not to be given.
    """

    takes_turns = False
    """Whether each worker gets every n-th task, as in torch; else whichever is free gets the next."""

    survives_errors = True
    """Whether the epoch goes on after an error; else that ends it."""

    passes_on = False
    """Whether outcomes are due as they are: `accept` has nothing to do."""

    bounds_itself = False
    """Whether the plan limits its own work in flight; the flow then ignores `engine.depth`."""

    makes_batches = False
    """Whether batches are made in the loop, so that only there they can be pinned, or moved to a device."""

    replays = False
    """Whether a worker must iterate again up to where the epoch was left."""

    ended: Sequence[int] = ()
    """The workers that have nothing left to give."""

    after: int | None = None
    """The worker that had the last turn."""

    def __init__(self, epoch: int, start: Mapping[str, Any] | None = None, *, batches: int = 0) -> None:
        self.epoch = epoch
        self.start: Mapping[str, Any] = {} if start is None else start
        self.first = self.batches = batches
        self.latest = -1
        self.is_complete = self.is_over = False
        self.workers = 0
        self.base_seed = 0
        self.shared_seed: int | None = None
        self.flow: Callable[[], Any] = _no_flow
        self.spans: list[Span] = []
        self.marks: Iterator[Any] = iter(())
        self.pending = self.taken = 0
        self.on_given: Callable[[int, int], None] | None = None
        self.skips: tuple[tuple[int, int], ...] = ()

    @abstractmethod
    def next_task(self, worker: int) -> Task | Failed | Due | None:
        """What to ask for next; or what is due without being asked for; None if there is nothing for now.

        Tasks with numbers below -1 are questions, whose answers are not due themselves, and are accepted at once.

        Args:
            worker: whose turn it is; a plan may choose another one.
        """

    def call(self, requests: Sequence[Any]) -> list[Outcome]:
        """Have requests answered by the workers now, out of turn.

        Raises:
            RuntimeError: no flow runs this plan.
        """
        flow = self.flow()
        if flow is None:
            raise RuntimeError("A plan must be run by a flow before it can ask for anything.")
        answers: list[Outcome] = flow.call(requests)
        return answers

    def accept(self, task: Task, outcome: Outcome) -> Iterable[Due]:
        """What an outcome makes due."""
        return ((task, outcome),)

    def give_one(self, task: Task, outcome: Outcome) -> int:
        """The loop gets the outcome of a task; how many samples it has."""
        return 0

    def give(self, marks: Iterator[Any], n: int) -> int:
        """The loop has got the n batches that these marks begin with; how many samples they have."""
        return 0

    def number_of(self, task: Task) -> int:
        """Which batch of the epoch the loop is about to get, if it is that of a task."""
        return task.number

    def is_skipped(self, number: int) -> bool:
        """Whether a batch is not to be given."""
        return any(first <= number < end for first, end in self.skips)

    @property
    def began_at(self) -> int:
        """Where it began, in the order of all ranks."""
        return self.first

    def prepare(self, reader: Any, workplace: Any) -> None:  # noqa: B027 (most plans make none)
        """Know how workers make batches, for those that are made in the loop."""

    def starts(self) -> Any:
        """Where the workers begin, one by one; None for the beginning."""
        return None

    def lasting(self) -> dict[str, Any]:
        """What workers told of their datasets and generators, which last longer than the epoch if the workers do."""
        return {}

    def catch_up(self) -> None:
        """Take note of all batches that were given: they are not noted one by one."""
        taken, n = self.taken, self.pending + self.taken
        self.pending = self.taken = 0
        if n:
            n_samples = self.give(self.marks, n)
            if self.on_given is not None:
                self.on_given(taken, n_samples)

    def wait(self) -> bool:
        """Nothing is in flight or due: wait until there is something to ask for; False if there never will be."""
        return False

    def finish(self) -> Iterable[Due]:
        """What is due at the end, when there is nothing left to ask for."""
        return ()

    def abandon(self) -> None:  # noqa: B027 (most plans hold nothing)
        """Nobody wants the rest."""

    def locate(self, bad: tuple[BadSample, ...]) -> tuple[BadSample, ...]:
        """Samples that were left out, with the number of the batch that they were left out of."""
        return bad

    @abstractmethod
    def keys(self, mark: Any) -> Any:
        """What identifies the samples of a batch, for an audit; `mark` is a task, or one of those that `give` takes."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Where the loop is: plain values, from which another plan goes on."""

    def describe(self, task: Task) -> tuple[Any, ...]:
        """What a task does in words, and how many samples it makes; nothing if it makes one batch of its keys."""
        return ()


def _no_flow() -> None:
    """Nothing runs it yet."""

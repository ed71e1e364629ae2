"""Runs a plan on an engine: dispatch, order, errors, accounts and timing."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, Protocol

from headrace.base.errors import add_note
from headrace.base.messages import BadSample, Exhausted, Failed, Finished, LazyBatch, Outcome, Skipped, Span, Task
from headrace.base.plan import LOST, Batches, Due, Plan
from headrace.engines.engine import Engine
from headrace.round_robin import RoundRobin

_MANY = 8  # tasks in flight per worker
_FIRST_CALL = -(2**62)  # numbers of calls count down from here; those of a plan's own questions, from -2


class Account(Protocol):
    """Keeps account of the samples of an epoch."""

    def ask(self, task: Task, keys: Any) -> None:
        """A batch of these is asked for."""

    def settle(self, task: Task, outcome: Outcome) -> None:
        """What became of it is told to the loop now."""

    def give(self, keys: Any, *, is_lost: bool) -> None:
        """A batch of these is handed to the loop, or left out, because it raised."""

    is_surplus: bool
    """Whether what comes now is left out, to keep ranks in step."""

    @property
    def names_samples(self) -> bool:
        """Whether it knows which samples there are."""

    def end(self) -> None:
        """The loop is told that there is nothing more."""


class Timekeeper(Protocol):
    """Hears when tasks were done, and counts what the loop gets."""

    samples: int
    n_tasks: int
    plan: Callable[[], Plan | None]
    """The plan whose batches they are, as long as it is there: what is known of old epochs keeps no data alive."""

    def count(self, n_batches: int, n_samples: int) -> None:
        """The loop has received some samples, in batches that were counted before, and in `n_batches` more."""

    def made(self, task: Task, span: Span, keys: Any = None, n_samples: int | None = None) -> None:
        """A worker has done a task; what it did in words, and for how many samples, unless it made one batch."""


class Flow:
    """One epoch of batches, as an iterator.

    Guarantees: each task is submitted once and its outcome is told once; at most `engine.depth` tasks are between
    submission and delivery, unless the plan bounds itself; a plan is asked no earlier than that allows; with
    `in_order`, batches leave in the order in which they were asked for.

    Args:
        on_bad: hears of samples that were left out, in the order of their batches; what it raises ends the epoch.
        on_first: hears of the fingerprints of each worker's first batches.
        account: hears of every batch.
        run: hears of the tasks that were timed.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        *,
        in_order: bool = True,
        on_bad: Callable[[tuple[BadSample, ...]], None] | None = None,
        on_first: Callable[[int, int], None] | None = None,
        account: Account | None = None,
        run: Timekeeper | None = None,
    ) -> None:
        self.plan = plan
        plan.flow = weakref.ref(self)
        self._engine = engine
        self._works_ahead = engine.works_ahead
        self._workers = RoundRobin(
            engine.workers, wait_for_each=in_order and plan.takes_turns, after=plan.after, ended=plan.ended
        )
        self._in_order = in_order
        self._next_place = 0  # whose turn it is
        self._early: dict[int, Due] = {}  # that have come before their turn
        self._on_bad = on_bad
        self._on_first = on_first
        self._account = account
        self._run = run
        if run is not None:
            plan.on_given = run.count
            run.plan = weakref.ref(plan)
        self._in_flight: dict[int, tuple[Task, int]] = {}  # and their places in the order; -1 for questions
        self._called: dict[int, Outcome | None] = {}
        self._released: deque[Due] = deque()  # in their order, but not accepted yet
        self._is_taking = False
        self._due: deque[Due] = deque()
        self._batches: Iterator[Any] = iter(())  # that are being given out
        self.ready: Iterator[Any] | None = None
        """The same, if whoever takes one has nothing to do but to count it in `plan.taken`."""
        self._is_plain = on_bad is None and account is None
        self._where: Callable[[], str] | None = None
        self._n_places = 0  # in the order
        self._n_open = 0  # tasks that were asked for, and of which the loop has not heard yet
        self._enough = -1  # tasks open: at so many, more are asked for though nobody waits; -1 where none works ahead
        self._n_questions = 0
        self._has_ended = False

    @property
    def latest(self) -> int:
        """The number of the batch that was given last."""
        return self.plan.latest + self.plan.pending + self.plan.taken

    def __iter__(self) -> Flow:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised. If the plan survives errors, the next call goes on after that.
            StopIteration: the epoch is over.
        """
        while True:
            try:
                for batch in self._batches:
                    self.plan.pending += 1
                    if self.plan.skips and self.plan.is_skipped(self.latest):
                        batch = LOST
                    if batch is LOST or self._account is not None:
                        self._account_for(batch)
                        if batch is LOST:
                            continue
                    if self.plan.spans:
                        self._note_spans()
                    return batch
            except BaseException as error:
                self.break_off(error)
                raise
            if self.plan.pending or self.plan.taken:
                self.plan.catch_up()
            if not self._due or not self._works_ahead:
                self._wait()
            due = self._due[0]
            if type(due) is Batches:
                self._begin(due)
                continue
            task, outcome = due  # type: ignore[misc]
            if self.plan.skips and isinstance(outcome, (Finished, Failed)):
                outcome = self._unless_skipped(task, outcome)
            if type(outcome) is Finished:
                batch = outcome.batch
                if type(batch) is LazyBatch:  # unpacked before it is taken: Ctrl-C may come in between
                    try:
                        batch = batch()
                    except Exception as error:  # noqa: BLE001 (an object that cannot be rebuilt here)
                        outcome = Failed(outcome.number, error, outcome.state, outcome.bad)
            self._due.popleft()
            self._n_open -= 1
            n_samples = self.plan.give_one(task, outcome)
            if type(outcome) is not Finished:
                self._tell(task, outcome)
                continue
            if outcome.bad:
                self._report(outcome.bad)
            if self._n_open <= self._enough:
                self.fill()
            if self._account is not None:
                self._account.settle(task, outcome)
            if self._run is not None:
                self._run.samples += n_samples
            return batch

    def peek(self) -> Literal["batch", "error", "end"]:
        """Wait for what the loop gets next, and say what it is; what is none of these is told on the way."""
        while True:
            try:
                for batch in self._batches:
                    if batch is not LOST:
                        self._batches = chain((batch,), self._batches)
                        return "batch"
                    self.plan.pending += 1
                    self._account_for(batch)
            except BaseException as error:
                self.break_off(error)
                raise
            if self.plan.pending or self.plan.taken:
                self.plan.catch_up()
            try:
                if not self._due:
                    self._wait()
            except StopIteration:
                return "end"
            due = self._due[0]
            if type(due) is Batches:
                self._begin(due)
                continue
            task, outcome = due  # type: ignore[misc]
            if isinstance(outcome, (Finished, Failed)):
                return "batch" if type(outcome) is Finished else "error"
            self._due.popleft()
            self._n_open -= 1
            self.plan.give_one(task, outcome)
            self._tell(task, outcome)

    def forgo(self, n: int | None = None) -> None:
        """Leave out the next n batches, which are accounted for; None for all that are left."""
        account = self._account
        if n is None and (account is None or not account.names_samples):
            self._end()
            self.abandon()
            return
        if account is not None:
            account.is_surplus = True
        while n is None or n > 0:
            try:
                next(self)
            except StopIteration:
                return
            except Exception:  # noqa: BLE001 (nobody waits for it)
                pass
            n = None if n is None else n - 1
        if account is not None:
            account.is_surplus = False

    def _unless_skipped(self, task: Task, outcome: Finished | Failed) -> Outcome:
        if not self.plan.is_skipped(self.plan.number_of(task)):
            return outcome
        return Skipped(outcome.number, outcome.bad, outcome.state)

    def break_off(self, error: BaseException) -> None:
        """A batch could not be taken: those that were to come next are gone."""
        if self._where is not None and isinstance(error, Exception):
            add_note(error, f"in {self._where()}")
        self.abandon()

    def _account_for(self, batch: Any) -> None:
        """A batch is given that somebody keeps account of, or is left out."""
        self.plan.pending -= 1
        self.plan.catch_up()
        is_lost, mark = batch is LOST, next(self.plan.marks)
        if self._account is not None:
            self._account.give(self.plan.keys(mark), is_lost=is_lost)
        n_samples = self.plan.give(iter((mark,)), 1)
        if self._run is not None and not is_lost:
            self._run.samples += n_samples

    def _note_spans(self) -> None:
        """Batches were made in the loop."""
        if self._run is not None:
            for span in self.plan.spans:
                self._run.n_tasks += 1
                self._run.made(Task(-1, None, -1), span, "a batch that is made in the loop", 0)
        self.plan.spans.clear()

    def _tell(self, task: Task, outcome: Outcome) -> None:
        """The loop hears of something that is no batch."""
        if outcome.bad:
            self._report(outcome.bad)
        if self._account is not None:
            self._account.settle(task, outcome)
        if isinstance(outcome, Failed):
            if not self.plan.survives_errors:
                self.abandon()
            elif self._n_open <= self._enough:
                self.fill()
            try:
                raise outcome.error
            finally:
                del outcome  # the traceback knows this frame; so nothing is kept alive in a circle
        self.fill()

    def _begin(self, due: Batches) -> None:
        """Begin to give out several batches."""
        try:
            self._batches, self.plan.marks, self._where = iter(due.opened()), due.marks, due.where
            self.ready = self._batches if self._is_plain and not self.plan.skips else None
            self._due.popleft()
            self._n_open -= due.n_tasks
            if due.bad:
                self._report(due.bad)
        except BaseException:
            self.abandon()  # what is left does not fit together any more
            raise
        if self._works_ahead:
            self.fill()

    def _wait(self) -> None:
        """See that something is due.

        Raises:
            StopIteration: there is nothing left.
        """
        asks = self.plan.bounds_itself or not self._works_ahead
        if not self._works_ahead:
            self.fill()
        while not self._due:
            if self._in_flight and not self.plan.is_complete:
                self._receive()
                if asks and not self._due:
                    self.fill()
                continue
            if not self.plan.is_complete:
                self.fill()
                if self._in_flight or self._due or (not self._has_ended and self.plan.wait()):
                    continue
            self._due.extend(() if self._has_ended else self._finish())
            if not self._due:
                self._end()
                raise StopIteration

    def _finish(self) -> Iterable[Due]:
        self._has_ended = True
        due = list(self.plan.finish())
        self._n_open += len(due)
        return due

    def fill(self) -> None:
        """Ask for as much as may be in flight.

        Where that is much, a sixteenth of it is asked for at a time: so the workers wake less often.
        """
        if self._has_ended:
            return
        engine = self._engine
        depth = engine.depth
        if not self._works_ahead:  # then nothing is kept, either
            self._ask_freely() if self.plan.bounds_itself else self._ask(depth)
            return
        self._enough = depth - (depth // 16 if depth >= _MANY * engine.workers else 1)
        try:
            self._ask_freely() if self.plan.bounds_itself else self._ask(depth)
        finally:
            engine.flush()

    def _ask(self, depth: int) -> None:
        workers = self._workers
        while self._n_open < depth:
            worker = workers.choose(depth)
            if worker is None:  # all are busy, or have ended
                return
            try:
                task = self.plan.next_task(worker)
            except Exception as error:  # noqa: BLE001 (raised when its batch is due)
                task = self._fail(error)
            if type(task) is not Task:
                workers.take_back(worker)
                if task is None:
                    return
                self._place(task)
                continue
            if task.worker != worker:
                workers.take_back(worker)
                workers.add(task.worker)
            self._submit(task)

    def _ask_freely(self) -> None:
        """Ask for all that the plan wants; without workers, one task at a time."""
        workers = self._workers
        while self._works_ahead or not (self._in_flight or self._due):
            try:
                task = self.plan.next_task(workers.idlest())
            except Exception as error:  # noqa: BLE001 (raised when its batch is due)
                task = self._fail(error)
            if task is None:
                return
            if type(task) is Task:
                workers.add(task.worker)
                self._submit(task)
            else:
                self._place(task)

    def _fail(self, error: Exception) -> Failed:
        self._has_ended = True
        return Failed(self.plan.batches, error)

    def _place(self, item: Any) -> None:
        """Something is due after all that was asked for before."""
        self._n_open += 1
        due: Due = (Task(item.number, None), item) if isinstance(item, Failed) else item
        if self._account is not None and type(due) is tuple and isinstance(due[1], Skipped):
            self._account.ask(due[0], self.plan.keys(due[0]))  # left out without being loaded
        place, self._n_places = self._n_places, self._n_places + 1
        self._release(place, due)

    def _submit(self, task: Task) -> None:
        place = -1
        if task.number >= 0:
            self._n_open += 1
            place, self._n_places = self._n_places, self._n_places + 1
            keys = None if self._account is None else self.plan.keys(task)
            if self._account is not None and keys is not None:
                self._account.ask(task, keys)
        try:
            self._engine.submit(task, more=True)
        except Exception as error:  # noqa: BLE001 (keys that cannot be sent are no reason to lose the batch that is due)
            self._workers.take_back(task.worker)
            self._arrive(task, place, Failed(task.number, error))
        else:
            self._in_flight[task.number] = (task, place)

    def call(self, requests: Sequence[Any]) -> list[Outcome]:
        """Have the workers answer some requests now, while they go on with what they were asked for before."""
        numbers = []
        for keys in requests:
            self._n_questions += 1
            number, worker = _FIRST_CALL - self._n_questions, self._workers.idlest()
            self._called[number] = None
            numbers.append(number)
            self._workers.add(worker)
            self._submit(Task(number, keys, worker))
        self._engine.flush()
        answers: list[Outcome] = []
        for number in numbers:
            while (answer := self._called[number]) is None:
                self._receive()
            answers.append(answer)
            del self._called[number]
        return answers

    def _receive(self) -> None:
        outcome = self._engine.receive()
        task, place = self._in_flight.pop(outcome.number)
        self._workers.take_back(task.worker)
        run = self._run
        if type(outcome) is Finished:
            if run is not None:
                run.n_tasks += 1
                if outcome.span is not None:
                    run.made(task, outcome.span, *self.plan.describe(task))
            if outcome.fingerprint is not None and self._on_first is not None:
                self._on_first(task.worker, outcome.fingerprint)
        elif isinstance(outcome, Exhausted):
            self._workers.retire(task.worker)
        if place == self._next_place and self.plan.passes_on and not self._early:  # as nearly all do
            self._next_place += 1
            self._due.append((task, outcome))
        else:
            self._arrive(task, place, outcome)

    def _arrive(self, task: Task, place: int, outcome: Outcome) -> None:
        if place < 0:
            if task.number in self._called:
                self._called[task.number] = outcome
                return
            try:
                self.plan.accept(task, outcome)
            except Exception as error:  # noqa: BLE001 (raised after all that was asked for before)
                self._place(self._fail(error))
        else:
            self._release(place, (task, outcome))

    def _release(self, place: int, due: Due) -> None:
        """Something has come: let the plan accept it, and what waited for it, each in its turn.

        A plan may call the workers meanwhile: what comes then waits for its own turn.
        """
        if self._in_order and place != self._next_place:
            self._early[place] = due
            return
        self._released.append(due)
        self._next_place += 1
        while self._next_place in self._early:
            self._released.append(self._early.pop(self._next_place))
            self._next_place += 1
        if self._is_taking:
            return
        self._is_taking = True
        try:
            while self._released:
                one = self._released.popleft()
                if type(one) is Batches or self.plan.passes_on:
                    self._due.append(one)
                else:
                    self._take(*one)
        finally:
            self._is_taking = False

    def _take(self, task: Task, outcome: Outcome) -> None:
        try:
            self._due.extend(self.plan.accept(task, outcome))
        except Exception as error:  # noqa: BLE001 (what cannot be made of it is raised in its turn)
            self._due.append((task, Failed(task.number, error)))

    def _report(self, bad: tuple[BadSample, ...]) -> None:
        if self._on_bad is None:
            return
        try:
            self.plan.catch_up()
            self._on_bad(self.plan.locate(bad))
        except BaseException:
            self.abandon()
            raise

    def _end(self) -> None:
        account, self._account = self._account, None  # the loop may ask again
        if account is not None:
            account.end()

    def abandon(self) -> None:
        """Give up the rest of the epoch, but leave the engine for the next one."""
        self.plan.catch_up()
        self._has_ended = True
        self._account = None
        self._batches, self.ready = iter(()), None
        self._due.clear()
        self._released.clear()
        self._early.clear()
        self._in_flight.clear()
        self._called.clear()
        self.plan.abandon()

    def close(self) -> None:
        """Give up the rest of the epoch, and end the engine."""
        self.abandon()
        self._engine.close()

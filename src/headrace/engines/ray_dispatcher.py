"""The thread that talks to Ray: hosts seats on actors, sends tasks, takes in answers, and sees to lost actors."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter_ns
from typing import Any, NamedTuple, Protocol

import ray

from headrace.base.errors import InternalError, WorkerError, WorkerStartError
from headrace.base.messages import Failed, Finished, Task
from headrace.base.node_notes import WORTH_NOTING, NodeNotes
from headrace.base.randomness import WorkerStates
from headrace.batch.fetch import POSITION, TASK
from headrace.engines.fleet import Duties, Fleet, Loss
from headrace.engines.outbox import Report
from headrace.engines.ray_clock import PACE_S, Clock, WorkerPace
from headrace.engines.ray_cluster import (
    Request,
    count_places,
    describe_cause,
    describe_cluster,
    describe_place,
    look_at,
    room_for_batches,
    tidy_up,
)
from headrace.engines.ray_worker import SEAT, Answer, Entry, Opening, WorkerPlace
from headrace.engines.stopwatch import cut_trailer
from headrace.engines.worker import place_of
from headrace.frameworks.recycled_memory import RecycledMemory
from headrace.transport.apart import put_together
from headrace.transport.encoding import pack_message

_TICK_S = 0.25  # while something is about to change: an actor starts, or a seat has none
_QUIET_S = 2.0  # after that long without a word of an actor it is asked whether it is there
_START_PATIENCE_S = 5.0  # that a seat waits for an actor of its own, before it shares one
_REPLAY_PATIENCE_S = 5.0  # the same, of a user's iterable, which would hold up the other seat while it is run forward
_QUICK_NS = 2_000_000  # per task: several of these are done in one call
_MOST_PER_CALL = 32
_CALL_BYTES = 2**20
_MOST_LOSSES = 3  # at one sample: where processes are killed, several may meet by chance


class Submit(NamedTuple):
    """Tasks, each with its bytes."""

    tasks: list[tuple[Task, bytes]]


class Begin(NamedTuple):
    """Let all workers begin another epoch."""

    shared_seed: int | None


class EpochBegun(NamedTuple):
    """All workers have begun it; nothing of the epoch before will come."""

    number: int


class Describe(NamedTuple):
    """Tell what the workers are at."""

    answer: SimpleQueue[str]


class Roster(Protocol):
    """Gives actors, of this engine alone or of a pool.

    Attributes:
        least: how many actors there are at first, and are to be at least; `most` at most.
        client: tells this process from others that use the same actors.
    """

    client: int
    request: Request
    least: int
    most: int

    def hire(self, slot: int) -> Any:
        """A handle of the actor in a slot, which may be pending."""
        ...

    def lost(self, slot: int, handle: Any) -> None:
        """That actor is gone, or cannot be reached; `hire` gives another one from now on."""

    def dismiss(self, actors: list[tuple[Any, WorkerPlace | None]], grace_s: float) -> None:
        """These are not needed any more."""


@dataclass(eq=False)
class Member:
    """An actor as this engine sees it.

    Attributes:
        place: None until it is there.
        seats: of this engine.
        refs: of calls that have not come back.
        ended_at: when the last call ended, by its own clock.
        is_leaving: whether it is not needed any more; it ends when its seats have moved.
        heard_at: when it last answered; `is_asked` whether it was asked for a sign of life since.
    """

    slot: int
    handle: Any
    place: WorkerPlace | None = None
    seats: list[RaySeat] = field(default_factory=list)
    refs: dict[int, Any] = field(default_factory=dict)
    since: float = field(default_factory=monotonic)
    heard_at: float = field(default_factory=monotonic)
    is_asked: bool = False
    is_lost: bool = False
    is_leaving: bool = False
    ended_at: int = 0
    clock: Clock = field(default_factory=Clock)


@dataclass(eq=False, kw_only=True)
class RaySeat(Duties):
    """A worker's seat.

    Attributes:
        name: of the seat where it is now; another one each time that it is hosted.
        unsent: messages that wait to be sent.
        calls: that have not come back.
        order: numbers of the calls whose answers are taken in one after the other, as the worker did them, because
            each tells the states after it. `answered` is what came of them: reports, or the numbers under
            which they wait in the worker; `fetched` are those that were brought since.
        waits_until: without an actor; then it shares one.
        is_moving: whether it goes to another actor as soon as no call is out.
    """

    name: int = 0
    member: Member | None = None
    unsent: list[bytes] = field(default_factory=list)
    calls: int = 0
    order: deque[int] = field(default_factory=deque)
    answered: dict[int, deque[Report | int]] = field(default_factory=dict)
    fetched: dict[int, Report | None] = field(default_factory=dict)
    waits_until: float = 0.0
    is_moving: bool = False
    was_hosted: bool = False


@dataclass(eq=False)
class Call:
    """One call of an actor.

    Attributes:
        name: of the seat when it was made.
        n_tasks: that it is to do.
        room: bytes that its answer may take.
        fetches: the number under which a report waits in the worker.
    """

    number: int
    kind: str
    member: Member
    seat: RaySeat | None = None
    name: int = 0
    n_tasks: int = 0
    room: int = 0
    fetches: int = 0
    sent_at: int = field(default_factory=perf_counter_ns)


class Dispatcher:
    """Keeps the books of one engine, all in its own thread.

    Args:
        job: a reference to the packed job.
        nodes: where it notes how quick workers and the network are.
        outcomes: what it tells: outcomes, errors, `EpochBegun`, and warnings as functions to call.

    Attributes:
        inbox: what it is told: `Submit`, `Begin`, `Describe`, calls that have come back; None ends it.
        broken: the error after which nothing more comes.
        n_bytes: of all batches so far; `waited_s` how long the loop has waited, which the loop tells.
    """

    def __init__(self, fleet: Fleet, roster: Roster, job: Any, outcomes: SimpleQueue[Any], nodes: NodeNotes) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.broken: WorkerError | None = None
        self.n_bytes = 0
        self.waited_s = 0.0
        self.grace_s = 1.0
        self._fleet = fleet
        self._roster = roster
        self._job = job
        self._outcomes = outcomes
        self._nodes = nodes
        self._first_job = fleet.job
        self._members: dict[int, Member] = {}
        self._names = int.from_bytes(os.urandom(6), "little") << 12  # of seats: nobody else's, in a shared pool
        self._n_calls = 0
        self._seats = [
            RaySeat(number=number, waits_until=monotonic() + _START_PATIENCE_S) for number in range(fleet.workers)
        ]
        self._room = room_for_batches()
        self._granted = 0
        # A heap of what waits in workers: the task, the number that it waits under, bytes, the seat, its name then.
        self._held: list[tuple[int, int, int, RaySeat, int]] = []
        self._task_bytes = self._room // (2 * fleet.workers)  # expected of one batch
        self._task_ns = float(2 * _QUICK_NS)
        self._recycled = RecycledMemory()
        self._checked_at = 0.0
        self._pace = WorkerPace(roster.least, roster.most)

    def run(self) -> None:
        """Until it is told to end."""
        try:
            for slot in range(self._roster.least):
                self._hire(slot)
            while True:
                try:
                    told = self.inbox.get(timeout=self._tick_s())
                except Empty:
                    told = self._look_around
                if told is None:
                    return
                self._handle(told)
                del told
                self._tell()
                if self.broken is not None:
                    return
        except Exception as error:  # noqa: BLE001 (the loop would wait for ever)
            if self.broken is None:
                broken = InternalError(f"The thread that talks to Ray failed: {error!r}.")
                broken.__cause__ = error
                self.broken = WorkerError(str(broken))
                self.broken.__cause__ = error
                self._outcomes.put(self.broken)
        finally:
            self._end()

    def _handle(self, told: Any) -> None:
        if not ray.is_initialized():  # any call would start it anew
            self._break(WorkerError("Ray was shut down while its workers were in use. Start another epoch."))
            return
        match told:
            case Submit(tasks):
                self._submit(tasks)
            case Begin(shared_seed):
                self._begin(shared_seed)
            case Describe(answer):
                answer.put(self._describe())
            case (Call() as call, future):
                self._on_answer(call, future)
            case _:
                told()
        if monotonic() - self._checked_at > _TICK_S:
            self._look_around()

    def _tell(self) -> None:
        """Hand over what is ready."""
        ready = self._fleet.ready
        while ready:
            self._outcomes.put(ready.popleft())
        self._fleet.hand_warnings(self._outcomes.put)

    def _tick_s(self) -> float:
        is_changing = any(member.place is None for member in self._members.values())
        if is_changing or any(seat.member is None for seat in self._seats):
            return _TICK_S
        return PACE_S if self._pace.varies else _QUIET_S

    # Tasks

    def _submit(self, tasks: list[tuple[Task, bytes]]) -> None:
        seats = []
        for task, message in tasks:
            seat = self._seats[task.worker]
            seat.in_flight[task.number] = task
            if seat.member is not None:  # else all that is in flight is sent when it is hosted
                seat.unsent.append(message)
                if seat not in seats:
                    seats.append(seat)
        for seat in seats:
            self._send(seat)

    def _begin(self, shared_seed: int | None) -> None:
        message = pack_message(self._fleet.begin_epoch(shared_seed))
        for seat in self._seats:
            if seat.member is not None:
                seat.unsent.append(message)
                self._send(seat)

    def _send(self, seat: RaySeat) -> None:
        """Send what waits, in few calls if the tasks are quick."""
        member = seat.member
        if member is None or seat.is_moving:
            return
        size = 1
        if self._task_ns < _QUICK_NS:
            size = max(1, min(_MOST_PER_CALL, int(_CALL_BYTES // max(self._task_bytes, 1))))
        unsent, seat.unsent = seat.unsent, []
        for first in range(0, len(unsent), size):
            messages = unsent[first : first + size]
            room = self._grant(len(messages) * self._task_bytes)
            ref = member.handle.work.remote(seat.name, messages, room)
            self._expect(ref, "work", member, seat, n_tasks=len(messages), room=room)

    def _grant(self, wanted: int) -> int:
        room = max(0, min(wanted, self._room - self._granted))
        self._granted += room
        return room

    def _expect(
        self,
        ref: Any,
        kind: str,
        member: Member,
        seat: RaySeat | None = None,
        *,
        n_tasks: int = 0,
        room: int = 0,
        fetches: int = 0,
    ) -> None:
        self._n_calls += 1
        call = Call(self._n_calls, kind, member, seat, 0 if seat is None else seat.name, n_tasks, room, fetches)
        if not member.refs:
            member.heard_at = monotonic()
        member.refs[call.number] = ref
        if seat is not None:
            seat.calls += 1
            if kind in ("open", "work"):
                seat.order.append(call.number)
        ref.future().add_done_callback(partial(_arrive, self.inbox, call))

    # Answers

    def _on_answer(self, call: Call, future: Any) -> None:
        member, seat = call.member, call.seat
        arrived = perf_counter_ns()
        member.refs.pop(call.number, None)
        self._granted -= call.room
        if member.is_lost or self.broken is not None:
            return
        error = future.exception()
        if isinstance(error, ray.exceptions.RayTaskError):
            self._break(WorkerStartError(f"{self._who(member, seat)} failed: {error}"))
            return
        if error is not None:
            self._lose(member, error)
            return
        member.heard_at, member.is_asked = monotonic(), False
        result = future.result()
        if call.kind == "place":
            self._on_place(member, result)
        elif seat is not None and seat.name == call.name:
            seat.calls -= 1
            if call.kind == "leave":
                self._on_left(seat, result)
                return
            self._take_in(call, seat, result, arrived)
            self._leave_if_done(seat)
        self._fetch_held()

    def _on_place(self, member: Member, place: WorkerPlace) -> None:
        member.place = place
        self._host_seats()
        self._rebalance()

    def _take_in(self, call: Call, seat: RaySeat, answer: Answer, arrived: int) -> None:
        member, begun_before = call.member, len(self._fleet.begun)
        member.clock.note(call.sent_at, *answer.clock, arrived)
        if call.kind == "fetch":
            seat.fetched[call.fetches] = self._opened(answer.entries[0], member) if answer.entries else None
        else:
            seat.answered[call.number] = deque(self._arrived(seat, entry, member) for entry in answer.entries)
        self._take_turns(seat)
        self._note(call, answer, arrived)
        if call.kind == "work":
            largest = max((entry.n_bytes for entry in answer.entries), default=0)
            self._task_bytes = max(largest + largest // 8, self._task_bytes * 7 // 8)
            per_task = (answer.clock[1] - answer.clock[0]) / max(call.n_tasks, 1)
            self._task_ns += (per_task - self._task_ns) / 8
            self._pace.busy_ns += answer.clock[1] - answer.clock[0]
        if len(self._fleet.begun) > begun_before and self._fleet.all_begun:
            self._fleet.forget_outcomes()
            self._outcomes.put(EpochBegun(self._fleet.epoch))
            self._rebalance()

    def _arrived(self, seat: RaySeat, entry: Entry, member: Member) -> Report | int:
        self.n_bytes += entry.n_bytes
        if entry.apart is not None:
            return self._opened(entry, member)
        heappush(self._held, (entry.number, entry.held, entry.n_bytes, seat, seat.name))
        return entry.held

    def _take_turns(self, seat: RaySeat) -> None:
        """Take in what has come, in the order in which the worker did it."""
        while seat.order and seat.order[0] in seat.answered:
            reports = seat.answered[seat.order[0]]
            while reports:
                report = reports[0]
                if isinstance(report, int):
                    if report not in seat.fetched:
                        return
                    fetched = seat.fetched.pop(report)
                    if fetched is not None:  # else it was of an epoch that was given up
                        self._fleet.take_in(seat, fetched)
                else:
                    self._fleet.take_in(seat, report)
                reports.popleft()
            del seat.answered[seat.order.popleft()]

    def _note(self, call: Call, answer: Answer, arrived: int) -> None:
        """Note for reports how long this call waited, worked and travelled."""
        member = call.member
        assert member.place is not None
        begun, ended = answer.clock
        ahead = 0 if member.place.is_here else member.clock.ahead_ns
        totals = self._nodes.of(member.place.words)
        totals.tasks += call.n_tasks
        if call.kind == "work":
            totals.work_ns += ended - begun
            totals.queued_ns += max(0, begun - max(call.sent_at + ahead, member.ended_at))
        n_bytes = sum(entry.n_bytes for entry in answer.entries if entry.apart is not None)
        if n_bytes >= WORTH_NOTING:
            totals.carried += 1
            totals.carried_bytes += n_bytes
            totals.carried_ns += max(0, arrived - ended + ahead)
            totals.copied_ns += perf_counter_ns() - arrived
        member.ended_at = ended

    def pids(self) -> dict[int, int]:
        """Of the workers that run on this machine, by number; may be asked from another thread."""
        seats = [(seat.number, seat.member) for seat in list(self._seats)]
        return {n: m.place.pid for n, m in seats if m is not None and m.place is not None and m.place.is_here}

    def _opened(self, entry: Entry, member: Member) -> Report:
        """What is in an entry: copied out of the object store once, into memory that is the user's to write to."""
        assert entry.apart is not None
        _, span = cut_trailer(memoryview(entry.trailer))
        try:
            report: Report = put_together(entry.apart, [self._recycled.copy(buffer) for buffer in entry.apart.buffers])
        except Exception as error:  # noqa: BLE001 (an object that cannot be rebuilt here)
            return Report(Failed(entry.number, error))
        if span is not None and type(report.message) is Finished:
            is_here = member.place is not None and member.place.is_here
            return Report(
                report.message._replace(span=span if is_here else member.clock.translated(span)), report.states
            )
        return report

    def _fetch_held(self) -> None:
        """Ask for what waits in workers, the first batches first, as far as there is room."""
        while self._held and (not self._granted or self._granted + self._held[0][2] <= self._room):
            _, held, n_bytes, seat, name = heappop(self._held)
            if seat.name == name and seat.member is not None:
                self._granted += n_bytes
                ref = seat.member.handle.fetch.remote(name, held)
                self._expect(ref, "fetch", seat.member, seat, room=n_bytes, fetches=held)

    # Actors

    def _hire(self, slot: int) -> None:
        member = self._members[slot] = Member(slot, self._roster.hire(slot))
        self._expect(member.handle.place.remote(), "place", member)

    def _hosts(self) -> list[Member]:
        """The actors that seats may go to."""
        return [member for member in self._members.values() if member.place is not None and not member.is_leaving]

    def _adapt(self) -> None:
        """Start an actor more, or end one, as the loop waits for batches or not."""
        if self._fleet.job.iterable and not self._is_between_epochs():
            return
        hosts = self._hosts()
        if len(hosts) < len(self._members):
            return  # the last change is still under way
        wanted = min(self._pace.wanted(len(hosts), self.waited_s), len(self._seats))
        for slot in range(self._roster.most):
            if len(self._members) < wanted and slot not in self._members:
                self._hire(slot)
        if wanted < len(hosts):
            leaving = min(hosts, key=lambda member: len(member.seats))
            leaving.is_leaving = True
            self._move(leaving.seats)
            self._end_if_left(leaving)

    def _end_if_left(self, member: Member) -> None:
        if member.is_leaving and not member.seats:
            self._members.pop(member.slot, None)
            self._roster.dismiss([(member.handle, member.place)], 0.0)

    def _host_seats(self) -> None:
        """Give every seat an actor: one of its own, or one that it shares if it has waited long enough."""
        ready = self._hosts()
        if not ready:
            return
        share = -(-len(self._seats) // sum(not member.is_leaving for member in self._members.values()))
        for seat in self._seats:
            if seat.member is None:
                least = min(ready, key=lambda member: len(member.seats))
                if len(least.seats) < share or monotonic() >= seat.waits_until:
                    self._host(seat, least)

    def _host(self, seat: RaySeat, member: Member) -> None:
        fleet = self._fleet
        self._names += 1
        seat.name, seat.member, seat.calls, seat.is_moving = self._names, member, 0, False
        seat.order.clear()
        seat.answered.clear()
        seat.fetched.clear()
        member.seats.append(seat)
        if member.place is not None:
            self._nodes.places[seat.number] = member.place.words
        resume = fleet.resume(seat) if seat.was_hosted else None
        seat.was_hosted = True
        mine = fleet.job_of(seat)
        job = None if mine is self._first_job else (mine.shared_seed,)
        opening = Opening(seat.name, seat.number, fleet.workers, fleet.restart, resume, job, self._roster.client)
        self._expect(member.handle.open.remote(opening, self._job), "open", member, seat)
        seat.unsent = [pack_message(message) for message in fleet.unfinished(seat)]
        self._send(seat)

    def _rebalance(self) -> None:
        """Let seats go to actors that have fewer. Those of a user's iterable stay, because they would be run again."""
        ready = self._hosts()
        if not ready or (self._fleet.job.iterable and not self._is_between_epochs()):
            return
        share = -(-len(self._seats) // len(ready))
        for member in ready:
            self._move(member.seats[share:])

    def _is_between_epochs(self) -> bool:
        return not any(seat.in_flight or seat.times_done for seat in self._seats)

    def _move(self, seats: list[RaySeat]) -> None:
        """Let seats go to other actors, each as soon as no call is out for it."""
        for seat in seats:
            if not seat.is_moving:
                seat.is_moving = True
                self._leave_if_done(seat)

    def _leave_if_done(self, seat: RaySeat) -> None:
        """Let a seat that is to move leave its actor, if no call is out for it and nothing of it waits there."""
        if not seat.is_moving or seat.calls or any(name == seat.name for *_, name in self._held):
            return
        assert seat.member is not None
        self._expect(seat.member.handle.leave.remote(seat.name), "leave", seat.member, seat)

    def _on_left(self, seat: RaySeat, states: WorkerStates | None) -> None:
        assert seat.member is not None
        member, seat.member = seat.member, None
        member.seats.remove(seat)
        self._end_if_left(member)
        seat.states = states or seat.states
        if not seat.times_done:
            seat.states_at_start = seat.states
        seat.waits_until = monotonic()
        self._host_seats()

    def _lose(self, member: Member, error: BaseException) -> None:
        """An actor is gone, or cannot be reached: its seats go elsewhere, and another actor takes its place."""
        member.is_lost = True
        del self._members[member.slot]
        self._roster.lost(member.slot, member.handle)
        board = None
        if member.place is not None:
            seen = look_at(member.place, stack=False)
            board = None if seen is None else seen[0]
            tidy_up(member.place)
        cause = describe_cause(error)
        if not member.seats and member.is_leaving:
            return
        if not member.seats and not self._fleet.restart:
            self._break(WorkerStartError(f"{self._who(member, None)} could not be started: {cause}."))
            return
        for seat in member.seats:
            at_work = _at_work(seat, board)
            where = "while it was idle" if not seat.in_flight else "at an unknown place"
            if at_work is not None:
                where = f"at {place_of(*at_work)}"
            elif seat.in_flight:
                where = f"before it had finished {place_of(next(iter(seat.in_flight.values())), -1)}"
            text = f"{self._who(member, seat)} exited unexpectedly {where}: {cause}."
            seat.member, seat.name, seat.calls, seat.is_moving = None, 0, 0, False
            patience = _REPLAY_PATIENCE_S if self._fleet.job.iterable and seat.times_done else 0.0
            seat.waits_until = monotonic() + patience
            broken = self._fleet.lose(seat, Loss(text, at_work, _MOST_LOSSES))
            if broken is not None:
                self._break(broken)
                return
        if not member.seats and (broken := self._fleet.note_false_start(cause)) is not None:
            self._break(broken)
            return
        self._hire(member.slot)
        self._host_seats()

    def _who(self, member: Member, seat: RaySeat | None) -> str:
        actor = member.handle._actor_id.hex()[:8]
        who = "A DataLoader worker" if seat is None else f"DataLoader worker {seat.number}"
        if member.place is None:
            return f"{who} (Ray actor {actor})"
        place = member.place
        return f"{who} (pid(s) {place.pid} on node {place.host} ({place.node[:8]}), Ray actor {actor})"

    # What is to be seen to now and then

    def _look_around(self) -> None:
        self._checked_at = now = monotonic()
        if self.broken is not None:
            return
        self._host_seats()
        if self._pace.is_due(now):
            self._adapt()
        starting = [member for member in self._members.values() if member.place is None]
        request = self._roster.request
        if starting and len(starting) == len(self._members):
            overdue = min(now - member.since for member in starting) > request.start_timeout
            if overdue and not count_places(request, now=True):
                self._break(
                    WorkerStartError(
                        f"The cluster has no room for a worker: each asks for {request.describe()}, and there is "
                        f"{describe_cluster()}. Ask for less (num_cpus, memory, resources, node_labels), end what "
                        f"takes the room, or raise start_timeout={request.start_timeout:g} if nodes are to be added."
                    )
                )
                return
        for member in self._members.values():
            if member.place is not None and member.refs and not member.is_asked and now - member.heard_at > _QUIET_S:
                member.is_asked = True  # a dead actor answers at once; one that is busy, when it is done
                self._expect(member.handle.ping.remote(), "ping", member)

    def _describe(self) -> str:
        lines = []
        for member in self._members.values():
            place = member.place
            if place is None:
                lines.append(f"A Ray actor is not placed yet: it asks for {self._roster.request.describe()}.")
                continue
            seen = look_at(place, stack=True) if any(seat.in_flight for seat in member.seats) else None
            for seat in member.seats:
                who = f"Worker {seat.number} ({describe_place(place)})"
                at_work = _at_work(seat, None if seen is None else seen[0])
                stack = "(its stack cannot be shown)" if seen is None or not seen[1] else seen[1]
                if at_work is not None:
                    lines.append(f"{who} is at {place_of(*at_work)}:\n{stack}")
                elif not seat.is_ready:
                    lines.append(f"{who} has not started yet:\n{stack}")
                elif seat.in_flight:
                    lines.append(f"{who} is between two batches:\n{stack}")
        return "\n".join(lines) or "All workers are idle."

    def _break(self, error: WorkerError) -> None:
        """Give up. What has arrived is still given out, then the error is raised."""
        if self.broken is None:
            self._tell()
            self.broken = error
            self._outcomes.put(error)

    def _end(self) -> None:
        """Leave nothing behind. Calls are not cancelled: Ray would let the next ones wait for their turn in vain."""
        members = list(self._members.values()) if ray.is_initialized() else []
        for member in members:
            for seat in member.seats:
                with suppress(Exception):
                    member.handle.leave.remote(seat.name)
        self._members.clear()
        self._seats.clear()
        with suppress(Exception):
            self._roster.dismiss([(member.handle, member.place) for member in members], self.grace_s)
        self._job = None


def _arrive(inbox: SimpleQueue[Any], call: Call, future: Any) -> None:
    inbox.put((call, future))


def _at_work(seat: RaySeat, board: list[int] | None) -> tuple[Task, int] | None:
    """The task and the position of the sample that a seat is at, by the board of its actor."""
    if board is None or board[SEAT] != seat.name:
        return None
    task = seat.in_flight.get(board[TASK] - 1)
    return None if task is None else (task, board[POSITION])

"""The life of a worker in a Ray actor, at several seats if need be: of lost workers, or of several loaders."""

from __future__ import annotations

import faulthandler
import mmap
import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import Any, NamedTuple

from headrace.base.errors import WorkerError
from headrace.base.generators import seed_worker
from headrace.base.messages import BeginEpoch, Begun, Failed, Finished, Outcome, Task
from headrace.base.randomness import WorkerStates, enter_sample, restore_worker, worker_states
from headrace.base.world import enter_worker_process, keep_freed_memory
from headrace.batch.fetch import LISTENS, STOP
from headrace.engines.engine import Job
from headrace.engines.outbox import ChangedStates, FailedRemotely, Report, unsendable
from headrace.engines.process_worker import STACK_SIGNAL
from headrace.engines.remote_errors import pack_error
from headrace.engines.seat import Resume, Seat
from headrace.engines.stopwatch import pack_trailer
from headrace.frameworks.recycled_memory import RecycledMemory
from headrace.transport.apart import Apart, put_together, take_apart
from headrace.transport.encoding import unpack_messages

SEAT = 5
"""The field of the board that tells at which seat the worker is, after those of `headrace.batch.fetch`."""
_BOARD_FIELDS = 8
PING_S = 5.0
"""How often the processes that share a worker say that they are there."""
_SILENT_S = 60.0  # after that, and some pings of others, one is taken to be gone
_SILENT_PINGS = 5
INLINE_BYTES = 2**16
"""What Ray carries along with an answer, and not by way of its object store, with some room to spare."""


class WorkerPlace(NamedTuple):
    """Where an actor is.

    Attributes:
        machine: tells machines apart, of which several nodes may be the same one in a test.
        board: a file that tells what the worker is at, even if it has died; `stacks` the one for its stack.
    """

    pid: int
    node: str
    host: str
    machine: str
    board: str
    stacks: str

    @property
    def words(self) -> str:
        """The node, for people."""
        return f"{self.host} ({self.node[:8]})"

    @property
    def is_here(self) -> bool:
        """Whether that is this machine."""
        return self.machine == machine_id()


class Entry(NamedTuple):
    """What became of a task, on its way.

    Attributes:
        number: of the task; -1 for something else.
        apart: a `Report`; None if it waits in the worker to be fetched, because there was no room for it.
        n_bytes: of that.
        trailer: when it was made.
        held: the number that it waits under, never used twice by a worker.
    """

    number: int
    apart: Apart | None
    n_bytes: int
    trailer: bytes
    held: int = 0


class Answer(NamedTuple):
    """What a call returns.

    Attributes:
        clock: `time.perf_counter_ns` of the worker when the call began, and when it ended.
    """

    entries: list[Entry]
    clock: tuple[int, int]


class Opening(NamedTuple):
    """Which seat a worker is to take.

    Attributes:
        seat: its name, which is never used twice.
        later: the shared seed of an epoch after the first one; None for the first.
        client: whose it is, in a pool that several processes use.
    """

    seat: int
    number: int
    workers: int
    keeps_states: bool
    resume: Resume | None
    later: tuple[int | None] | None
    client: int = 0


class Clients:
    """The processes that use a worker of a named pool, and say every few seconds that they are there.

    Guarantees: one is given up only if it has been silent for a minute while others were heard several times. So a long
    sample, while nobody can be heard, makes nobody silent: what they say meanwhile waits in the queue.
    """

    def __init__(self) -> None:
        self._heard_at: dict[int, float] = {}
        self._silent_for: dict[int, int] = {}  # pings of others

    def __len__(self) -> int:
        return len(self._heard_at)

    def hear(self, client: int, now: float) -> list[int]:
        """A process is there. Returns those that are gone."""
        self._heard_at[client] = now
        for other in self._silent_for:
            self._silent_for[other] += 1
        self._silent_for[client] = 0
        enough = _SILENT_PINGS * len(self)
        gone = [n for n, at in self._heard_at.items() if now - at > _SILENT_S and self._silent_for[n] > enough]
        for one in gone:
            self.part(one)
        return gone

    def part(self, client: int) -> None:
        """A process does not use the worker any more."""
        self._heard_at.pop(client, None)
        self._silent_for.pop(client, None)


class RayWorker:
    """What an actor does. All methods run in the main thread, one after the other."""

    def __init__(self) -> None:
        import ray

        keep_freed_memory()
        name = Path(_folder()) / f"headrace-{os.getpid()}-{perf_counter_ns()}"
        self._board_path, self._stacks_path = str(name), f"{name}.stack"
        with open(self._board_path, "wb+") as file:
            file.truncate(8 * _BOARD_FIELDS)
            self._memory = mmap.mmap(file.fileno(), 8 * _BOARD_FIELDS)
        self._board = memoryview(self._memory).cast("q")
        self._stacks = open(self._stacks_path, "wb+")  # noqa: SIM115 (the signal handler writes to it)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True)
        self._board[LISTENS] = 1
        self._place = (ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
        self._recycled = RecycledMemory()
        self._seats: dict[int, _ActorSeat] = {}
        self._current: _ActorSeat | None = None
        self._clients = Clients()
        self._is_watched = self._is_busy = False
        self._heard_at = monotonic()

    def place(self) -> WorkerPlace:
        node, host = self._place
        return WorkerPlace(os.getpid(), node, host, machine_id(), self._board_path, self._stacks_path)

    def open(self, opening: Opening, job: Apart) -> Answer:
        """Take a seat."""
        begun = perf_counter_ns()
        self._leave_current()
        self._board[SEAT] = opening.seat
        try:
            mine: Job = put_together(job)
        except Exception as error:
            raise WorkerError(f"The dataset cannot be rebuilt on node {self._place[1]}: {error!r}") from error
        if opening.later is not None:
            mine = replace(mine, shared_seed=opening.later[0], starts=None)
        seat = _ActorSeat(mine, opening, self._board, self._recycled)
        self._seats[opening.seat] = self._current = seat
        return Answer([seat.entry(-1, Report(Begun(0), seat.changed_states()))], (begun, perf_counter_ns()))

    def work(self, seat: int, messages: list[bytes], room: int) -> Answer:
        """Do tasks, one after the other.

        Args:
            room: how many bytes may be returned, besides small answers; the rest waits here.
        """
        begun = perf_counter_ns()
        self._is_busy = True
        try:
            mine = self._enter(seat)
            entries = []
            for message in messages:
                for one in unpack_messages(memoryview(message)):
                    if self._board[STOP]:
                        return Answer([], (begun, perf_counter_ns()))  # it is not wanted any more
                    entries.append(mine.begin(one) if isinstance(one, BeginEpoch) else mine.work(one))
        finally:
            self._heard_at, self._is_busy = monotonic(), False
        return Answer([mine.hold(entry, room := room - entry.n_bytes) for entry in entries], (begun, perf_counter_ns()))

    def fetch(self, seat: int, held: int) -> Answer:
        """Return what waited for room."""
        begun = perf_counter_ns()
        entry = self._seats[seat].held.pop(held, None)
        return Answer([] if entry is None else [entry], (begun, perf_counter_ns()))

    def ping(self, client: int = 0) -> None:
        """Tell that the worker is there, and hear that a process of a named pool is."""
        self._heard_at = monotonic()
        if client:
            for gone in self._clients.hear(client, self._heard_at):
                self._forget(gone)

    def join(self, client: int) -> None:
        """A process uses this worker of a named pool from now on."""
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch_clients, name="headrace-watch-clients", daemon=True).start()
        self.ping(client)

    def part(self, client: int) -> None:
        """A process has no use for this worker any more; the last one ends it."""
        import ray

        self._clients.part(client)
        self._forget(client)
        if not self._clients:
            self.retire()
            ray.actor.exit_actor()

    def _forget(self, client: int) -> None:
        """Give up the seats of a process."""
        for name in [name for name, seat in self._seats.items() if seat.client == client]:
            self.leave(name)

    def _watch_clients(self) -> None:
        """End the worker if all processes are gone without a word. Nobody owns the actors of a named pool."""
        while True:
            sleep(PING_S)
            if not self._is_busy and monotonic() - self._heard_at > _SILENT_S:
                self.retire()
                os._exit(0)

    def leave(self, seat: int) -> WorkerStates | None:
        """Give up a seat. Returns the states of its generators, for whoever takes it over."""
        mine = self._seats.pop(seat, None)
        if mine is None or mine is not self._current:
            return None if mine is None else mine.states
        self._current = None
        return worker_states()

    def retire(self) -> None:
        """Give up all seats, before the end."""
        self._seats.clear()
        self._current = None
        for path in (self._board_path, self._stacks_path):
            with suppress(OSError):
                os.unlink(path)

    def _enter(self, seat: int) -> _ActorSeat:
        mine = self._seats[seat]
        if mine is not self._current:
            self._leave_current()
            mine.enter()
            self._current = mine
            self._board[SEAT] = seat
        return mine

    def _leave_current(self) -> None:
        if self._current is not None:
            self._current.states = worker_states()


class _ActorSeat:
    """One seat of a worker: its part of a job, and the random generators that go with it."""

    def __init__(self, job: Job, opening: Opening, board: memoryview, recycled: RecycledMemory) -> None:
        self._job = job
        self._number = opening.number
        self.client = opening.client
        self._changed_states = ChangedStates() if opening.keeps_states else None
        self.states: WorkerStates | None = None  # while the worker is at another seat
        self.held: dict[int, Entry] = {}
        self._seat = Seat(
            job,
            opening.number,
            opening.workers,
            board=board,
            allocate=recycled.allocate,
            keeps_states=opening.keeps_states,
            resume=opening.resume,
        )

    def enter(self) -> None:
        """From now on the process is this worker."""
        states, self.states = self.states, None
        enter_sample(None)
        enter_worker_process(self._seat.info)
        if states is not None:
            if None in states[0]:  # what has been imported meanwhile is seeded for this seat, too
                seed_worker(self._job.base_seed, self._number)
            restore_worker(states)

    def changed_states(self) -> WorkerStates | None:
        return None if self._changed_states is None else self._changed_states()

    def begin(self, epoch: BeginEpoch) -> Entry:
        self.held.clear()
        return self.entry(-1, Report(*self._seat.begin(epoch)))

    def work(self, task: Task) -> Entry:
        outcome = self._seat.work(task)
        try:
            return self._packed(task, outcome)
        finally:
            self._seat.rest()

    def _packed(self, task: Task, outcome: Outcome) -> Entry:
        states = self.changed_states()
        if isinstance(outcome, Finished):
            span = outcome.span
            try:
                apart = take_apart(Report(outcome._replace(span=None), states))
            except Exception as error:  # noqa: BLE001 (whatever pickling raises)
                outcome = unsendable(task, outcome, error, self._number, skip_errors=self._job.skip_errors)
            else:
                return Entry(task.number, apart, apart.n_bytes, pack_trailer(span, perf_counter_ns()))
        message: Any = outcome
        if isinstance(outcome, Failed):
            message = FailedRemotely(task.number, pack_error(outcome.error, self._seat.where(task)), outcome.state)
        return self.entry(task.number, Report(message, states))

    def entry(self, number: int, report: Report) -> Entry:
        apart = take_apart(report)
        return Entry(number, apart, apart.n_bytes, pack_trailer(None))

    def hold(self, entry: Entry, room_left: int) -> Entry:
        """The entry; or, if there is no room for it, only that it is there."""
        if room_left >= 0 or entry.n_bytes <= INLINE_BYTES or entry.number == -1:
            return entry
        held = perf_counter_ns()  # no other one, of this seat or of another, waits under that
        self.held[held] = entry
        return entry._replace(apart=None, held=held)


@cache
def machine_id() -> str:
    """Tells this machine, since it was started, from others: on one machine, clocks and files are the same."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    import platform

    return platform.node()


def _folder() -> str:
    """Where files may lie that nobody deletes if the worker is killed: with Ray's logs of this session."""
    from ray._private import worker  # public is only the folder of the whole machine's sessions

    node = getattr(worker, "_global_node", None)
    folder = None if node is None else node.get_session_dir_path()
    return folder if folder is not None and os.access(folder, os.W_OK) else tempfile.gettempdir()


def look(board: str, stacks: str, pid: int) -> tuple[list[int], str]:
    """What an actor of this machine is at, from its board, or was at when it died; and its stack, if it lives.

    Args:
        pid: of the actor, to be asked for its stack; 0 if it is not to be.
    """
    import time

    fields = memoryview(Path(board).read_bytes()).cast("q").tolist()
    text = ""
    if pid and fields[LISTENS]:
        with suppress(OSError):
            os.truncate(stacks, 0)
            os.kill(pid, STACK_SIGNAL)
            deadline, size = time.monotonic() + 1.0, 0
            while time.monotonic() < deadline:
                time.sleep(0.02)
                if size and os.path.getsize(stacks) == size:
                    break
                size = os.path.getsize(stacks)
            text = Path(stacks).read_text(errors="replace").strip("\0 \n")
    return fields, text


def ask_to_stop(place: WorkerPlace) -> None:
    """Let an actor of this machine stop after the sample that it is at."""
    with suppress(OSError), open(place.board, "r+b") as file:
        file.seek(8 * STOP)
        file.write((1).to_bytes(8, "little"))


def forget(*paths: str) -> None:
    """Delete what a dead worker left."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)

"""What leaves a worker process: outcomes as messages, those of quick batches several in one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns, sleep
from typing import Any

from headrace.base.messages import Begun, Failed, Finished, Outcome, Skipped, Task
from headrace.base.randomness import WorkerStates, worker_states
from headrace.batch.fetch import GATHERS
from headrace.engines.remote_errors import PackedError, pack_error
from headrace.engines.stopwatch import pack_trailer
from headrace.engines.worker import describe_bad, key_at
from headrace.transport.channel import WorkerChannel
from headrace.transport.encoding import BATCH, OTHER, Bundle, encode, pack_lists
from headrace.transport.shared_memory import WORTH_SHARING, Buffer, WorkerArena

_LARGEST_BUNDLE = 32
_BUNDLE_BYTES = 2**19
_HOLD_S = 0.2


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker sends: an outcome or `Begun`, and the states of its generators afterwards if they are kept."""

    message: Finished | Any
    states: WorkerStates | None = None

    def __reduce__(self) -> Any:
        return Report, (self.message, self.states)


@dataclass(frozen=True, slots=True)
class FailedRemotely:
    """A `Failed` whose error is packed."""

    number: int
    error: PackedError
    state: Any = None


class Outbox:
    """Sends the outcomes of one worker, in their order.

    While the loader asks for it (see `GATHERS`) and there is more to do, batches are packed at once, so that the user's
    code may go on to use their memory, but held until a few are together. Not for long: if the worker is still at its
    next task a moment later, another thread sends what is held, for the loop may be what that task waits for.

    Args:
        worker: its number.
        skip_errors: whether a batch that cannot be sent is left out.
        keeps_states: whether the states of the random generators are reported with each outcome.
        where: tells for people at what the worker is.
    """

    def __init__(
        self,
        arena: WorkerArena,
        channel: WorkerChannel,
        *,
        worker: int,
        skip_errors: bool,
        keeps_states: bool,
        where: Callable[[Task], str],
    ) -> None:
        self._arena = arena
        self._channel = channel
        self._worker = worker
        self._skip_errors = skip_errors
        self._keeps_states = keeps_states
        self._where = where
        self._changed_states = ChangedStates()
        self._sending = threading.Lock()  # held by whoever uses the channel, or what is held
        self._held = Bundle(arena, _BUNDLE_BYTES)
        self._shared_bytes = 0  # that the messages in it refer to
        self._n_sent = 0  # messages; a bundle is one
        self._sender: threading.Thread | None = None

    def send(self, message: Any, number: int = -1) -> None:
        """Send something that is no batch, about task `number` if any."""
        self._put(self._encode(message, number), pack_trailer(None))

    def begin(self, begun: Begun, states: WorkerStates | None) -> None:
        """Send that an epoch has begun, and the states of the generators before it."""
        self._put(encode(-1, OTHER, Report(begun, states), self._arena), pack_trailer(None))

    def send_outcome(self, task: Task, outcome: Outcome, *, may_wait: bool = False) -> None:
        """Send what became of a task; or hold it for a moment, if it may wait, because there is more to do."""
        if isinstance(outcome, Finished):
            number, batch, bad, fingerprint, state, span, n_samples = outcome
            is_plain = not (self._keeps_states or bad) and fingerprint is None and state is None and n_samples < 0
            before = self._arena.sent_bytes
            try:
                message = self._encode_batch(number, batch) if is_plain else self._encode(outcome, number)
            except Exception as error:  # noqa: BLE001 (whatever pickling raises)
                outcome = unsendable(task, outcome, error, self._worker, skip_errors=self._skip_errors)
            else:
                if may_wait and is_plain and span is None and self._arena.board[GATHERS]:
                    self._hold(message, self._arena.sent_bytes - before)
                else:
                    self._put(message, pack_trailer(span, perf_counter_ns()))
                return
        if isinstance(outcome, Failed):
            packed = pack_error(outcome.error, self._where(task))
            self.send(FailedRemotely(task.number, packed, outcome.state), task.number)
        else:
            self.send(outcome, task.number)

    def _encode_batch(self, number: int, batch: Any) -> list[Buffer]:
        return encode(number, BATCH, pack_lists(batch, self._arena.allocate), self._arena)

    def _put(self, message: list[Buffer], trailer: bytes) -> None:
        """Send a message, after all that is held."""
        with self._sending:
            self._send_held()
            self._send([*message, trailer])

    def _hold(self, message: list[Buffer], n_shared: int) -> None:
        """Hold a message, which refers to so many bytes besides its own, until a few are together."""
        with self._sending:
            held = self._held
            if not held.add(message):
                self._send_held()
                self._send([*message, pack_trailer(None)])
                return
            self._shared_bytes += n_shared
            if len(held) == _LARGEST_BUNDLE or self._shared_bytes + held.n_bytes >= _BUNDLE_BYTES - WORTH_SHARING:
                self._send_held()
            elif self._sender is None:
                self._sender = threading.Thread(target=self._send_late, name="headrace-send-held", daemon=True)
                self._sender.start()

    def _send_held(self, *, may_share: bool = True) -> None:
        if self._held:
            self._shared_bytes = 0
            self._send([*self._held.pack(may_share=may_share), pack_trailer(None)])

    def _send(self, message: list[Buffer]) -> None:
        self._n_sent += 1
        self._channel.send(*message)

    def _send_late(self) -> None:
        """Send, in a thread of its own, what has been held for long; the thread ends when nothing is held."""
        while True:
            n_sent = self._n_sent
            sleep(_HOLD_S)
            with self._sending:
                if self._n_sent == n_sent:
                    with suppress(OSError):  # the loader is gone, which the worker's own thread notices
                        self._send_held(may_share=False)  # the arena belongs to that thread
                if not self._held:
                    self._sender = None
                    return

    def _encode(self, message: Any, number: int) -> list[Buffer]:
        states = self._changed_states() if self._keeps_states else None
        return encode(number, OTHER, Report(message, states), self._arena)


def unsendable(task: Task, outcome: Finished, error: Exception, worker: int, *, skip_errors: bool) -> Outcome:
    """What becomes of a batch that cannot be pickled."""
    unsent = TypeError(f"The batch, a {type(outcome.batch).__name__}, cannot be sent to the loader: {error}")
    unsent.__cause__ = error
    if not skip_errors:
        return Failed(task.number, unsent)
    return Skipped(task.number, (describe_bad(key_at(task, -1), task, worker, unsent),))


class ChangedStates:
    """The states of the random generators, whenever they have changed; else None."""

    def __init__(self) -> None:
        self._told: WorkerStates | None = None

    def __call__(self) -> WorkerStates | None:
        states = worker_states()
        if states == self._told:
            return None
        self._told = states
        return states

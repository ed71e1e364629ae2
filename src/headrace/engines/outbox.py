"""What leaves a worker process: outcomes as messages, quick batches several in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from headrace.base.messages import Begun, Failed, Finished, Outcome, Skipped, Task
from headrace.base.seeding import States, generator_states
from headrace.batch.fetch import GATHERS
from headrace.engines.remote_errors import PackedError, pack_error
from headrace.engines.trailer import pack_group_trailer, pack_trailer
from headrace.engines.worker import describe_bad, key_at
from headrace.transport.arena import WorkerArena
from headrace.transport.channel import WorkerChannel
from headrace.transport.lists import pack_batches, pack_lists
from headrace.transport.pickling import BATCH, OTHER, Message, encode
from headrace.transport.ring import Buffer

_SHORT = 1024
_LARGEST_GROUP = 16
_GROUP_BYTES = 2**18  # of all batches in a message: they are unpacked together, and must fit into a cache


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker sends: an outcome or `Begun`, and the states of its generators afterwards if they are kept."""

    message: Finished | Any
    states: States | None = None

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

    While the loader asks for it (see `GATHERS`) and there is more to do, batches are kept until a few are together.

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
        self._sent_states: States | None = None
        self._gathered: list[tuple[Task, Finished]] = []
        self._group_size = 1

    def send(self, message: Any, number: int = -1) -> None:
        """Send something that is no batch, about task `number` if any."""
        self._put(self._encode(message, number), pack_trailer(None))

    def begin(self, begun: Begun, states: States | None) -> None:
        """Send that an epoch has begun, and the states of the generators before it."""
        self._gathered.clear()  # nobody waits for what is left of the epoch before
        self._put(encode(Message(-1, OTHER), Report(begun, states), self._arena), pack_trailer(None))

    def send_outcome(self, task: Task, outcome: Outcome) -> None:
        """Send what became of a task, or keep it for a moment."""
        if type(outcome) is not Finished or not self._arena.board[GATHERS] or not self._is_plain(outcome):
            self._send_gathered()
            self._send_single(task, outcome)
            return
        self._gathered.append((task, outcome))
        if len(self._gathered) >= self._group_size or not self._channel.has_received:
            self._send_gathered()

    def _is_plain(self, outcome: Finished) -> bool:
        """Whether it is nothing but a batch."""
        _, _, bad, fingerprint, state, span = outcome
        return not (self._keeps_states or bad or span) and fingerprint is None and state is None

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        before = self._arena.sent_bytes + self._channel.sent_bytes
        if len(gathered) < 2 or not self._send_group([outcome for _, outcome in gathered]):
            for task, outcome in gathered:
                self._send_single(task, outcome)
        if gathered:
            n_bytes = (self._arena.sent_bytes + self._channel.sent_bytes - before) // len(gathered)
            self._group_size = max(1, min(_GROUP_BYTES // max(n_bytes, 1), _LARGEST_GROUP))

    def _send_group(self, outcomes: list[Finished]) -> bool:
        """Whether they could be sent together."""
        packed = pack_batches([outcome.batch for outcome in outcomes], self._arena.allocate)
        try:
            message = encode(Message(outcomes[0].number, BATCH), packed, self._arena)
        except Exception:  # noqa: BLE001 (whatever pickling raises; which of them it is shows when each is sent alone)
            return False
        self._put(message, pack_group_trailer([outcome.number for outcome in outcomes]))
        return True

    def _send_single(self, task: Task, outcome: Outcome) -> None:
        if isinstance(outcome, Finished):
            try:
                message = self._encode_batch(outcome)
            except Exception as error:  # noqa: BLE001 (whatever pickling raises)
                outcome = self._unsendable(task, outcome, error)
            else:
                self._put(message, pack_trailer(outcome.span, perf_counter_ns()))
                return
        if isinstance(outcome, Failed):
            packed = pack_error(outcome.error, self._where(task))
            self.send(FailedRemotely(task.number, packed, outcome.state), task.number)
        else:
            self.send(outcome, task.number)

    def _encode_batch(self, outcome: Finished) -> list[Buffer]:
        if not self._is_plain(outcome._replace(span=None)):
            return self._encode(outcome, outcome.number)
        return encode(Message(outcome.number, BATCH), pack_lists(outcome.batch, self._arena.allocate), self._arena)

    def _unsendable(self, task: Task, outcome: Finished, error: Exception) -> Outcome:
        kind = type(outcome.batch).__name__
        unsendable = TypeError(f"The batch, a {kind}, cannot be sent to the loader: {error}")
        unsendable.__cause__ = error
        if not self._skip_errors:
            return Failed(task.number, unsendable)
        return Skipped(task.number, (describe_bad(key_at(task, -1), task, self._worker, unsendable),))

    def _put(self, message: list[Buffer], trailer: bytes) -> None:
        last = message[-1]
        if type(last) is bytes and len(last) < _SHORT:  # the fewer parts, the better
            message[-1] = last + trailer
        else:
            message.append(trailer)
        self._channel.send(*message)

    def _encode(self, message: Any, number: int) -> list[Buffer]:
        states = self._changed_states() if self._keeps_states else None
        return encode(Message(number, OTHER), Report(message, states), self._arena)

    def _changed_states(self) -> States | None:
        states = generator_states()
        if states == self._sent_states:
            return None
        self._sent_states = states
        return states

"""Live sources: what a connector is, and the feed, a thread that reads one and holds its rows until they are wanted."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.base.endings import Patience
from headrace.base.errors import RetriesExhaustedError
from headrace.sources.chunks import ObjectChunk
from headrace.sources.retry import Retries, is_temporary
from headrace.sources.source import Chunk, OnBad

Promise: TypeAlias = Literal["at most once", "at least once", "exactly once by offsets"]

RECONNECTS = Retries(attempts=120, first_delay_s=0.1, longest_delay_s=5.0)  # about ten minutes
MOST_ROWS = 16_384  # that a feed holds
MOST_BYTES = 64 << 20
_WARN_AFTER = 3  # failed attempts to connect
_SETTLED_S = 10.0  # after which a connection is no longer one that has just been tried


class LiveRow(NamedTuple):
    """A row of a live source that has positions.

    Attributes:
        value: the row itself.
        position: where to read on after this row, as plain JSON: an offset, an id.
        partition: the part of the source that the position belongs to.

    Examples:
        >>> LiveRow({"clicks": 3}, position=17)
        LiveRow(value={'clicks': 3}, position=17, partition='')
    """

    value: Any
    position: Any
    partition: str = ""


class Arrivals(NamedTuple):
    """Rows that arrived together.

    Attributes:
        positions: after each of them; None for a source without positions. One position without a row says how far
            the source was read without finding any.
    """

    rows: Sequence[Any]
    positions: Sequence[Any] | None = None
    partition: str = ""


Entry: TypeAlias = tuple[Any, str, Any]
"""A row, its partition, and the position after it; None if there are no positions."""


class Connector(ABC):
    """Connects to a live source, and reads it from given positions on.

    A connector is picklable and holds no connection: `connect` opens one. The loader's process reads it, in a thread
    of its own; rows are decoded, transformed and collated by the workers. An error that may pass (`OSError` and the
    like) makes the feed connect again, from the positions that it has reached; any other ends the stream.

    Attributes:
        name: of the source, for people and for states; without a password.
        promise: what a run that resumes from its last state gets.
        has_positions: whether rows carry positions, from which `connect` can read on.
        is_one_to_one: whether `decode` makes one row of each that it is given.
        at_end: what the end of a connection means, if it was not lost: "stop" ends the stream.
        n_connections: how many are open at a time; each has rows of its own.
        most_in_window: how many of the rows that have arrived go to a worker at a time.
    """

    name: str
    promise: Promise = "at most once"
    has_positions: bool = False
    is_one_to_one: bool = True
    at_end: Literal["stop", "reconnect"] = "reconnect"
    n_connections: int = 1
    most_in_window: int = 1024

    @abstractmethod
    def connect(self, positions: Mapping[str, Any]) -> Iterable[Any]:
        """Rows, `LiveRow`s or `Arrivals`, as they come.

        If what it returns has a `close` method, that must end a wait for rows, and is called from another thread.

        Args:
            positions: of the last row that was received, by partition; empty at the beginning.
        """

    @property
    def identity(self) -> str:
        """What must be the same where a state is loaded, for its positions to mean anything."""
        return type(self).__name__

    def commit(self, positions: Mapping[str, Any]) -> None:  # noqa: B027 (most have nothing to acknowledge)
        """Acknowledge all rows up to these positions; called in the thread of `loader.commit`."""

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        """What the rows that were received become, in a worker.

        Args:
            where: which rows they are, for people.
        """
        yield ObjectChunk(list(rows))

    def of_rank(self, rank: int, world: int, workers: int) -> Connector:
        """The connector of one rank of several.

        Raises:
            ValueError: ranks cannot share this source.
        """
        if world > 1:
            raise ValueError(
                f"{self.name} cannot be shared by {world} ranks: each would open a connection of its own, and which "
                "rows that gets is up to the server. Read a source that deals its rows out: a consumer group of "
                'read_redis, or read_live(..., connections="per_worker"); or read it on one rank, with shard=(0, 1).'
            )
        return self

    def describe(self) -> dict[str, Any]:
        """What `headrace inspect` and `explain` show; plain values."""
        return {"format": f"live, {self.name}", "promise": self.promise}


class CalledConnector(Connector):
    """A user's own function as a connector; see `Stream.live`."""

    def __init__(
        self,
        connect: Callable[[Mapping[str, Any]], Iterable[Any]],
        commit: Callable[[Mapping[str, Any]], None] | None,
        *,
        has_positions: bool,
        at_end: Literal["stop", "reconnect"],
    ) -> None:
        self._connect = connect
        self._commit = commit
        self.name = getattr(connect, "__qualname__", type(connect).__name__)
        self.has_positions = has_positions
        self.promise = "exactly once by offsets" if has_positions else "at most once"
        self.at_end = at_end

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Any]:
        return self._connect(positions)

    def commit(self, positions: Mapping[str, Any]) -> None:
        if self._commit is not None:
            self._commit(positions)


class _ClosedError(Exception):
    """Nobody wants the rows any more."""


class LiveFeed:
    """Reads a connector in a thread, and holds what came until it is taken.

    Guarantees: rows leave in the order in which they came, each once; at most about `most_rows` rows or `MOST_BYTES`
    are held, then nothing more is read; a lost connection is opened again, from the position that was reached.

    Args:
        positions: where to begin; empty for where the connector itself begins.
    """

    def __init__(
        self, connector: Connector, positions: Mapping[str, Any], retries: Retries, most_rows: int = MOST_ROWS
    ) -> None:
        self._connector = connector
        self._most_rows = most_rows
        self._reached = dict(positions)
        self._retries = retries
        self._rows: deque[Entry] = deque()
        self._n_bytes = 0
        self._changed = threading.Condition()
        self._connections: dict[int, Any] = {}  # by thread
        self._error: Exception | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._n_running = connector.n_connections
        self.starts: dict[str, Any] = {}
        """Positions before the first rows of partitions, as far as the connector tells."""
        self.news: list[str] = []
        """Warnings that nobody has heard yet."""

    # The loop's side

    def start(self) -> None:
        """Connect."""
        for _ in range(self._n_running):
            thread = threading.Thread(target=self._run, name="headrace-feed", daemon=True)
            self._threads.append(thread)
            thread.start()

    def __len__(self) -> int:
        """How many rows are held."""
        return len(self._rows)

    def has(self, n: int) -> bool:
        """Whether n rows are here; or no more will come, or can: nothing is read while too much is held."""
        return len(self._rows) >= n or self._is_over or self._is_full

    def wait(self, n: int) -> None:
        """Wait until `has(n)`, or somebody should hear of news."""
        with self._changed:
            while not self.has(n) and not self.news:
                self._changed.wait()

    def take(self, most: int) -> list[Entry]:
        """At most so many rows of those that are here; none if it has ended.

        Raises:
            Exception: what ended it, after all rows have been taken.
        """
        with self._changed:
            taken = [self._rows.popleft() for _ in range(min(most, len(self._rows)))]
            self._n_bytes -= sum(_size(row) for row, _, _ in taken)
            self._changed.notify_all()
        if not taken and self._error is not None:
            error, self._error = self._error, None
            raise error
        return taken

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Rows that were taken, and are to come first again."""
        with self._changed:
            for entry in reversed(list(entries)):
                self._rows.appendleft(entry)
                self._n_bytes += _size(entry[0])

    def end(self, patience: Patience) -> None:
        """Close all connections, and let the threads end; what is held is gone."""
        with self._changed:
            self._is_closed = True
            self._rows.clear()
            connections = list(self._connections.values())
            self._changed.notify_all()
        for connection in connections:
            try:
                if hasattr(connection, "close"):
                    connection.close()
            except ValueError:  # a generator that waits for a row: its thread ends with the next one
                patience.is_vain = True
        patience.join(self._threads)

    @property
    def _is_over(self) -> bool:
        return not self._n_running or self._is_closed or self._error is not None

    @property
    def _is_full(self) -> bool:
        return len(self._rows) >= self._most_rows or self._n_bytes >= MOST_BYTES

    # The thread's side

    def _run(self) -> None:
        try:
            self._read()
        except _ClosedError:
            pass
        except Exception as error:  # noqa: BLE001 (raised where the rows are taken)
            self._error = error
        finally:
            self._drop_connection()
            with self._changed:
                self._n_running -= 1
                self._changed.notify_all()

    def _read(self) -> None:
        delays, n_failed = self._retries.delays(), 0
        while True:
            begun = time.monotonic()
            try:
                connection = self._connector.connect(dict(self._reached))
                with self._changed:
                    self._connections[threading.get_ident()] = connection
                    if self._is_closed:
                        return
                for item in connection:
                    arrivals = _arrivals(item)
                    self._put(arrivals)
                    if n_failed and arrivals.rows:
                        delays, n_failed = self._retries.delays(), 0
                if self._connector.at_end == "stop":
                    return
                raise ConnectionResetError("the server closed the connection")
            except _ClosedError:
                raise
            except Exception as error:
                if self._is_closed:
                    return
                if not is_temporary(error):
                    raise
                self._drop_connection()
                if time.monotonic() - begun > _SETTLED_S:
                    delays, n_failed = self._retries.delays(), 0
                n_failed += 1
                self._await_retry(next(delays), n_failed, error)

    def _await_retry(self, delay_s: float | None, n_failed: int, error: Exception) -> None:
        what = f"{self._connector.name}: {type(error).__name__}: {error}"
        if delay_s is None:
            raise RetriesExhaustedError(f"Gave up connecting to {what} ({n_failed} attempts).") from error
        with self._changed:
            if n_failed == 1 and not self._connector.has_positions:
                self.news.append(
                    f"The connection was lost, and is opened again; rows sent meanwhile may be lost, since the source "
                    f"has no positions. {what}."
                )
            elif n_failed == _WARN_AFTER:
                self.news.append(f"Cannot connect, still trying. {what}.")
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed, delay_s)
            if self._is_closed:
                raise _ClosedError

    def _put(self, arrivals: Arrivals) -> None:
        rows, positions, partition = arrivals
        n_bytes = sum(map(_size, rows))
        with self._changed:
            while self._is_full and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise _ClosedError
            self._rows.extend(zip(rows, repeat(partition), repeat(None) if positions is None else positions))
            self._n_bytes += n_bytes
            if positions and not rows:
                self.starts.setdefault(partition, positions[-1])
            if positions:
                self._reached[partition] = positions[-1]
            self._changed.notify_all()

    def _drop_connection(self) -> None:
        with self._changed:
            connection = self._connections.pop(threading.get_ident(), None)
        if hasattr(connection, "close"):
            connection.close()


def _arrivals(item: Any) -> Arrivals:
    if type(item) is Arrivals:
        return item
    if type(item) is LiveRow:
        return Arrivals((item.value,), (item.position,), item.partition)
    return Arrivals((item,))


def _size(row: Any) -> int:
    """Roughly how many bytes a row takes, where that is easy to see."""
    if isinstance(row, (bytes, str)):
        return len(row)
    if isinstance(row, (list, tuple, dict)):
        values = row.values() if isinstance(row, dict) else row
        return sum(len(value) for value in islice(values, 64) if isinstance(value, (bytes, str)))
    n_bytes = getattr(row, "nbytes", 0)
    return n_bytes if isinstance(n_bytes, int) else 0

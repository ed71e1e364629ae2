"""Redis Streams: entries by their ids, read alone or as a consumer group, acknowledged when they are committed."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from headrace.base.optional import import_extra
from headrace.sources.chunks import RecordChunk
from headrace.sources.live import Arrivals, Connector
from headrace.sources.source import Chunk, OnBad

_AT_ONCE = 1000  # entries
_BLOCK_MS = 500  # that the server waits for an entry before it answers
_ANSWER_S = 5.0  # after which a server that does not answer is lost
_FIRST, _LATEST = "0-0", "$"


class RedisConnector(Connector):
    """Reads entries of one or several streams of a Redis server.

    Without a group, every entry is read; ranks share them by their ids. As a group, the server deals entries out to
    ranks, each a consumer, and keeps those that were not acknowledged.

    Args:
        start: "0" for the first entry that there is, "$" for those that are added from now on, or an id.
        id_field: the name of the field that entries get for their id, if any.
    """

    has_positions = True
    promise = "exactly once by offsets"

    def __init__(
        self, url: str, streams: Sequence[str], group: str | None, start: str, consumer: str, id_field: str | None
    ) -> None:
        self._url = url
        self._streams = tuple(streams)
        self._group = group
        self._start = start
        self._consumer = f"{consumer}-0"
        self._consumer_name = consumer
        self._id_field = id_field
        self._rank, self._world = 0, 1
        parts = urlsplit(url)
        address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
        self.name = f"{address}, stream {', '.join(self._streams)}"
        import_extra("redis", "redis", "Reading a Redis stream")

    @property
    def identity(self) -> str:
        return f"redis {', '.join(self._streams)}, group {self._group}"

    def of_rank(self, rank: int, world: int, workers: int) -> Connector:
        connector = copy.copy(self)
        connector._rank, connector._world = rank, world
        connector._consumer = f"{self._consumer_name}-{rank}"
        return connector

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Arrivals]:
        return _RedisRows(self, dict(positions))

    def commit(self, positions: Mapping[str, Any]) -> None:
        """Acknowledge the entries up to these ids that this consumer has received.

        Raises:
            ConnectionError: the server cannot be reached.
        """
        if self._group is None:
            return
        with _translated(), self.client() as client:
            for stream, position in positions.items():
                while True:
                    pending = client.xpending_range(stream, self._group, "-", position, _AT_ONCE, self._consumer)
                    if not pending:
                        break
                    client.xack(stream, self._group, *(each["message_id"] for each in pending))

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        decoded = [{_text(name): _text(value) for name, value in fields} for _, fields in rows]
        if self._id_field is not None:
            for row, (entry, _) in zip(decoded, rows, strict=True):
                row[self._id_field] = entry
        yield RecordChunk(decoded)

    # For those who read

    def client(self) -> Any:
        """A client that tries nothing twice: the feed does."""
        redis = import_extra("redis", "redis", "Reading a Redis stream")
        retry = import_extra("redis.retry", "redis", "Reading a Redis stream")
        backoff = import_extra("redis.backoff", "redis", "Reading a Redis stream")
        return redis.Redis.from_url(
            self._url,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=_ANSWER_S,
            retry=retry.Retry(backoff.NoBackoff(), 0),
            protocol=2,
        )

    def begin(self, client: Any, positions: dict[str, Any]) -> None:
        """See that there is a position for each stream, and a group if there is to be one."""
        redis = import_extra("redis", "redis", "Reading a Redis stream")
        for stream in self._streams:
            if self._group is not None:
                try:
                    client.xgroup_create(stream, self._group, _id_of(self._start), mkstream=True)
                except redis.ResponseError as error:
                    if "BUSYGROUP" not in str(error):
                        raise
                positions.setdefault(stream, _FIRST)
            elif stream not in positions:
                positions[stream] = self._last_id(client, stream) if self._start == _LATEST else _id_of(self._start)

    def _last_id(self, client: Any, stream: str) -> str:
        if not client.exists(stream):
            return _FIRST
        return str(_text(client.xinfo_stream(stream)["last-generated-id"]))

    def read(self, client: Any, after: Mapping[str, Any], *, is_new: bool) -> list[tuple[str, list[Any]]]:
        """Entries after some ids, of each stream; those that are new to the group, or that it gave out before."""
        if self._group is None:
            reply = client.xread(dict(after), count=_AT_ONCE, block=_BLOCK_MS)
        else:
            wanted = dict.fromkeys(self._streams, ">") if is_new else dict(after)
            block = _BLOCK_MS if is_new else None
            reply = client.xreadgroup(self._group, self._consumer, wanted, count=_AT_ONCE, block=block)
        return [(_text(stream), entries) for stream, entries in reply or ()]

    def is_mine(self, entry: str) -> bool:
        """Whether an entry belongs to this rank; the server decides for a group."""
        return self._group is not None or self._world == 1 or zlib.crc32(entry.encode()) % self._world == self._rank


class _RedisRows:
    """The entries of an open connection."""

    def __init__(self, connector: RedisConnector, positions: dict[str, Any]) -> None:
        self._connector = connector
        self._positions = positions
        self._client: Any = None
        self._is_closed = False

    def __iter__(self) -> Iterator[Arrivals]:
        connector, after = self._connector, self._positions
        with _translated(), connector.client() as client:
            connector.begin(client, after)
            for stream, position in after.items():
                yield Arrivals((), (position,), stream)
            is_new = connector._group is None
            while not self._is_closed:
                found = connector.read(client, after, is_new=is_new)
                if not is_new and not any(entries for _, entries in found):
                    is_new = True  # what was given out before, and not acknowledged, has come
                for stream, entries in found:
                    if entries:
                        yield from self._arrived(stream, entries)

    def _arrived(self, stream: str, entries: list[Any]) -> Iterator[Arrivals]:
        ids = [_text(entry) for entry, _ in entries]
        self._positions[stream] = ids[-1]
        # An entry that was deleted while it waited to be acknowledged has no fields any more.
        mine = [
            (entry, list(fields.items()))
            for entry, (_, fields) in zip(ids, entries, strict=True)
            if fields and self._connector.is_mine(entry)
        ]
        yield Arrivals(mine, [entry for entry, _ in mine], stream) if mine else Arrivals((), ids[-1:], stream)

    def close(self) -> None:
        self._is_closed = True


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the client that may pass become `ConnectionError`s, as those of a socket are."""
    redis = import_extra("redis", "redis", "Reading a Redis stream")
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError) as error:
        raise ConnectionError(str(error)) from error


def _id_of(start: str) -> str:
    return start if "-" in start or start == _LATEST else f"{start}-0"


def _text(value: Any) -> Any:
    """Text, where bytes are any."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value

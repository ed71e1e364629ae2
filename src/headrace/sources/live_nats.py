"""NATS JetStream: messages by their sequence numbers, and a durable consumer that remembers what was committed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.base.optional import import_extra
from headrace.sources.chunks import ObjectChunk
from headrace.sources.live import Arrivals, Connector
from headrace.sources.source import Chunk, OnBad

_AT_ONCE = 500  # messages that are asked for
_EXPIRES_S = 5.0  # after which the server gives up waiting for them
_LOOK_S = 0.2  # that closing may take
_ANSWER_S = 5.0


class NatsConnector(Connector):
    """Reads the messages of a stream from a sequence number on, by a consumer that lasts as long as the connection.

    Args:
        subject: only messages of this subject.
        durable: the name of a consumer on the server that remembers what was committed; it is made if there is none.
        start: "0" for the first message that there is, "$" for those that are published from now on.
    """

    has_positions = True
    promise = "exactly once by offsets"

    def __init__(self, url: str, stream: str, subject: str | None, durable: str | None, start: str) -> None:
        if start not in ("0", "$"):
            raise ValueError(f"start must be '0' or '$', got {start!r}.")
        self._url = url
        self._stream = stream
        self._subject = subject
        self._durable = durable
        self._start = start
        self.name = f"{url.rpartition('@')[2]}, stream {stream}"
        import_extra("nats", "nats", "Reading a NATS stream")

    @property
    def identity(self) -> str:
        return f"nats {self._stream}, subject {self._subject}"

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Arrivals]:
        return _NatsRows(self, positions.get(self._stream))

    def commit(self, positions: Mapping[str, Any]) -> None:
        """Let the durable consumer remember these positions.

        Raises:
            ConnectionError: the server cannot be reached.
        """
        if self._durable is not None and self._stream in positions:
            failures: list[BaseException] = []
            # In a thread of its own: the caller's may have an event loop that runs.
            thread = threading.Thread(target=_run_alone, args=(self._commit(positions[self._stream]), failures))
            thread.start()
            thread.join()
            if failures:
                raise failures[0]

    async def _commit(self, position: int) -> None:
        client = await self.open()
        try:
            jetstream = client.jetstream()
            info = await self._find_durable(jetstream)
            if info.ack_floor.stream_seq >= position:
                return
            subscription = await jetstream.pull_subscribe_bind(self._durable, self._stream)
            while True:  # the consumer gets headers only; the last one is acknowledged for all before it
                last = None
                for message in await subscription.fetch(_AT_ONCE, timeout=_ANSWER_S):
                    if message.metadata.sequence.stream <= position:
                        last = message
                    else:
                        await message.nak()
                if last is None:
                    return
                await last.ack_sync()
                if last.metadata.sequence.stream == position:
                    return
        finally:
            await client.close()

    async def _find_durable(self, jetstream: Any) -> Any:
        """The durable consumer, which is made if there is none."""
        api = import_extra("nats.js.api", "nats", "Reading a NATS stream")
        errors = import_extra("nats.js.errors", "nats", "Reading a NATS stream")
        try:
            return await jetstream.consumer_info(self._stream, self._durable)
        except errors.NotFoundError:
            policy = api.DeliverPolicy.ALL if self._start == "0" else api.DeliverPolicy.NEW
            config = api.ConsumerConfig(
                durable_name=self._durable,
                deliver_policy=policy,
                ack_policy=api.AckPolicy.ALL,
                ack_wait=1.0,
                max_ack_pending=-1,
                headers_only=True,
                filter_subject=self._subject,
            )
            return await jetstream.add_consumer(self._stream, config)

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        yield ObjectChunk(list(rows), "message")

    # For those who read

    async def open(self) -> Any:
        """A client that tries nothing twice: the feed does."""
        nats = import_extra("nats", "nats", "Reading a NATS stream")
        try:
            return await nats.connect(
                self._url, allow_reconnect=False, connect_timeout=_ANSWER_S, ping_interval=2, error_cb=_ignore
            )
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error

    async def begin(self, jetstream: Any, after: int | None) -> tuple[str, int]:
        """The name of a new consumer, and the sequence number that it reads on from."""
        api = import_extra("nats.js.api", "nats", "Reading a NATS stream")
        if after is None and self._durable is not None:
            after = (await self._find_durable(jetstream)).ack_floor.stream_seq or None
        if after is None:
            state = (await jetstream.stream_info(self._stream)).state
            after = state.last_seq if self._start == "$" else max(0, state.first_seq - 1)
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=60.0,
            filter_subject=self._subject,
        )
        made = await jetstream.add_consumer(self._stream, config)
        return made.name, after


class _NatsRows:
    """The messages of an open connection, as they come; at most `_AT_ONCE` are on their way."""

    def __init__(self, connector: NatsConnector, after: int | None) -> None:
        self._connector = connector
        self._after = after
        self._is_closed = False
        self._n_wanted = 0

    def __iter__(self) -> Iterator[Arrivals]:
        nats = import_extra("nats", "nats", "Reading a NATS stream")
        loop = asyncio.new_event_loop()
        connector, client = self._connector, None
        try:
            client = loop.run_until_complete(connector.open())
            consumer, after = loop.run_until_complete(connector.begin(client.jetstream(), self._after))
            yield Arrivals((), (after,), connector._stream)
            inbox = client.new_inbox()
            subscription = loop.run_until_complete(client.subscribe(inbox))
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{connector._stream}.{consumer}"
            while not self._is_closed:
                messages = loop.run_until_complete(self._next(client, subscription, subject, inbox))
                if messages:
                    numbers = [message.metadata.sequence.stream for message in messages]
                    yield Arrivals([message.data for message in messages], numbers, connector._stream)
        except (nats.errors.ConnectionClosedError, nats.errors.StaleConnectionError) as error:
            raise ConnectionError(str(error)) from error
        except (nats.errors.TimeoutError, nats.js.errors.ServiceUnavailableError) as error:
            raise ConnectionError(f"no answer: {error}") from error
        finally:
            if client is not None:
                loop.run_until_complete(client.close())
            loop.close()

    async def _next(self, client: Any, subscription: Any, subject: str, inbox: str) -> list[Any]:
        nats = import_extra("nats", "nats", "Reading a NATS stream")
        if not client.is_connected:
            raise ConnectionError("the server closed the connection")
        if not self._n_wanted:
            self._n_wanted = _AT_ONCE
            request = {"batch": _AT_ONCE, "expires": int(_EXPIRES_S * 1e9)}
            await client.publish(subject, json.dumps(request).encode(), inbox)
        messages: list[Any] = []
        try:
            messages += self._kept(await subscription.next_msg(_LOOK_S))
        except nats.errors.TimeoutError:
            return messages
        while subscription.pending_msgs and self._n_wanted:
            messages += self._kept(await subscription.next_msg(_LOOK_S))
        return messages

    def _kept(self, message: Any) -> list[Any]:
        status = (message.headers or {}).get("Status")
        if status is None:
            self._n_wanted -= 1
            return [message]
        if status in ("409", "503"):
            raise ConnectionError(f"the server ended the consumer: {message.headers.get('Description')}")
        if status != "100":
            self._n_wanted = 0  # the request is over
        return []

    def close(self) -> None:
        self._is_closed = True


async def _ignore(error: Exception) -> None:
    """What goes wrong is raised where it is waited for."""


def _run_alone(work: Coroutine[Any, Any, None], failures: list[BaseException]) -> None:
    try:
        asyncio.run(work)
    except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
        failures.append(error)

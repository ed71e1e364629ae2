"""NATS JetStream, on a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import DataLoader, read_nats
from tests.live.servers import NATS, Server, nats_server, needs_nats, wait_until

nats = pytest.importorskip("nats")
pytestmark = needs_nats


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if NATS is None:
        pytest.skip("needs nats-server")
    server = nats_server(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()


def url_of(server: Server) -> str:
    return f"nats://127.0.0.1:{server.port}"


async def _publish(url: str, first: int, stop: int, stream: str) -> None:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=stream, subjects=[f"{stream}.*"])
    for n in range(first, stop):
        headers = {"Nats-Msg-Id": f"{n}"}  # one that is published twice is kept once
        await jetstream.publish(f"{stream}.{'odd' if n % 2 else 'even'}", str(n).encode(), headers=headers)
    await client.close()


def publish(server: Server, first: int, stop: int, stream: str) -> None:
    asyncio.run(_publish(url_of(server), first, stop, stream))


def loader_of(server: Server, stream: str, num_workers: int = 0, **options: Any) -> DataLoader:
    rows = read_nats(url_of(server), stream, **options).map(int)
    return DataLoader(rows, batch_size=4, num_workers=num_workers, collate_fn=list)


def take(loader: DataLoader, n: int) -> list[int]:
    seen: list[int] = []
    for batch in loader:
        seen += batch
        if len(seen) >= n:
            break
    return seen


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_after_the_last_message_that_the_loop_had(server: Server, num_workers: int) -> None:
    stream = f"RESUME{num_workers}"
    publish(server, 0, 20, stream)
    with loader_of(server, stream, num_workers) as loader:
        seen = take(loader, 12)
        state = loader.state_dict()
    publish(server, 20, 40, stream)
    with loader_of(server, stream, 2 - num_workers) as again:
        again.load_state_dict(state)
        seen += take(again, 28)
    assert seen == list(range(40))


def test_one_subject_of_a_stream(server: Server) -> None:
    publish(server, 0, 16, "SUBJECT")
    with loader_of(server, "SUBJECT", subject="SUBJECT.odd") as loader:
        assert take(loader, 8) == list(range(1, 16, 2))


def test_a_durable_consumer_remembers_what_was_committed(server: Server) -> None:
    publish(server, 0, 24, "DURABLE")
    with loader_of(server, "DURABLE", durable="trainer") as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        state = loader.state_dict()
        next(batches)
        loader.commit(state)
        loader.commit(state)
        del batches
    with loader_of(server, "DURABLE", durable="trainer") as again:
        assert take(again, 8) == list(range(8, 16))
        again.commit()
    with loader_of(server, "DURABLE", durable="trainer") as last:
        assert take(last, 8) == list(range(16, 24))


@pytest.mark.filterwarnings("ignore:Cannot connect")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_lost_or_doubled_while_the_server_dies(server: Server, num_workers: int) -> None:
    stream, seen = f"KILLED{num_workers}", list[int]()
    publish(server, 0, 60, stream)

    def disturb() -> None:
        wait_until(lambda: len(seen) >= 60)
        server.kill()
        time.sleep(0.2)
        server.start()
        publish(server, 60, 120, stream)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    with loader_of(server, stream, num_workers) as loader:
        for batch in loader:
            seen += batch
            if len(seen) >= 120:
                break
    disturber.join(60)
    assert seen == list(range(120))

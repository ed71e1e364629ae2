"""Redis Streams, on a real server: every entry once, whoever dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import DataLoader, StateError, read_redis
from tests.live.servers import REDIS, Server, needs_redis, numbers_of, redis_server, wait_until

redis = pytest.importorskip("redis")
pytestmark = needs_redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if REDIS is None:
        pytest.skip("needs redis-server")
    server = redis_server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


def url_of(client: Any) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"


def add(client: Any, first: int, stop: int, stream: str = "rows") -> None:
    pipeline = client.pipeline()
    for n in range(first, stop):
        pipeline.xadd(stream, {"n": n, "text": f"row {n}"})
    pipeline.execute()


def as_number(row: dict[str, str]) -> dict[str, int]:
    return {"n": int(row["n"]), "pid": os.getpid()}


def is_odd(row: dict[str, str]) -> bool:
    return int(row["n"]) % 2 == 1


def loader_of(client: Any, num_workers: int = 0, group: str | None = None, **options: Any) -> DataLoader:
    stream = read_redis(url_of(client), "rows", group).map(as_number)
    return DataLoader(stream, batch_size=8, num_workers=num_workers, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_are_dicts_as_they_come(client: Any, num_workers: int) -> None:
    add(client, 0, 3)
    stream = read_redis(url_of(client), "rows", id_field="id")
    with DataLoader(stream, batch_size=None, num_workers=num_workers) as loader:
        rows = iter(loader)
        first = [next(rows) for _ in range(3)]
        add(client, 3, 4)
        last = next(rows)
    assert [row["text"] for row in [*first, last]] == [f"row {n}" for n in range(4)]
    ids = [row.pop("id") for row in [*first, last]]
    assert ids == sorted(ids)
    assert list(last) == ["n", "text"]


@pytest.mark.parametrize("group", [None, "trainers"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_after_the_last_row_that_the_loop_had(client: Any, num_workers: int, group: str | None) -> None:
    add(client, 0, 100)
    with loader_of(client, num_workers, group) as loader:
        seen = numbers_of(loader, 24)
        state = loader.state_dict()
    add(client, 100, 160)
    with loader_of(client, 2 - num_workers, group) as again:
        again.load_state_dict(state)
        seen += numbers_of(again, 136)
    assert seen == list(range(160))


def test_start_dollar_gives_what_is_added_from_now_on(client: Any) -> None:
    add(client, 0, 10)
    stream = read_redis(url_of(client), "rows", start="$").map(as_number)
    found: list[int] = []
    with DataLoader(stream, batch_size=1) as loader:
        reader = threading.Thread(target=lambda: found.extend(numbers_of(loader, 3)))
        reader.start()
        wait_until(lambda: any("xread" in each["cmd"] for each in client.client_list()))
        add(client, 10, 13)
        reader.join(60)
    assert found == [10, 11, 12]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_commit_acknowledges_what_the_state_covers(client: Any, num_workers: int) -> None:
    add(client, 0, 64)
    with loader_of(client, num_workers, "trainers") as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(2)]
        state = loader.state_dict()
        next(batches)
        assert client.xpending("rows", "trainers")["pending"] == 64
        loader.commit(state)
        assert client.xpending("rows", "trainers")["pending"] == 48
        del batches
    assert [int(n) for batch in first for n in batch["n"]] == list(range(16))
    # A run that begins without the state gets all that was not acknowledged.
    with loader_of(client, num_workers, "trainers") as again:
        assert numbers_of(again, 48) == list(range(16, 64))
        again.commit()
    assert client.xpending("rows", "trainers")["pending"] == 0


def test_a_filtered_window_is_acknowledged_when_all_of_it_was_given(client: Any) -> None:
    add(client, 0, 32)
    stream = read_redis(url_of(client), "rows", "trainers").filter(is_odd).map(as_number)
    with DataLoader(stream, batch_size=4) as loader:
        batches = iter(loader)
        seen = [int(n) for _ in range(2) for n in next(batches)["n"]]
        state = loader.state_dict()
        loader.commit(state)
        assert client.xpending("rows", "trainers")["pending"] == 32
        del batches
    with DataLoader(stream, batch_size=4) as again:
        again.load_state_dict(state)
        seen += numbers_of(again, 8)
        again.commit()
    assert seen == list(range(1, 32, 2))
    assert client.xpending("rows", "trainers")["pending"] == 0


@pytest.mark.parametrize("group", [None, "trainers"])
def test_two_ranks_share_the_entries(client: Any, group: str | None) -> None:
    add(client, 0, 200)
    loaders = [loader_of(client, 0, group, shard=(rank, 2)) for rank in range(2)]
    seen: list[list[int]] = [[], []]

    def read(rank: int) -> None:
        for batch in loaders[rank]:
            seen[rank] += [int(n) for n in batch["n"]]

    readers = [threading.Thread(target=read, args=(rank,), daemon=True) for rank in range(2)]
    for reader in readers:
        reader.start()
    # The last rows of a rank wait for a full batch.
    wait_until(lambda: sum(map(len, seen)) >= 200 - 14)
    add(client, 200, 250)
    wait_until(lambda: sum(map(len, seen)) >= 250 - 14)
    for loader in loaders:
        loader.close()
    for reader in readers:
        reader.join(60)
    assert len(set(seen[0]) & set(seen[1])) == 0
    assert seen[0] == sorted(seen[0])
    assert seen[0] or group is not None  # a group gives entries to whoever asks first
    assert len(set(seen[0]) | set(seen[1])) >= 236


def test_a_state_of_another_stream_is_refused(client: Any) -> None:
    add(client, 0, 8)
    with loader_of(client) as loader:
        numbers_of(loader, 8)
        state = loader.state_dict()
    other = DataLoader(read_redis(url_of(client), "others").map(as_number), batch_size=8)
    with pytest.raises(StateError, match="live"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="live"):
        other.commit(state)


def write_on(client: Any, stop: int, written: list[int], every_s: float) -> threading.Thread:
    """Add rows in the background, each until the server has confirmed it; the ids make a repetition harmless."""

    def write() -> None:
        for n in range(stop):
            while True:
                try:
                    client.xadd("rows", {"n": n}, id=f"{n + 1}-0")
                    break
                except redis.ResponseError:  # it was added, but the answer got lost
                    break
                except redis.RedisError:
                    time.sleep(0.05)
            written.append(n)
            time.sleep(every_s)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.filterwarnings("ignore:Cannot connect")
@pytest.mark.parametrize("group", [None, "trainers"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_lost_or_doubled_while_the_server_dies_and_hangs(
    client: Any, server: Server, num_workers: int, group: str | None
) -> None:
    written: list[int] = []
    writer = write_on(client, 400, written, 0.002)
    seen: list[int] = []

    def disturb() -> None:
        wait_until(lambda: len(seen) >= 64)
        server.kill()
        time.sleep(0.2)
        server.start()
        wait_until(lambda: len(seen) >= 160)
        server.freeze()
        time.sleep(0.5)
        server.thaw()

    disturber = threading.Thread(target=disturb)
    disturber.start()
    with loader_of(client, num_workers, group) as loader:
        for batch in loader:
            seen += [int(n) for n in batch["n"]]
            if len(seen) >= 400:
                break
    disturber.join(60)
    writer.join(60)
    assert seen == written == list(range(400))


@pytest.mark.filterwarnings("ignore:.*worker")
@pytest.mark.parametrize("group", [None, "trainers"])
def test_nothing_lost_or_doubled_over_killed_workers_and_restarts(client: Any, group: str | None) -> None:
    written: list[int] = []
    writer = write_on(client, 600, written, 0.001)
    seen: list[int] = []
    state: Any = None
    while len(seen) < 600:
        with loader_of(client, 2, group, on_worker_death="restart") as loader:
            if state is not None:
                loader.load_state_dict(state)
            for i, batch in enumerate(loader):
                seen += [int(n) for n in batch["n"]]
                if i == 5:
                    os.kill(int(batch["pid"][0]), signal.SIGKILL)
                if i % 4 == 3:
                    state, saved = loader.state_dict(), len(seen)
                    loader.commit(state)
                if i == 18 or len(seen) >= 600:
                    break
        if len(seen) < 600:
            del seen[saved:]  # the run died after its last checkpoint
    writer.join(60)
    assert seen == written == list(range(600))


def test_a_wrong_type_of_key_is_an_error(client: Any) -> None:
    client.set("rows", "no stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        next(iter(loader_of(client)))


def test_an_unreachable_server_is_an_error_in_the_end(tmp_path: Path) -> None:
    from headrace.sources.retry import Retries

    stream = read_redis("redis://:secret@127.0.0.1:1/0", "rows", retries=Retries(2, 0.01))
    with pytest.raises(OSError, match=r"redis://127.0.0.1:1/0, stream rows.*refused") as raised:
        next(iter(DataLoader(stream)))
    assert "secret" not in str(raised.value)

"""Sockets and HTTP responses that never end, from a real server in a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import DataLoader, RecordError, read_live
from headrace.sources.live_sockets import RecordSplitter
from headrace.sources.retry import Retries
from tests.live.servers import Server, feed, free_port, numbers_of, wait_until

KINDS = ["tcp", "http", "http-plain"]


def url_of(server: Server, kind: str = "tcp") -> str:
    return f"{'tcp' if kind == 'tcp' else 'http'}://127.0.0.1:{server.port}/"


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_json_lines_of_an_endless_server_in_order(servers: list[Server], kind: str, num_workers: int) -> None:
    servers.append(feed("--kind", kind, "--rate", 2000))
    stream = read_live(url_of(servers[0], kind), format="jsonl")
    with DataLoader(stream, batch_size=8, num_workers=num_workers) as loader:
        seen = numbers_of(loader, 400)
        seen += numbers_of(loader, 400)  # a loop that is broken off loses nothing
    assert seen == list(range(800))


@pytest.mark.parametrize(("form", "kind"), [("lines", "http"), ("records", "tcp"), ("records", "http")])
def test_other_formats(servers: list[Server], form: str, kind: str) -> None:
    servers.append(feed("--kind", kind, "--format", form, "--rate", 1000))
    stream = read_live(url_of(servers[0], kind), format=form)  # type: ignore[arg-type]
    with DataLoader(stream, batch_size=None) as loader:
        row = next(iter(loader))
    assert type(row) is (bytes if form == "records" else str)
    assert '"sent"' in str(row)


@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_the_end_of_a_response_ends_the_stream(servers: list[Server], kind: str) -> None:
    servers.append(feed("--kind", kind, "--last", 50, "--rate", 100))
    stream = read_live(url_of(servers[0], kind), format="jsonl", at_end=None if kind == "http" else "stop")
    seen = [row["n"] for row in stream]
    assert seen == list(range(50))


@pytest.mark.filterwarnings("ignore:The connection was lost", "ignore:Cannot connect")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_server_that_comes_back_is_read_on(servers: list[Server], kind: str, num_workers: int) -> None:
    servers.append(feed("--kind", kind, "--rate", 1000))
    port = servers[0].port
    stream = read_live(url_of(servers[0], kind), format="jsonl", retries=Retries(50, 0.05, 0.5))
    seen: list[int] = []

    def disturb() -> None:
        wait_until(lambda: len(seen) >= 80)
        servers[0].kill()
        servers.append(feed("--kind", kind, "--rate", 1000, "--first", 1_000_000, port=port))

    disturber = threading.Thread(target=disturb)
    disturber.start()
    with DataLoader(stream, batch_size=8, num_workers=num_workers) as loader:
        for batch in loader:
            seen += batch["n"].tolist()
            if seen[-1] >= 1_000_100:
                break
    disturber.join(60)
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


@pytest.mark.filterwarnings("ignore:The connection was lost")
def test_a_server_that_hangs_is_left_after_the_idle_timeout(servers: list[Server]) -> None:
    servers.append(feed("--rate", 500))
    stream = read_live(url_of(servers[0]), format="jsonl", idle_timeout_s=0.3)
    n_lost = 0
    with DataLoader(stream, batch_size=8) as loader:
        for i, batch in enumerate(loader):
            if i == 5:
                servers[0].freeze()
                threading.Timer(1.0, servers[0].thaw).start()
            if i == 20:
                break
            n_lost += len(batch["n"]) < 8
    assert n_lost == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_connection_for_each_worker(servers: list[Server], num_workers: int) -> None:
    servers.append(feed("--rate", 2000))
    stream = read_live(url_of(servers[0]), format="jsonl", connections="per_worker")
    with DataLoader(stream, batch_size=8, num_workers=num_workers) as loader:
        seen = numbers_of(loader, 400)
        feeds = [each for each in threading.enumerate() if each.name == "headrace-feed"]
        assert len(feeds) == max(1, num_workers)
    assert len(set(seen)) == len(seen)
    assert max(seen) < 400 + 2 * 16_384


def test_ranks_need_a_connection_each(servers: list[Server]) -> None:
    servers.append(feed("--rate", 1000))
    with pytest.raises(ValueError, match="per_worker"):
        DataLoader(read_live(url_of(servers[0])), shard=(0, 2)).state_dict()
    seen = []
    for rank in range(2):
        stream = read_live(url_of(servers[0]), format="jsonl", connections="per_worker")
        with DataLoader(stream, batch_size=8, shard=(rank, 2)) as loader:
            seen += numbers_of(loader, 40)
    assert len(set(seen)) == len(seen) == 80


def test_a_slow_loop_stops_the_server(servers: list[Server]) -> None:
    servers.append(feed())  # as fast as it can
    with DataLoader(read_live(url_of(servers[0]), format="jsonl"), batch_size=8) as loader:
        batches = iter(loader)
        assert next(batches)["n"].tolist() == list(range(8))
        time.sleep(1.0)
        seen = [n for _ in range(100) for n in next(batches)["n"].tolist()]
        ages = time.monotonic() - next(batches)["sent"].min()
        del batches
    assert seen == list(range(8, 808))
    assert ages >= 0.5  # they waited in the queue, and were not thrown away


def test_errors_say_what_to_write() -> None:
    for url in ("ftp://host/x", "tcp://host", "nothing"):
        with pytest.raises(ValueError, match="url must"):
            read_live(url)
    with pytest.raises(ValueError, match="format must be one of"):
        read_live("tcp://host:1", format="xml")  # type: ignore[arg-type]
    stream = read_live(f"tcp://127.0.0.1:{free_port()}", retries=Retries(1))
    with pytest.raises(OSError, match=r"Gave up connecting to tcp://.*refused"):
        next(iter(stream))


def test_a_missing_page_is_an_error_at_once(tmp_path: Any) -> None:
    import http.server

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(OSError, match="404"):
            next(iter(read_live(f"http://127.0.0.1:{server.server_port}/no-such-file")))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_records_are_cut_wherever_pieces_end(size: int) -> None:
    texts = [b"", b"one", b"\n\x00", b"x" * 300]
    framed = b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    splitter = RecordSplitter("records")
    found = [one for i in range(0, len(framed), size) for one in splitter.add(framed[i : i + size])]
    assert found == texts
    assert splitter.end() == []
    lines = b"one\r\n\ntwo\nlast"
    splitter = RecordSplitter("lines")
    found = [one for i in range(0, len(lines), size) for one in splitter.add(lines[i : i + size])]
    assert [*found, *splitter.end()] == [b"one", b"", b"two", b"last"]


def test_a_record_that_is_too_long_is_refused() -> None:
    with pytest.raises(RecordError, match="at most 10 bytes"):
        RecordSplitter("records", 10).add((11).to_bytes(4, "big"))
    with pytest.raises(RecordError, match="at most 10 bytes"):
        RecordSplitter("lines", 10).add(b"x" * 11)
    splitter = RecordSplitter("records")
    splitter.add(b"\x00\x00")
    with pytest.raises(RecordError, match="cut short"):
        splitter.end()

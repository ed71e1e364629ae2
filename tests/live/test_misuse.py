"""Live feeds that are read as if they were finished: each is an error or a warning that says what to write."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import DataLoader, Stream, read_jsonl
from headrace.sources import remote_file
from tests.live.servers import feed
from tests.sources.servers import closes_are_done, fsspec_running

__all__ = ["fsspec_running"]


@pytest.mark.usefixtures("fsspec_running")
def test_an_endless_response_read_as_a_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "_PATIENCE_S", 0.2)
    server = feed("--kind", "http", "--rate", 1000)
    try:
        loader = DataLoader(read_jsonl(f"http://127.0.0.1:{server.port}/rows.jsonl"), batch_size=8)
        with pytest.raises(UserWarning, match=r"write read_live\(url, format=...\)"):  # warnings are errors here
            next(iter(loader))
        loader.close()
        closes_are_done()
    finally:
        server.kill()


class Lines:
    """The lines of a socket: each connection gets its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __iter__(self) -> Iterator[str]:
        with socket.create_connection(("127.0.0.1", self._port)) as sock, sock.makefile("r") as lines:
            yield from lines


def test_a_live_feed_in_every_worker_is_an_error() -> None:
    server = feed("--rate", 5000)
    try:
        stream = Stream.from_iterable(Lines(server.port), block_rows=4)
        loader = DataLoader(stream, batch_size=4, num_workers=2)
        with loader, pytest.raises(ValueError, match=r"Stream\.live"):
            list(itertools.islice(loader, 50))
    finally:
        server.kill()


@pytest.mark.parametrize(
    "rows", [[{"a": [1]}, {"a": [2]}], [(1, 2.5, None), ("x", b"y", True)], [{1, 2}, {3}], [[], []]]
)
def test_iterables_that_keep_their_rows_are_none(rows: list[Any]) -> None:
    stream = Stream.from_iterable(lambda: iter(rows * 20), block_rows=3)
    with DataLoader(stream, batch_size=4, num_workers=2, collate_fn=list) as loader:
        assert [row for batch in loader for row in batch] == rows * 20

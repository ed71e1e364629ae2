"""Live streams from one's own connections: every row once and at once, for every kind of loader."""

from __future__ import annotations

import itertools
import json
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from headrace import DataLoader, LiveRow, RecordError, StateError, Stream, inspect, mix
from headrace.sources import live
from headrace.sources.retry import Retries
from tests.live.servers import wait_until

N = 203


def connect(positions: Mapping[str, Any]) -> Iterator[LiveRow]:
    """Rows of two partitions in turn, each with positions of its own."""
    nexts = {name: positions.get(name, -1) + 1 for name in ("even", "odd")}
    for n in range(N):
        partition, position = ("odd" if n % 2 else "even"), n // 2
        if position >= nexts[partition]:
            yield LiveRow(n, position, partition)


def doubled(n: int) -> int:
    return 2 * n


def is_small(n: int) -> bool:
    return n % 7 < 3


def twice(n: int) -> list[int]:
    return [n, -n]


def tokens(n: int) -> list[int]:
    return [n] * (n % 4)


def plain() -> Stream:
    return Stream.live(connect, positions=True)


SHAPES: dict[str, Callable[[], Stream]] = {
    "plain": plain,
    "map": lambda: plain().map(doubled),
    "filter": lambda: plain().filter(is_small),
    "flat_map": lambda: plain().flat_map(twice),
    "shuffle": lambda: plain().shuffle(64),
    "shuffle and filter": lambda: plain().shuffle(64).filter(is_small),
    "pack": lambda: plain().map(tokens).pack(5),
    "skip and take": lambda: plain().skip(10).take(150),
}
ENGINES = [(0, "processes"), (2, "threads"), (2, "processes")]


def loader_of(shape: str, num_workers: int = 0, engine: str = "processes", **options: Any) -> DataLoader:
    options = {"batch_size": 8, "seed": 3, "collate_fn": list, **options}
    if num_workers:
        options["engine"] = engine
    return DataLoader(SHAPES[shape](), num_workers=num_workers, **options)


def expected(shape: str) -> list[Any]:
    rows = list(range(N))
    match shape:
        case "map":
            return [2 * n for n in rows]
        case "filter" | "shuffle and filter":
            return list(filter(is_small, rows))
        case "flat_map":
            return [one for n in rows for one in (n, -n)]
        case "pack":
            return [one for n in rows for one in tokens(n)]
        case "skip and take":
            return rows[10:160]
    return rows


def flat(batches: list[list[Any]], shape: str) -> list[Any]:
    rows = [row for batch in batches for row in batch]
    if shape == "pack":
        return [token for row in rows for token in row]
    return sorted(rows) if "shuffle" in shape else rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("num_workers", "engine"), ENGINES)
def test_every_row_once_and_resumed_anywhere(shape: str, num_workers: int, engine: str) -> None:
    with loader_of(shape, num_workers, engine) as loader:
        states, batches = [], []
        for batch in loader:
            batches.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert flat(batches, shape) == expected(shape)
    for i in (0, len(batches) // 2, len(batches) - 2):
        with loader_of(shape, 0 if i else 2, "threads") as again:
            again.load_state_dict(states[i])
            assert again.state_dict()["course"] == states[i]["course"]
            rest = list(again)
        assert flat(batches[: i + 1] + rest, shape) == expected(shape)
        if num_workers == 0:  # without a seed that windows follow, batches may be cut elsewhere, but rows are the same
            assert [row for batch in rest for row in batch][:8] == [row for batch in batches[i + 1 :] for row in batch][
                :8
            ]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "skip and take"])  # which is of each epoch
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_loop_that_breaks_off_loses_nothing(shape: str, num_workers: int, persistent: bool) -> None:
    batches = []
    with loader_of(shape, num_workers, persistent_workers=persistent) as loader:
        for size in (1, 4, 1000):
            batches += list(itertools.islice(loader, size))
            if size == 4:  # a state that is taken between two loops, too
                state, n_saved = loader.state_dict(), len(batches)
    assert flat(batches, shape) == expected(shape)
    with loader_of(shape) as again:
        again.load_state_dict(state)
        assert flat(batches[:n_saved] + list(again), shape) == expected(shape)


def test_the_next_epoch_goes_on() -> None:
    stream = plain().take(50)
    with DataLoader(stream, batch_size=10, collate_fn=list) as loader:
        assert [sum(map(len, loader)) for _ in range(5)] == [50, 50, 50, 50, 3]


def test_stream_without_a_loader() -> None:
    assert list(plain().skip(3).take(4)) == [3, 4, 5, 6]
    assert list(plain().filter(is_small))[:4] == [0, 1, 2, 7]


class Feed:
    """Rows that a test puts in, one by one, while the loop waits."""

    def __init__(self) -> None:
        self.rows: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, positions: Mapping[str, Any]) -> Iterator[Any]:
        while (row := self.rows.get()) is not None:
            if isinstance(row, Exception):
                raise row
            yield row


@pytest.mark.parametrize(("num_workers", "engine"), ENGINES)
def test_a_batch_leaves_with_its_last_row(num_workers: int, engine: str) -> None:
    feed = Feed()
    options = {"engine": engine} if num_workers else {}
    stream = Stream.live(feed).map(doubled)
    with DataLoader(stream, batch_size=2, collate_fn=list, num_workers=num_workers, **options) as loader:
        batches = iter(loader)
        for n in range(0, 20, 2):  # the loop would wait for ever if a batch needed any row after its own
            feed.rows.put(n)
            feed.rows.put(n + 1)
            assert next(batches) == [2 * n, 2 * n + 2]
        feed.rows.put(None)
        assert list(batches) == []


def test_a_slow_loop_stops_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_ROWS", 100)
    monkeypatch.setattr("headrace.streams.live.MOST_ROWS", 100)
    n_read = 0

    def endless(positions: Mapping[str, Any]) -> Iterator[int]:
        nonlocal n_read
        while True:
            n_read += 1
            yield n_read

    with DataLoader(Stream.live(endless), batch_size=10, collate_fn=list) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: n_read > 100)
        for _ in range(50):
            next(batches)
        assert n_read < 51 * 10 + 2 * 100 + 110
        del batches


def test_a_lost_connection_is_opened_again_where_it_was() -> None:
    n_opened = 0

    def breaks(positions: Mapping[str, Any]) -> Iterator[LiveRow]:
        nonlocal n_opened
        n_opened += 1
        first = positions.get("", -1) + 1
        for n in range(first, 50):
            if n >= first + 10:
                raise ConnectionResetError("gone")
            yield LiveRow(n, n)

    stream = Stream.live(breaks, positions=True, retries=Retries(3, 0.01))
    assert list(stream) == list(range(50))
    assert n_opened == 5


def test_without_positions_a_loss_is_told() -> None:
    feed = Feed()
    for row in (1, OSError("gone"), 2, None):
        feed.rows.put(row)
    with pytest.warns(UserWarning, match="rows sent meanwhile may be lost"):
        assert list(Stream.live(feed, retries=Retries(3, 0.01))) == [1, 2]


def test_errors_come_after_all_rows_before_them() -> None:
    feed = Feed()
    for row in (1, 2, 3, KeyError("no such topic")):
        feed.rows.put(row)
    with DataLoader(Stream.live(feed), batch_size=1, collate_fn=list, num_workers=2) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [[1], [2], [3]]
        with pytest.raises(KeyError, match="no such topic"):
            next(batches)


def fails_at_five(n: int) -> int:
    if n == 5:
        raise RecordError("five is bad")
    return n


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_rows_are_left_out(num_workers: int) -> None:
    stream = plain().take(20).map(fails_at_five)
    with DataLoader(stream, batch_size=4, collate_fn=list, num_workers=num_workers, on_error="skip") as loader:
        with pytest.warns(UserWarning, match="five is bad"):
            rows = [row for batch in loader for row in batch]
        assert rows == [n for n in range(20) if n != 5]
        [bad] = loader.errors
        assert "five is bad" in bad.error


def test_a_loader_that_waits_can_be_closed() -> None:
    feed = Feed()
    loader = DataLoader(Stream.live(feed), batch_size=1)
    ended = threading.Event()

    def read() -> None:
        list(loader)
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    feed.rows.put(1)
    wait_until(lambda: loader.stats()["batches"] == 1)
    loader.close()
    feed.rows.put(None)
    thread.join(60)
    assert ended.is_set()
    wait_until(lambda: not any(each.name == "headrace-feed" for each in threading.enumerate()))


def test_commit_hands_over_the_positions_of_a_state() -> None:
    committed: list[dict[str, Any]] = []
    stream = Stream.live(connect, positions=True, commit=lambda positions: committed.append(dict(positions)))
    with DataLoader(stream, batch_size=4, collate_fn=list) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        next(batches)
        loader.commit(state)
        loader.commit()
        del batches
    assert committed == [{"even": 1, "odd": 1}, {"even": 3, "odd": 3}]


@pytest.mark.parametrize("data", [range(8), Stream.from_blocks([0], lambda _: range(8))], ids=["keys", "stream"])
def test_commit_of_any_other_loader_only_checks_the_state(data: Any) -> None:
    loader = DataLoader(data, batch_size=2)
    loader.commit()
    state = loader.state_dict()
    loader.commit(state)
    with pytest.raises(StateError):
        loader.commit({"no": "state"})


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be mixed"):
        mix([plain(), plain()])
    with pytest.raises(ValueError, match="no end"):
        plain().repeat()
    with pytest.raises(ValueError, match="before map"):
        plain().map(doubled).take(3)
    with pytest.raises(ValueError, match="needs a window"):
        plain().shuffle()
    with pytest.raises(TypeError, match="no end"):
        plain().count()
    with pytest.raises(TypeError):
        len(DataLoader(plain()))
    with pytest.raises(ValueError, match="cannot be shared by 2 ranks"):
        next(iter(DataLoader(plain(), shard=(0, 2))))


def test_explain_names_the_promise() -> None:
    assert "exactly once by offsets" in plain().explain()
    assert "at most once" in Stream.live(connect).explain(workers=2)


def test_inspect_shows_the_first_rows_and_the_promise() -> None:
    shown = str(inspect(plain().map(doubled)))
    assert "exactly once by offsets" in shown
    assert "live, connect" in shown


def test_a_loader_can_be_pickled() -> None:
    loader = pickle.loads(pickle.dumps(DataLoader(plain(), batch_size=4, collate_fn=list)))
    with loader:
        assert next(iter(loader)) == [0, 1, 2, 3]

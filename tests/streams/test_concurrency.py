"""Several rows at a time inside a worker: in order, and with the results, draws and errors of one at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

import headrace
from headrace import DataLoader, Stream
from headrace.streams.readers import mix
from tests.streams.memory import in_memory

ENGINES = [("processes", 0), ("threads", 2), ("processes", 2)]


def slow(n):
    time.sleep(0.001 * (n * 7 % 3))
    return n * n


def noisy(n):
    time.sleep(0.0005 * (n * 7 % 3))
    if n % 3:
        return n, headrace.rng().random()
    return n, headrace.rng().integers(100) + headrace.rng().normal()


async def slow_async(n):
    await asyncio.sleep(0.001 * (n * 7 % 3))
    return n * n


async def noisy_async(n):
    await asyncio.sleep(0.0005 * (n * 7 % 3))
    first = headrace.rng().random()
    await asyncio.sleep(0.0005 * (n * 5 % 3))
    return n, first, headrace.rng().random()


STREAMS = {
    "plain": lambda stream, step: step(stream),
    "shuffled": lambda stream, step: step(stream.shuffle(blocks=3)),
    "several steps": lambda stream, step: step(stream.filter(lambda n: n % 5)).map(lambda row: (row, "after")),
    "draws before": lambda stream, step: step(stream.filter(lambda n: headrace.rng().random() < 0.7)),
    "draws after": lambda stream, step: step(stream).map(lambda row: (row, headrace.rng().random())),
    "mixed": lambda stream, step: mix([step(stream), in_memory(30, 5)], [2, 1], stop="all"),
    "packed": lambda stream, step: step(stream.map(lambda n: [n]).pack(2).map(lambda row: int(row[0]))),
    "iterable": lambda stream, step: step(Stream.from_iterable(range(90), block_rows=16)),
}


def with_threads(stream):
    return stream.map(noisy, threads=4)


def without(stream):
    return stream.map(noisy)


def as_coroutines(stream):
    return stream.map(noisy_async, at_once=7)


def loaded(kind, step, engine="processes", workers=0, **options):
    stream = STREAMS[kind](in_memory(90, 13), step)
    return DataLoader(stream, 4, seed=3, collate_fn=list, engine=engine, num_workers=workers, **options)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_threads_change_nothing(kind, engine, workers):
    with loaded(kind, with_threads, engine, workers) as loader:
        assert list(loader) == list(loaded(kind, without))


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("step", [with_threads, as_coroutines])
@pytest.mark.parametrize(("engine", "workers"), ENGINES[1:])
def test_resumes_with_the_same_draws(kind, step, engine, workers):
    alone = loaded(kind, step)
    seen = [(batch, json.dumps(alone.state_dict())) for batch in alone]
    with loaded(kind, step, engine, workers) as resumed:
        resumed.load_state_dict(json.loads(seen[6][1]))
        assert list(resumed) == [batch for batch, _ in seen[7:]]
    assert len({str(row) for batch, _ in seen for row in batch}) == sum(len(batch) for batch, _ in seen)


@pytest.mark.parametrize("step", [with_threads, as_coroutines])
def test_ranks_share_the_rows(step):
    parts = [list(loaded("shuffled", step, shard=(rank, 2), even="allow")) for rank in range(2)]
    assert sorted(row[0] for part in parts for batch in part for row in batch) == list(range(90))


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
@pytest.mark.parametrize(
    "options", [{"fn": slow, "threads": 6}, {"fn": slow_async, "at_once": 20}], ids=["threads", "async"]
)
def test_rows_come_in_their_order(engine, workers, options):
    stream = in_memory(200, 50).map(**options)
    assert list(stream) == [n * n for n in range(200)]
    with DataLoader(stream, 8, collate_fn=list, engine=engine, num_workers=workers) as loader:
        assert [n for batch in loader for n in batch] == [n * n for n in range(200)]


@pytest.mark.parametrize("most", [1, 5])
def test_as_many_at_a_time_as_asked_for(most):
    lock, running, peak = threading.Lock(), [0], [0]

    def count(n):
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1
        return n

    assert list(in_memory(60, 60).map(count, threads=most)) == list(range(60))
    assert peak[0] == most


def test_as_many_coroutines_as_asked_for():
    running, peak = [0], [0]

    async def count(n):
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await asyncio.sleep(0.002)
        running[0] -= 1
        return n

    assert list(in_memory(60, 60).map(count, at_once=5)) == list(range(60))
    assert peak[0] == 5


def test_rows_wait_at_the_same_time():
    barrier = threading.Barrier(6)

    def meet(n):
        barrier.wait(30)  # nobody passes alone
        return n

    assert list(in_memory(24, 24).map(meet, threads=6)) == list(range(24))


def refuse_sevens(n):
    time.sleep(0.001 * (n % 3))
    if n % 7 == 0 and n:
        raise ValueError(f"no {n}")
    return n


async def refuse_sevens_async(n):
    return refuse_sevens(n)


FAILING = [{"fn": refuse_sevens}, {"fn": refuse_sevens, "threads": 5}, {"fn": refuse_sevens_async, "at_once": 5}]


@pytest.mark.parametrize("options", FAILING, ids=["one", "threads", "async"])
@pytest.mark.parametrize(("engine", "workers"), ENGINES)
class TestErrors:
    def test_the_first_row_that_raises_is_named(self, options, engine, workers):
        stream = in_memory(40, 20).map(**options)
        with (
            DataLoader(stream, 4, engine=engine, num_workers=workers) as loader,
            pytest.raises(ValueError, match=r"no 7\b") as caught,
        ):
            list(loader)
        assert any("Map at row 7 of memory" in note for note in caught.value.__notes__)

    def test_or_left_out(self, options, engine, workers):
        stream = in_memory(40, 20).map(**options)
        loader = DataLoader(stream, 4, collate_fn=list, engine=engine, num_workers=workers, on_error="skip")
        with loader, pytest.warns(UserWarning, match="left out"):
            rows = [n for batch in loader for n in batch]
        assert rows == [n for n in range(40) if n % 7 or not n]
        assert [str(bad.error) for bad in loader.errors] == [f"ValueError: no {n}" for n in range(7, 40, 7)]


def test_a_stop_iteration_ends_nothing():
    def stop(n):
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(in_memory(4, 4).map(stop, threads=2))


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_functions_know_their_worker(engine, workers):
    def worker(n):
        info = headrace.get_worker_info()
        return None if info is None else info.num_workers

    with DataLoader(
        in_memory(20, 5).map(worker, threads=3), 4, collate_fn=list, num_workers=workers, engine=engine
    ) as loader:
        assert {row for batch in loader for row in batch} == {workers or None}


def test_one_event_loop_for_all_windows_also_where_one_is_running():
    loops = set()

    async def note(n):
        loops.add(id(asyncio.get_running_loop()))
        return n

    stream = in_memory(40, 10).map(note)

    async def inside():
        return list(stream)

    assert list(stream) == asyncio.run(inside()) == list(range(40))
    assert len(loops) == 1


def test_numpys_generator_is_left_alone_where_nothing_is_drawn():
    import numpy as np

    before = np.random.get_state()[1].tolist()
    list(in_memory(20, 5).map(slow, threads=3))
    list(in_memory(20, 5).map(slow_async))
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("fn", "options", "text"),
    [
        (slow, {"threads": 0}, "threads must be at least 1"),
        (slow_async, {"threads": 2}, "needs no threads"),
        (slow_async, {"at_once": 0}, "at_once must be at least 1"),
    ],
)
def test_wrong_arguments(fn, options, text):
    with pytest.raises(ValueError, match=text):
        in_memory(4, 2).map(fn, **options)


def test_a_state_fits_whatever_the_threads():
    loader = loaded("plain", without)
    batches = iter(loader)
    next(batches)
    resumed = loaded("plain", with_threads)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == list(batches)

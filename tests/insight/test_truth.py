"""What a loader says of itself is what a stopwatch around its loop says, whatever kind it is and whatever is slow.

Each stage sleeps in turn, for times that are known; nothing else takes as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, Stream, mix, read_parquet
from headrace.base.world import get_worker_info
from headrace.insight.timeline import timeline_data, trace_of
from headrace.testing import SlowDataset
from tests.engines.jobs import start_helpers_of_multiprocessing

SIZE, BATCHES = 8, 12
SAMPLES = SIZE * BATCHES
BLOCK = 3 * SIZE  # rows, so that there are few tasks, all of which are timed
STEPS = 2  # of each position of a multi-stream batch
SAMPLE_S = 0.002
BATCH_S = SIZE * SAMPLE_S
MODEL_S = 0.03

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "engine": "threads"},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
}


def nap(seconds: float, value: Any = None) -> Any:
    if seconds:
        time.sleep(seconds)
    return value


def napping(seconds: float) -> Callable[[Any], Any]:
    return partial(nap, seconds)


def collate_slowly(samples: Any) -> Any:
    return nap(BATCH_S, samples)


class Numbers(IterableDataset):
    """A user's iterable that deals its samples to the workers."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first * SIZE, SAMPLES, step * SIZE):
            yield from (nap(self.seconds, number + i) for i in range(SIZE))


def rows_of(seconds: float, tokens: int, block: tuple[int, int]) -> Iterator[Any]:
    for number in range(*block):
        yield nap(seconds, np.full(tokens, number) if tokens else number)


def numbers(slow: str, *, tokens: int = 0, first: int = 0, n: int = SAMPLES, block: int = BLOCK) -> Stream:
    """Numbers, or arrays of tokens, in blocks of so many rows."""
    blocks = [(start, min(start + block, first + n)) for start in range(first, first + n, block)]
    read = partial(rows_of, SAMPLE_S if slow == "read" else 0, tokens)
    return Stream.from_blocks(blocks, read, counts=[stop - start for start, stop in blocks])


def steps(stream: Stream, slow: str) -> Stream:
    return stream.map(napping(SAMPLE_S)) if slow == "map" else stream


def items_of(seconds: float, number: int) -> Iterator[float]:
    for _ in range(STEPS * BATCHES):
        yield nap(seconds, float(number))


def nap_over_columns(columns: dict[str, Any]) -> dict[str, Any]:
    return nap(SAMPLE_S * len(columns["n"]), columns)


def make_map(slow: str, folder: Path, **options: Any) -> Any:
    return DataLoader(SlowDataset(range(SAMPLES), SAMPLE_S if slow == "fetch" else 0.0), SIZE, **options)


def make_iterable(slow: str, folder: Path, **options: Any) -> Any:
    return DataLoader(Numbers(SAMPLE_S if slow == "fetch" else 0.0), SIZE, **options)


def make_stream(slow: str, folder: Path, **options: Any) -> Any:
    return DataLoader(steps(numbers(slow), slow), SIZE, **options)


def make_uneven(slow: str, folder: Path, **options: Any) -> Any:
    """Batches lie across the borders of blocks."""
    return DataLoader(steps(numbers(slow, block=BLOCK - 3), slow), SIZE, **options)


def make_shuffled(slow: str, folder: Path, **options: Any) -> Any:
    return DataLoader(steps(numbers(slow).shuffle(blocks=2), slow), SIZE, **options)


def make_mixed(slow: str, folder: Path, **options: Any) -> Any:
    halves = [numbers(slow, n=SAMPLES // 2), numbers(slow, first=SAMPLES // 2, n=SAMPLES // 2)]
    return DataLoader(steps(mix(halves, stop="all"), slow), SIZE, **options)


def make_packed(slow: str, folder: Path, **options: Any) -> Any:
    return DataLoader(steps(numbers(slow, tokens=4), slow).pack(4), SIZE, **options)


def make_columns(slow: str, folder: Path, **options: Any) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = folder / "numbers.parquet"
    pq.write_table(pa.table({"n": np.arange(SAMPLES)}), path, row_group_size=BLOCK)
    stream = read_parquet(path, rows="columns", block_bytes=8 * BLOCK)
    return DataLoader(stream.map_batches(nap_over_columns, SIZE) if slow == "map_batches" else stream, SIZE, **options)


def make_lanes(slow: str, folder: Path, **options: Any) -> Any:
    seconds = SAMPLE_S / STEPS if slow == "read" else 0
    lengths = [STEPS * BATCHES] * SIZE
    return MultiStreamDataLoader(
        range(SIZE),
        SIZE,
        seq_len=STEPS,
        assign="partition",
        cycle=False,
        read=partial(items_of, seconds),
        lengths=lengths,
        **options,
    )


MAKE: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "map in torch's order": (make_map, ("fetch", "collate", "model")),
    "map by seed": (partial(make_map, seed=0, shuffle=True), ("fetch", "collate", "model")),
    "iterable": (make_iterable, ("fetch", "collate", "model")),
    "stream": (make_stream, ("read", "map", "collate", "model")),
    "uneven blocks": (make_uneven, ("read", "map", "collate", "model")),
    "shuffled": (make_shuffled, ("read", "map", "collate", "model")),
    "mixed": (make_mixed, ("read", "map", "collate", "model")),
    "packed": (make_packed, ("read", "map", "collate", "model")),
    "columns": (make_columns, ("map_batches", "collate", "model")),
    "lanes": (make_lanes, ("read", "collate", "model")),
}
CASES = [(kind, slow) for kind, (_, stages) in MAKE.items() for slow in stages]


@dataclass
class Watched:
    """A loop, as seen from outside, in seconds; `waited_later` without its first batch and its end."""

    batches: int
    samples: int
    seconds: float
    waited: float
    waited_later: float


def count_samples(batch: Any) -> int:
    if isinstance(batch, dict):
        return len(batch["n"])
    return batch.mask.shape[1] if isinstance(batch, tuple) else len(batch)  # a multi-stream batch has a mask, too


def watch(loader: Any, step_s: float) -> Watched:
    n = n_samples = 0
    waited = waited_later = 0.0
    begun = asked = time.perf_counter()
    for batch in loader:
        wait = time.perf_counter() - asked
        waited += wait
        waited_later += wait if n else 0.0
        n, n_samples = n + 1, n_samples + count_samples(batch)
        time.sleep(step_s)
        asked = time.perf_counter()
    ended = time.perf_counter()
    return Watched(n, n_samples, ended - begun, waited + ended - asked, waited_later)


@pytest.fixture(autouse=True, scope="module")
def _helpers_of_multiprocessing():
    start_helpers_of_multiprocessing()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "slow"), CASES)
def test_what_a_loader_says_of_itself_is_true(tmp_path, kind, slow, engine):
    options = {"output": "numpy", **ENGINES[engine]}
    if slow == "collate":
        options["collate_fn"] = collate_slowly
    loader = MAKE[kind][0](slow, tmp_path, **options)
    with loader if hasattr(loader, "__exit__") else nullcontext():
        seen = watch(loader, MODEL_S if slow == "model" else SAMPLE_S)
        stats = loader.stats()
        data = timeline_data(loader._recorder, loader._setup())
        trace = trace_of(loader._recorder, loader._setup())["traceEvents"]
    assert (seen.batches, seen.samples) == (BATCHES, SAMPLES)  # the loop itself is right
    check_numbers(stats, seen)
    check_verdict(stats, seen, slow)
    check_stages(stats, slow)
    check_drawing(data, stats, seen, slow)
    check_trace(trace, seen)


def check_numbers(stats: dict[str, Any], seen: Watched) -> None:
    slack = 0.02 + 0.05 * seen.seconds
    assert (stats["batches"], stats["samples"]) == (seen.batches, seen.samples)
    assert stats["seconds"] == pytest.approx(seen.seconds, abs=slack)
    assert stats["waited"] * stats["seconds"] == pytest.approx(seen.waited, abs=slack)
    assert stats["batch_seconds"]["step"] * seen.batches == pytest.approx(seen.seconds - seen.waited, abs=slack)
    assert sum(worker["batches"] for worker in stats["workers"]) == seen.batches
    assert sum(worker["samples"] for worker in stats["workers"]) == seen.samples


def check_verdict(stats: dict[str, Any], seen: Watched, slow: str) -> None:
    work_s = BATCHES * BATCH_S / max(stats["num_workers"], 1)
    if slow != "model":
        if stats["bottleneck"] == "start" and seen.seconds > 2 * work_s:
            return  # the machine is so busy that it does take most of the time to start and stop the workers
        if stats["num_workers"] and seen.waited_later < 0.25 * work_s:
            return  # it is so busy that the loop hardly waited for its workers (on an idle one: 0.6 of their work)
        assert stats["bottleneck"] == slow, stats["verdict"]
        assert "hidden" not in stats["verdict"]
        assert "persistent_workers" not in stats["verdict"]
    elif seen.waited < 0.15 * seen.seconds and seen.waited_later < 0.03 * seen.seconds:  # as on an idle machine
        assert stats["bottleneck"] == "hidden", stats["verdict"]


def check_stages(stats: dict[str, Any], slow: str) -> None:
    seconds = stats["batch_seconds"]
    assert seconds["fetch"] + seconds["collate"] + seconds["pack"] == pytest.approx(sum(stats["stages"].values()))
    if slow != "model":
        assert stats["stages"][slow] >= 0.95 * BATCH_S
        assert stats["stages"][slow] > 0.5 * sum(stats["stages"].values())


def check_drawing(data: dict[str, Any], stats: dict[str, Any], seen: Watched, slow: str) -> None:
    slack = 0.02 + 0.05 * seen.seconds
    drawn = sum(given - asked for _, _, asked, _, given, _ in data["turns"])
    drawn += sum(ended - begun for _, _, begun, ended in data["waits"])
    assert drawn * 1e-9 == pytest.approx(seen.waited, abs=slack)
    assert len(data["turns"]) == seen.batches
    spans = [(work["at"][3], work["at"][4]) for work in data["work"]]
    busy = sum(sent - begun for begun, sent in spans) * 1e-9
    assert busy == pytest.approx(seen.batches * sum(stats["stages"].values()), rel=0.05, abs=0.005)
    assert all(begun >= 0 and ended <= (seen.seconds + slack) * 1e9 for begun, ended in spans)
    if slow != "model":
        stages = [(name, ended - begun) for work in data["work"] for name, begun, ended in work["stages"]]
        assert sum(ns for name, ns in stages if name == slow) * 1e-9 >= 0.95 * BATCHES * BATCH_S
    assert len(data["epochs"]) == 1


def check_trace(events: list[dict[str, Any]], seen: Watched) -> None:
    waits = [event["dur"] for event in events if event["name"].startswith(("wait", "pin")) and event["ph"] == "X"]
    assert sum(waits) * 1e-6 == pytest.approx(seen.waited, abs=0.02 + 0.05 * seen.seconds)
    assert sum(event["name"] == "step" for event in events) == seen.batches


@pytest.mark.parametrize("kind", MAKE)
def test_a_loop_that_is_left_counts_what_it_got(tmp_path, kind):
    loader = MAKE[kind][0]("model", tmp_path, output="numpy", **ENGINES["threads"])
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    stats = loader.stats()
    loader.close()
    assert (stats["batches"], stats["samples"]) == (5, 5 * SIZE)
    assert sum(worker["batches"] for worker in stats["workers"]) == 5

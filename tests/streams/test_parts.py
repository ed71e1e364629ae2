"""Rows of a window are read bit by bit: the first batch comes when its rows are there; no clock changes a batch."""

from __future__ import annotations

import gzip
import json
import os
import random as pythons_random
import signal
import subprocess
import sys
import time
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import DataLoader, Stream, mix, read_jsonl, read_text, rng
from headrace.streams import fetch, reading, stages, window_rows
from tests.failures.scripts import children, needs_proc
from tests.streams.memory import in_memory

pytestmark = pytest.mark.filterwarnings("ignore:on_error='skip' leaves out")

ENGINES = [
    pytest.param({}, id="inline"),
    pytest.param({"num_workers": 2, "engine": "threads"}, id="threads"),
    pytest.param({"num_workers": 2}, id="processes"),
]
N, SIZE = 3000, 8
ROW_S = 0.001


class Calls:
    """Counts the rows that a function was called with, in any process."""

    def __init__(self, path: Path, seconds: float = ROW_S) -> None:
        self.path = path
        self.seconds = seconds
        path.touch()

    def note(self, n: int) -> None:
        with self.path.open("ab") as file:
            file.write(b"." * n)
        time.sleep(n * self.seconds)

    @property
    def n(self) -> int:
        return self.path.stat().st_size

    def double(self, number):
        self.note(1)
        return 2 * number

    def is_even(self, number):
        self.note(1)
        return number % 2 == 0

    def repeat(self, number):
        self.note(1)
        return [number] * (number % 3)

    def double_columns(self, columns):
        self.note(len(columns["value"]))
        return {"value": np.asarray(columns["value"]) * 2}

    def tokens(self, number):
        self.note(1)
        return [number] * (1 + number % 3)


def halves():
    return [in_memory(N // 2, N // 2), in_memory(N // 2, N // 2).map(lambda number: number + N // 2)]


def read_half(half):
    return iter(range(half * N // 2, (half + 1) * N // 2))


def counted_half(half):
    """One whose number of rows is known: what is mixed must be counted, else."""
    return Stream.from_blocks([half], read_half, counts=[N // 2])


SLOW = {
    "map": lambda calls: in_memory(N, N).map(calls.double),
    "two steps": lambda calls: in_memory(N, N).map(abs).map(calls.double),
    "filter": lambda calls: in_memory(N, N).filter(calls.is_even),
    "flat_map": lambda calls: in_memory(N, N).flat_map(calls.repeat),
    "map_batches": lambda calls: in_memory(N, N).map_batches(calls.double_columns, 16),
    "pack": lambda calls: in_memory(N, N).map(calls.tokens).pack(16),
    "shuffle": lambda calls: in_memory(N, N // 3).shuffle(blocks=3).map(calls.double),
    "mix": lambda calls: mix(halves(), stop="all").map(calls.double),
    "slow parts of a mix": lambda calls: mix([counted_half(i).map(calls.double) for i in range(2)], stop="all"),
    "take and skip": lambda calls: in_memory(N, N).skip(20).take(N - 40).map(calls.double),
}


def plain(batches):
    return [json.loads(json.dumps(batch, default=lambda value: np.asarray(value).tolist())) for batch in batches]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", SLOW)
def test_the_first_batch_comes_after_a_small_part_of_the_rows(tmp_path, kind, engine):
    calls = Calls(tmp_path / "calls")
    with DataLoader(SLOW[kind](calls), SIZE, output="numpy", **engine) as loader:
        next(iter(loader))
        assert calls.n < (N / 4 if engine else N / 10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", SLOW)
def test_batches_in_parts_are_those_of_one_reader(tmp_path, kind, engine):
    def batches(seconds, **options):
        calls = Calls(tmp_path / f"calls-{seconds}", seconds)
        with DataLoader(SLOW[kind](calls), SIZE, output="numpy", **options) as loader:
            return plain(loader)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_FIRST_READ_S", "_READ_S"):
            patch.setattr(fetch, name, 1000)  # each window as a whole
        whole = batches(0)
    slow = batches(ROW_S / 10, **engine)
    assert slow == whole


def test_six_compressed_files_with_a_slow_step(tmp_path):
    """They cannot be split, and the first batch need not wait for the end of the first one."""
    for number in range(6):
        with gzip.open(tmp_path / f"{number}.jsonl.gz", "wt") as file:
            file.writelines(f"{number * 500 + i}\n" for i in range(500))
    calls = Calls(tmp_path / "calls")
    stream = read_jsonl(sorted(tmp_path.glob("*.gz"))).map(calls.double)
    with DataLoader(stream, SIZE, num_workers=2, output="numpy") as loader:
        batches = iter(loader)
        seen = [next(batches)]
        n_calls = calls.n
        seen += batches
    assert [number for batch in seen for number in batch.tolist()] == list(range(0, 6000, 2))
    assert n_calls < 1500  # of 3,000; all of them, where files are waited for


# No clock decides what is in a batch


class Clock:
    """Goes on by a random time at each look."""

    def __init__(self, seed):
        self._random = pythons_random.Random(seed)
        self._now = 0.0

    def __call__(self):
        self._now += self._random.choice([0.0, 1e-5, 1e-3, 0.02, 0.2])
        return self._now


def draw_one(number):
    return number, int(rng().integers(1000))


def draw_from_numpy(number):
    return number, int(np.random.randint(1000))


def draw_from_python(row):
    return (*row, pythons_random.randrange(1000))


def draw_again(row):
    return (*row, int(rng().integers(1000)))


def draw_seldom(row):
    """Only late in a window, when pieces have gone through before."""
    return (row, int(rng().integers(1000))) if row % 50 == 49 else (row, 0)


def is_lucky(row):
    return bool(rng().random() < 0.7)


def some_more(row):
    return [row] * int(rng().integers(3))


def draw_for_columns(columns):
    return {**columns, "drawn": rng().integers(1000, size=len(columns["value"]))}


DRAWING = {
    "one map": lambda stream: stream.map(draw_one),
    "NumPy's global generator": lambda stream: stream.map(draw_from_numpy),
    "the generators of Python and NumPy": lambda stream: stream.map(draw_from_numpy).map(draw_from_python),
    "a filter": lambda stream: stream.filter(is_lucky),
    "a flat_map": lambda stream: stream.flat_map(some_more),
    "a map_batches": lambda stream: stream.map_batches(draw_for_columns, 7),
    "two maps": lambda stream: stream.map(draw_one).map(draw_again),
    "three steps": lambda stream: stream.filter(is_lucky).flat_map(some_more).map(draw_one),
    "the first of two": lambda stream: stream.map(draw_one).map(list),
    "the last of two": lambda stream: stream.map(abs).map(draw_one),
    "seldom, and then again": lambda stream: stream.map(draw_seldom).map(draw_again),
    "seldom, after one that draws": lambda stream: stream.filter(is_lucky).map(draw_seldom),
    "one after a skip": lambda stream: stream.skip(13).map(draw_one).take(150),
    "two around a take": lambda stream: stream.map(draw_one).take(170).map(draw_again),
    "packed": lambda stream: stream.flat_map(some_more).map(lambda row: [row, 1]).pack(5),
}
SOURCES = {
    "blocks": lambda: in_memory(200, 90),
    "shuffled": lambda: in_memory(200, 30).shuffle(blocks=3),
    "mixed": lambda: mix([in_memory(100, 40), in_memory(100, 70).map(draw_one).map(lambda row: row[0])], stop="all"),
    "iterable": lambda: Stream.from_iterable(lambda: iter(range(200)), shard="dispatch", block_rows=90),
}


def drawn_batches(source, steps, seed=3, state=None, **options):
    stream = DRAWING[steps](SOURCES[source]())
    collate = None if steps == "a map_batches" else list
    loader = DataLoader(stream, SIZE, seed=seed, output="numpy", collate_fn=collate, **options)
    if state is not None:
        loader.load_state_dict(state)
    with loader:
        return [(plain([batch])[0], loader.state_dict()) for batch in loader]


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    source=st.sampled_from(list(SOURCES)),
    steps=st.sampled_from(list(DRAWING)),
    workers=st.sampled_from([0, 0, 1, 2]),
    piece_s=st.sampled_from([0.0, 1e-4, 0.004, 0.5]),
    read_s=st.sampled_from([-1.0, 0.0, 0.05, 1000.0]),
    clock=st.integers(0, 2**32),
    data=st.data(),
)
def test_no_clock_changes_what_is_drawn(source, steps, workers, piece_s, read_s, clock, data):
    whole = drawn_batches(source, steps)
    batches = [batch for batch, _ in whole]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "perf_counter", Clock(clock))
        patch.setattr(window_rows, "perf_counter", Clock(clock))
        patch.setattr(stages, "_PIECE_S", piece_s)
        patch.setattr(fetch, "_FIRST_READ_S", read_s)
        patch.setattr(fetch, "_READ_S", read_s)
        is_global = "NumPy" in steps  # threads share such generators
        options = {"num_workers": 0 if is_global else workers, "engine": "threads"}
        assert [batch for batch, _ in drawn_batches(source, steps, **options)] == batches
        if len(whole) > 1:
            at = data.draw(st.integers(0, len(whole) - 2))
            rest = drawn_batches(source, steps, state=json.loads(json.dumps(whole[at][1])), **options)
            assert [batch for batch, _ in rest] == batches[at + 1 :]


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("steps", ["one map", "two maps", "three steps", "packed"])
def test_workers_draw_what_one_reader_draws(steps, engine):
    assert drawn_batches("blocks", steps, **engine) == drawn_batches("blocks", steps)


# Workers that die


class Deadly:
    """Ends the process that first asks for a certain row."""

    def __init__(self, folder: Path, row: int) -> None:
        self.folder = folder
        self.row = row

    def __call__(self, number):
        time.sleep(0.0005)
        if number == self.row:
            try:
                (self.folder / "dead").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return number, int(rng().integers(1000))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("row", [3, 333, 777])
def test_a_worker_that_is_killed_in_the_middle_of_a_window(tmp_path, row, again):
    """The next one reads the window anew, but the loop goes on where it was."""

    def stream():
        made = in_memory(1000, 400).map(Deadly(tmp_path, row))
        return made.map(draw_again) if again else made

    (tmp_path / "dead").touch()
    with DataLoader(stream(), SIZE, seed=1, collate_fn=list) as loader:
        undisturbed = list(loader)
    (tmp_path / "dead").unlink()
    with (
        DataLoader(stream(), SIZE, seed=1, collate_fn=list, num_workers=2, on_worker_death="restart") as loader,
        pytest.warns(UserWarning, match="killed"),
    ):
        assert list(loader) == undisturbed
    assert (tmp_path / "dead").exists()


@needs_proc
def test_a_worker_that_is_killed_in_the_middle_of_text(tmp_path, monkeypatch):
    """Its parts were sent already."""
    with gzip.open(tmp_path / "lines.txt.gz", "wt") as file:
        file.writelines(f"line {i}\n" for i in range(400_000))
    monkeypatch.setattr(fetch, "_FIRST_READ_S", 0)
    monkeypatch.setattr(fetch, "_READ_S", 0)
    stream = read_text(tmp_path / "lines.txt.gz")
    others = set(children(os.getpid()))
    with DataLoader(stream, 1000, num_workers=1, on_worker_death="restart") as loader:
        batches = iter(loader)
        seen = list(islice(batches, 20))
        for worker in set(children(os.getpid())) - others:
            os.kill(worker, signal.SIGKILL)
        with pytest.warns(UserWarning, match="killed"):
            seen += batches
    assert [line for batch in seen for line in batch] == [f"line {i}" for i in range(400_000)]


# Limits, bad rows, resume


@pytest.fixture
def in_bits(monkeypatch):
    """Every window is read a few rows at a time."""
    monkeypatch.setattr(fetch, "_FIRST_READ_S", -1)
    monkeypatch.setattr(fetch, "_READ_S", -1)
    monkeypatch.setattr(stages, "_PIECE_S", 0)
    monkeypatch.setattr(stages, "_FIRST_PIECE", 3)
    monkeypatch.setattr(stages, "_LOCKSTEP_PIECE", 5)
    monkeypatch.setattr(reading, "_MIXED_AT_ONCE", 7)


def is_third(number):
    return number % 3 == 0


LIMITED = {
    "take": (lambda s: s.map(abs).take(70), list(range(70))),
    "skip": (lambda s: s.map(abs).skip(33), list(range(33, 200))),
    "skip before a step": (lambda s: s.skip(33).map(abs), list(range(33, 200))),
    "both in one window": (lambda s: s.map(abs).skip(11).take(20), list(range(11, 31))),
    "both over windows": (lambda s: s.skip(55).map(abs).take(77), list(range(55, 132))),
    "after a filter": (lambda s: s.filter(is_third).skip(5).take(40), [n for n in range(200) if n % 3 == 0][5:45]),
    "before a filter": (lambda s: s.take(101).filter(is_third), [n for n in range(101) if n % 3 == 0]),
    "between steps": (lambda s: s.map(abs).take(90).filter(is_third).skip(2).map(abs), list(range(6, 90, 3))),
    "of flat_map": (lambda s: s.flat_map(lambda n: [n] * (n % 3)).skip(3).take(50),
                    [n for n in range(200) for _ in range(n % 3)][3:53]),
    "nothing": (lambda s: s.map(abs).take(0), []),
    "repeated": (lambda s: s.map(abs).take(30).repeat(3), list(range(30)) * 3),
}  # fmt: skip


@pytest.mark.usefixtures("in_bits")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per_block", [60, 200])
@pytest.mark.parametrize("kind", LIMITED)
def test_limits_inside_windows(kind, per_block, engine):
    limit, expected = LIMITED[kind]
    with DataLoader(limit(in_memory(200, per_block)), SIZE, collate_fn=list, **engine) as loader:
        seen = list(loader)
    assert seen == [expected[i : i + SIZE] for i in range(0, len(expected), SIZE)]


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_read_after_a_take(tmp_path, engine):
    calls = Calls(tmp_path / "calls", 0.0002)
    with DataLoader(in_memory(N, N).take(100).map(calls.double), SIZE, collate_fn=list, **engine) as loader:
        assert list(chain.from_iterable(loader)) == list(range(0, 200, 2))
    assert calls.n == 100


def refuse_sevens(number):
    if number % 7 == 3:
        raise ValueError(f"{number} is bad")
    return number


class Damaged:
    """Blocks of numbers, some of which raise in the middle."""

    def __init__(self, bad):
        self.bad = bad

    def __call__(self, block):
        for number in range(40 * block, 40 * block + 40):
            if block in self.bad and number % 40 == 25:
                raise OSError(f"block {block} is damaged")
            yield number


def skipping(is_shuffled, steps, **options):
    stream = Stream.from_blocks(range(6), Damaged({1, 4}))
    stream = (stream.shuffle(blocks=2) if is_shuffled else stream).map(refuse_sevens)
    stream = stream.map(abs) if steps > 1 else stream
    return DataLoader(stream, SIZE, collate_fn=list, on_error="skip", **options)


@pytest.mark.usefixtures("in_bits")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_bad_rows_and_damaged_blocks_are_left_out(engine, is_shuffled, steps):
    with skipping(is_shuffled, steps, **engine) as parts:
        seen = list(parts)
    good = [number for number in range(240) if number // 40 not in (1, 4) and number % 7 != 3]
    given = [number for batch in seen for number in batch]
    assert sorted(given) == good
    if not is_shuffled:
        assert given == good
    assert [len(batch) for batch in seen[:-1]] == [SIZE] * (len(seen) - 1)
    bad = [number for number in range(240) if number // 40 not in (1, 4) and number % 7 == 3]
    told = [error.error for error in parts.errors]
    damaged = [f"OSError: block {block} is damaged" for block in (1, 4)]
    assert sorted(told) == sorted([*(f"ValueError: {number} is bad" for number in bad), *damaged])
    with skipping(is_shuffled, steps) as inline:
        assert list(inline) == seen
        assert [bad.error for bad in inline.errors] == told


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_rows_are_told_with_the_batch_that_lacks_them(monkeypatch, engine):
    """Whatever the size of the parts."""

    def told(**options):
        with skipping(is_shuffled=False, steps=1, **options) as loader:
            list(loader)
        return [(bad.error, bad.batch) for bad in loader.errors]

    whole = told()
    for name in ("_FIRST_READ_S", "_READ_S"):
        monkeypatch.setattr(fetch, name, -1)
    monkeypatch.setattr(stages, "_PIECE_S", 0)
    assert told(**engine) == whole


@pytest.mark.usefixtures("in_bits")
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_comes_after_all_batches_before_it(engine):
    def fail(number):
        if number == 150:
            raise ValueError("150 is bad")
        return number

    with DataLoader(in_memory(200, 200).map(fail), SIZE, collate_fn=list, **engine) as loader:
        seen = []
        with pytest.raises(ValueError, match="150 is bad"):
            seen.extend(loader)
    assert seen == [list(range(i, i + SIZE)) for i in range(0, len(seen) * SIZE, SIZE)]
    assert len(seen) * SIZE <= 150


@pytest.mark.usefixtures("in_bits")
@pytest.mark.parametrize("before", ENGINES[:2])
@pytest.mark.parametrize("after", ENGINES[:2])
@pytest.mark.parametrize("kind", ["blocks", "shuffled", "mixed", "packed", "gz", "text.gz", "limited"])
def test_resume_at_every_batch(tmp_path, kind, before, after):
    for name in ("rows.jsonl.gz", "lines.txt.gz"):
        with gzip.open(tmp_path / name, "wt") as file:
            file.writelines(f"{i}\n" for i in range(100))
    stream = {
        "blocks": lambda: in_memory(100, 37).map(draw_one),
        "shuffled": lambda: in_memory(100, 20).shuffle(blocks=2).map(draw_one).map(draw_again),
        "mixed": lambda: mix([in_memory(50, 20).map(draw_one), in_memory(50, 30).map(draw_one)], stop="all"),
        "packed": lambda: in_memory(60, 25).map(lambda n: [n] * (n % 4)).pack(3),
        "gz": lambda: read_jsonl(tmp_path / "rows.jsonl.gz").map(draw_one),
        "text.gz": lambda: read_text(tmp_path / "lines.txt.gz"),
        "limited": lambda: in_memory(100, 37).skip(5).map(draw_one).take(80),
    }[kind]

    def make(**options):
        collate = None if kind in ("packed", "text.gz") else list
        return DataLoader(stream(), 7, seed=5, output="numpy", collate_fn=collate, **options)

    with make(**before) as loader:
        seen = [(plain([batch])[0], json.dumps(loader.state_dict())) for batch in loader]
    assert len(seen) > 4
    for at, (_, state) in enumerate(seen[:-1]):
        with make(**after) as loader:
            loader.load_state_dict(json.loads(state))
            assert plain(loader) == [batch for batch, _ in seen[at + 1 :]], at


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [1, 5, 12])
def test_a_loop_that_is_left_resumes_after_its_last_batch(n, engine):
    """Nobody holds its iterator any more."""
    with DataLoader(in_memory(200, 60).map(abs), SIZE, collate_fn=list, **engine) as loader:
        for number, batch in enumerate(loader, 1):
            assert batch == list(range((number - 1) * SIZE, number * SIZE))
            if number == n:
                break
        state, stats = loader.state_dict(), loader.stats()
        assert (stats["batches"], stats["samples"], state["batches"]) == (n, n * SIZE, n)
        loader.load_state_dict(state)
        assert next(iter(loader)) == list(range(n * SIZE, (n + 1) * SIZE))


def in_pieces_of_no_time(patch):
    patch.setattr(fetch, "_FIRST_READ_S", 0)
    patch.setattr(fetch, "_READ_S", 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["rows.jsonl.gz", "lines.txt.gz"])
def test_files_of_many_parts_resume_far_from_their_beginning(tmp_path, monkeypatch, kind, engine):
    """More parts lie before the place than may ever be ahead of the loop."""
    n = 100_000
    with gzip.open(tmp_path / kind, "wt", compresslevel=1) as file:
        file.writelines(f'{{"n": {i}, "x": "{"abc" * 20}"}}\n' for i in range(n))
    in_pieces_of_no_time(monkeypatch)

    def make():
        stream = read_jsonl(tmp_path / kind) if kind.startswith("rows") else read_text(tmp_path / kind).map(json.loads)
        return DataLoader(stream, 1000, collate_fn=lambda rows: [row["n"] for row in rows], **engine)

    with make() as loader:
        for _ in islice(loader, 80):
            pass
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        assert [number for batch in loader for number in batch] == list(range(80_000, n))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("has_steps", [True, False])
def test_batches_of_more_rows_than_any_number_of_parts(tmp_path, monkeypatch, has_steps, engine):
    n = 100_000
    with gzip.open(tmp_path / "lines.txt.gz", "wt", compresslevel=1) as file:
        file.writelines(f"{i:060}\n" for i in range(n))
    in_pieces_of_no_time(monkeypatch)
    stream = read_text(tmp_path / "lines.txt.gz")
    with DataLoader(stream.map(int) if has_steps else stream, n, output="numpy", **engine) as loader:
        [batch] = loader
    assert [int(row) for row in batch] == list(range(n))


# Files that cannot be split

READ_ALL = """
import resource, sys
from headrace import DataLoader, read_jsonl, read_text

path, workers, mapped = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "mapped"
stream = (read_text if path.endswith(".txt.gz") else read_jsonl)(path)
stream = stream.map(lambda row: row) if mapped else stream
with DataLoader(stream, 64, collate_fn=len, num_workers=workers, engine="threads", output="numpy") as loader:
    n = sum(loader)
print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory in kilobytes is Linux's")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("steps", ["plain", "mapped"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "lines.txt.gz"])
def test_compressed_files_are_read_in_constant_memory(tmp_path, name, workers, steps):
    line = json.dumps({"text": "lorem ipsum dolor " * 5, "n": 12345678}) + "\n"

    def peak(n):
        path = tmp_path / f"{n}-{name}"
        with gzip.open(path, "wt", compresslevel=1) as file:
            for _ in range(0, n, 1000):
                file.write(line * 1000)
        arguments = [sys.executable, "-c", READ_ALL, str(path), str(workers), steps]
        seen, kilobytes = subprocess.run(arguments, capture_output=True, check=True, text=True).stdout.split()
        assert int(seen) == n
        return int(kilobytes)

    assert peak(400_000) < 1.2 * peak(20_000)

"""Windows that the loop reads itself, in the place of workers: nobody can tell."""

from __future__ import annotations

import os
import random
from itertools import pairwise

import numpy as np
import pytest

from headrace import DataLoader, read_parquet

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N_ROWS = 400


class Flipping:
    """Changes its mind at random, also between the windows that are open."""

    waited_ns = 0

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.asked = []

    @property
    def is_here(self):
        self.asked.append(self._random.random() < 0.5)
        return self.asked[-1]

    def take(self, window, n_rows, *, is_here):
        pass

    def begin_epoch(self):
        pass


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    borders = [0, *sorted(rng.integers(0, N_ROWS, 4).tolist()), N_ROWS]
    for number, (start, stop) in enumerate(pairwise(borders)):
        ids = np.arange(start, stop)
        data = [bytes([i % 251]) * int(rng.integers(400, 900)) for i in ids]
        table = pa.table({"id": ids, "data": data, "odd": pa.array([i if i % 7 else None for i in ids.tolist()])})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=23)
    return tmp_path / "*.parquet"


def loader_of(files, workers, *, seed=None, shuffled=False, **options):
    stream = read_parquet(files, rows="columns", block_bytes=12_000)
    loader = DataLoader(
        stream.shuffle(60) if shuffled else stream, batch_size=9, seed=5, num_workers=workers, output="numpy", **options
    )
    if seed is not None:
        loader._epochs.course.reading = Flipping(seed)
    return loader


def as_lists(batches):
    return [{name: list(column) for name, column in batch.items()} for batch in batches]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_batches_are_the_same(files, engine, shuffled):
    expected = loader_of(files, 0, shuffled=shuffled)
    loader = loader_of(files, 2, seed=1, shuffled=shuffled, engine=engine, persistent_workers=True)
    with loader:
        for _ in range(3):
            assert as_lists(loader) == as_lists(expected)
        assert {True, False} <= set(loader._epochs.course.reading.asked)


@pytest.mark.parametrize("seed", range(4))
def test_any_batch_can_be_resumed_at(files, seed):
    whole = as_lists(loader_of(files, 0))
    stop = random.Random(seed).randrange(1, len(whole))
    loader = loader_of(files, 2, seed=seed, engine="threads")
    batches = iter(loader)
    begun = [next(batches) for _ in range(stop)]
    state = loader.state_dict()
    batches.close()
    resumed = loader_of(files, 1, seed=seed + 100, engine="threads")
    resumed.load_state_dict(state)
    assert as_lists([*begun, *resumed]) == whole


def test_every_row_is_accounted_for(files):
    loader = loader_of(files, 2, seed=3)
    audit = loader.audit()
    for _ in loader:
        pass
    audit.check()


def test_batches_may_be_written_to(files):
    loader, before = loader_of(files, 2, seed=4, engine="threads"), as_lists(loader_of(files, 0))
    for expected, batch in zip(before, loader, strict=True):
        assert batch["id"].tolist() == expected["id"]
        batch["id"] += 1000


def test_an_error_comes_after_all_batches_before_it(files, tmp_path):
    [*_, last] = sorted(tmp_path.glob("*.parquet"))
    loader = loader_of(files, 2, seed=6, engine="threads")
    whole = as_lists(loader_of(files, 0))
    batches = iter(loader)
    seen = [next(batches)]
    content = bytearray(last.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    stat = last.stat()
    last.write_bytes(content)
    os.utime(last, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(Exception, match=last.name):
        seen.extend(batches)
    assert as_lists(seen) == whole[: len(seen)]
    assert list(batches) == []


def test_the_loop_is_named_where_it_reads(files):
    loader = loader_of(files, 2, seed=2)
    for _ in loader:
        pass
    report = loader.report()
    assert {worker["worker"] for worker in loader.stats()["workers"]} <= {0, 1, 2}
    assert "loop " in str(report)

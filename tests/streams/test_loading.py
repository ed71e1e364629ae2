"""A loader gives the batches that one reader would cut, of any format, with any workers, and from any batch on."""

from __future__ import annotations

import gc
import json
import multiprocessing
import tempfile
import time
import weakref
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, read_csv
from tests import resuming
from tests.streams.tables import ALL_FORMATS, OF_COLUMNS, OF_ROWS, apply_steps, expected_rows, jsonl, text

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 workers")

QUICK = settings(deadline=None, max_examples=12)
WITH_PROCESSES = settings(deadline=None, max_examples=4)
WORKERS = [("threads", 1), ("threads", 2), ("threads", 3), ("processes", 0)]

words = st.text(alphabet='ab,"é€ ', max_size=6)
files = st.lists(st.lists(words, max_size=12), min_size=1, max_size=3)
limits = st.tuples(st.sampled_from(["take", "skip"]), st.integers(0, 30))
steps = st.lists(st.sampled_from(["map", "filter", "flat_map"]) | limits, max_size=3)
blocks = st.sampled_from([1, 7, 16, 50, 10_000])


class Cut(NamedTuple):
    """How a loader cuts batches."""

    batch_size: int | None
    drop_last: bool


cuts = st.builds(
    lambda size, drop_last: Cut(size, drop_last and size is not None), st.none() | st.integers(1, 9), st.booleans()
)


def unchanged(batch):
    return batch


def make_loader(stream, cut, engine="processes", workers=0, seed=None):
    return DataLoader(
        stream,
        batch_size=cut.batch_size,
        drop_last=cut.drop_last,
        collate_fn=unchanged,
        engine=engine,
        num_workers=workers,
        seed=seed,
    )


def batches_of(rows, cut):
    if cut.batch_size is None:
        return rows
    batches = [rows[i : i + cut.batch_size] for i in range(0, len(rows), cut.batch_size)]
    return [batch for batch in batches if len(batch) == cut.batch_size or not cut.drop_last]


def as_rows(batch):
    """A batch of columns as a list of dicts; any other as it is."""
    if not isinstance(batch, dict):
        return batch
    columns = [column if isinstance(column, list) else column.tolist() for column in batch.values()]
    return [dict(zip(batch, values, strict=True)) for values in zip(*columns, strict=True)]


def epochs_of(loader, n=2):
    """The batches of so many epochs, each with the state after it."""
    with loader:
        return [(batch, json.dumps(loader.state_dict())) for _ in range(n) for batch in loader]


def check_resume(make, at, **options):
    """A new loader goes on after batch number `at` of two epochs as the first one did."""
    seen = epochs_of(make())
    if not seen:
        return
    at %= len(seen)
    state = json.loads(seen[at][1])
    with make(**options) as resumed:
        resumed.load_state_dict(state)
        rest = [batch for _, batch in resuming.epochs_of(resumed, state["epoch"], 2, as_is=True)]
    assert rest == [batch for batch, _ in seen[at + 1 :]]


@pytest.mark.parametrize("read", OF_ROWS)
@QUICK
@given(files=files, block=blocks, steps=steps, cut=cuts, workers=st.sampled_from(WORKERS))
def test_rows_come_once_and_in_order(read, files, block, steps, cut, workers):
    with tempfile.TemporaryDirectory() as folder:
        stream, rows = read(Path(folder), files, block)
        stream = apply_steps(stream, steps)
        rows = expected_rows(rows, steps)
        assert list(stream) == rows
        assert stream.count() == len(rows)
        with make_loader(stream, cut, *workers) as loader:
            assert list(loader) == batches_of(rows, cut)


@pytest.mark.parametrize("read", OF_COLUMNS)
@QUICK
@given(
    files=files,
    block=blocks,
    steps=st.lists(st.sampled_from(["filter", "flat_map"]) | limits, max_size=3),
    size=st.integers(1, 9),
    drop_last=st.booleans(),
    workers=st.sampled_from(WORKERS),
)
def test_columns_come_once_and_in_order(read, files, block, steps, size, drop_last, workers):
    cut = Cut(size, drop_last)
    with tempfile.TemporaryDirectory() as folder:
        stream, rows = read(Path(folder), files, block)
        with make_loader(apply_steps(stream, steps), cut, *workers) as loader:
            batches = list(loader)
        assert all(isinstance(batch, dict) for batch in batches)
        assert [as_rows(batch) for batch in batches] == batches_of(expected_rows(rows, steps), cut)


@pytest.mark.parametrize("read", ALL_FORMATS)
@QUICK
@given(files=files, block=blocks, window=st.integers(1, 4), seed=st.none() | st.integers(0, 9), cut=cuts)
def test_shuffled_rows_come_once_in_the_order_of_any_workers(read, files, block, window, seed, cut):
    with tempfile.TemporaryDirectory() as folder:
        stream, rows = read(Path(folder), files, block)
        seen = []
        for workers in WORKERS:
            with make_loader(stream.shuffle(blocks=window), cut, *workers, seed=seed) as loader:
                seen.append([batch if cut.batch_size is None else as_rows(batch) for batch in loader])
        assert seen[1:] == seen[:-1]
        given_rows = seen[0] if cut.batch_size is None else [row for batch in seen[0] for row in batch]
        missing = Counter(map(repr, rows)) - Counter(map(repr, given_rows))
        assert len(given_rows) + missing.total() == len(rows)
        assert missing.total() < (cut.batch_size if cut.drop_last else 1)


@pytest.mark.parametrize("read", OF_ROWS)
@QUICK
@given(
    files=files,
    block=blocks,
    steps=steps,
    cut=cuts,
    window=st.none() | st.integers(1, 3),
    at=st.integers(0, 1000),
    first=st.sampled_from(WORKERS),
    then=st.sampled_from(WORKERS),
)
def test_goes_on_at_any_batch_with_other_workers(read, files, block, steps, cut, window, at, first, then):
    with tempfile.TemporaryDirectory() as folder:
        table = read(Path(folder), files, block)

        def make(workers=first):
            stream = table.stream if window is None else table.stream.shuffle(blocks=window)
            return make_loader(apply_steps(stream, steps), cut, *workers)

        check_resume(make, at, workers=then)


@QUICK
@given(
    files=files,
    block=blocks,
    steps=st.lists(st.sampled_from(["filter", "flat_map", "noise"]) | limits, max_size=3),
    cut=cuts,
    seed=st.integers(0, 3),
    at=st.integers(0, 1000),
    workers=st.sampled_from(WORKERS),
)
def test_random_numbers_are_those_of_the_seed(files, block, steps, cut, seed, at, workers):
    with tempfile.TemporaryDirectory() as folder:
        stream = apply_steps(text(Path(folder), files, block).stream.shuffle(blocks=2), [*steps, "noise"])

        def make(workers=("processes", 0)):
            return make_loader(stream, cut, *workers, seed=seed)

        assert epochs_of(make(workers)) == epochs_of(make())
        check_resume(make, at, workers=workers)


@WITH_PROCESSES
@given(
    files=files,
    block=blocks,
    steps=st.lists(st.sampled_from(["filter", "flat_map", "noise"]) | limits, max_size=3),
    cut=cuts,
    at=st.integers(0, 1000),
    workers=st.integers(1, 3),
)
def test_processes_give_what_threads_give(files, block, steps, cut, at, workers):
    with tempfile.TemporaryDirectory() as folder:
        stream = apply_steps(jsonl(Path(folder), files, block).stream.shuffle(blocks=2), steps)

        def make(engine="threads"):
            return make_loader(stream, cut, engine, workers, seed=1)

        assert epochs_of(make("processes")) == epochs_of(make())
        check_resume(make, at, engine="processes")


@contextmanager
def without_garbage_collection():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("rows", ["dicts", "columns"])
@pytest.mark.parametrize("n_batches", [1, 1000])
def test_workers_end_with_the_loop_that_broke_off(tmp_path, rows, n_batches):
    (tmp_path / "table.csv").write_text("id,word\n" + "".join(f"{i},word {i}\n" for i in range(2000)))
    with without_garbage_collection():
        loader = DataLoader(read_csv(tmp_path / "table.csv", rows=rows, block_bytes=1000), batch_size=4, num_workers=2)
        for number, _ in enumerate(loader):
            if number == n_batches:
                break
        until = time.monotonic() + 20
        while multiprocessing.active_children() and time.monotonic() < until:
            time.sleep(0.01)
        assert not multiprocessing.active_children()


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("workers", [("threads", 1), ("processes", 0)])
def test_data_is_freed_with_the_loader(tmp_path, breaks, workers):
    (tmp_path / "table.csv").write_text("id,word\n" + "".join(f"{i},word {i}\n" for i in range(200)))
    with without_garbage_collection():
        stream = read_csv(tmp_path / "table.csv", block_bytes=1000).shuffle(blocks=2)
        source = weakref.ref(stream.recipe.source)
        loader = make_loader(stream, Cut(4, False), *workers)
        for _ in loader:
            if breaks:
                break
        loader.close()
        del loader, stream, _
        until = time.monotonic() + 20  # a worker thread may take a moment
        while source() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert source() is None

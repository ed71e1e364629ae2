"""Windows come back as the batches of one reader, whatever the order in which workers complete what they are asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import RecordError
from headrace.engines.engine import Job
from headrace.engines.worker import loop_workplace
from headrace.flow import Flow
from headrace.order.shard import Shard
from headrace.sources.chunks import ObjectChunk, TextChunk
from headrace.sources.source import Block
from headrace.streams import fetch, plan
from headrace.streams.fetch import StreamJob
from headrace.streams.messages import CutBatches, SendRows
from headrace.streams.open_windows import Borders, cut_columns
from headrace.streams.rank_windows import Loading
from headrace.streams.reading import WindowReader
from headrace.streams.recipe import Recipe
from headrace.streams.schedule import StreamSchedule
from headrace.streams.windows import Share, Window
from headrace.testing import HandDrivenEngine

WINDOWS_AHEAD = 2


class Lists:
    """A source in memory, a block for each list, which notes what is read."""

    def __init__(self, lists):
        self.lists = lists
        self.read_blocks = []

    def blocks(self):
        return [Block("memory", i, i + 1) for i in range(len(self.lists))]

    def versions(self):
        return []

    def read(self, block, first_row=0, on_bad=None):
        self.read_blocks.append(block.start)
        yield ObjectChunk(self.lists[block.start][first_row:], "value")

    def describe(self):
        return {}


class Texts(Lists):
    """The same as lines of text, in chunks of two, which nobody collates: they are sent as they are."""

    def read(self, block, first_row=0, on_bad=None):
        self.read_blocks.append(block.start)
        rows = self.lists[block.start][first_row:]
        for chunk in (rows[i : i + 2] for i in range(0, len(rows), 2)):
            yield TextChunk("".join(f"{row}\n" for row in chunk), "\n", len(chunk), "value")


class Told(Lists):
    """The same in chunks of two; blocks tell how many rows they have, but for those that nobody knows."""

    is_plain = tells_rows = True

    def __init__(self, lists, told):
        super().__init__(lists)
        self.told = told

    def blocks(self):
        return [replace(block, rows=n) for block, n in zip(super().blocks(), self.told, strict=True)]

    def read(self, block, first_row=0, on_bad=None):
        self.read_blocks.append(block.start)
        rows = self.lists[block.start][first_row:]
        yield from (ObjectChunk(rows[i : i + 2], "value") for i in range(0, len(rows), 2))


class BusyEngine(HandDrivenEngine):
    """Workers that are busy while nobody waits. Each does its tasks in order, but any of them may be the next.

    How many tasks there are to choose from depends on the clock, by which windows are read bit by bit: so `choose` must
    not draw from Hypothesis, which wants the same draws in each run.
    """

    works_ahead = True

    def __init__(self, choose, workers):
        super().__init__(lambda numbers: choose(self._oldest_of_each_worker(numbers)))
        self.workers = workers

    def _oldest_of_each_worker(self, numbers):
        return sorted({self._in_flight[number].worker: number for number in reversed(numbers)}.values())

    def tasks(self):
        return list(self._in_flight.values())

    def open_windows(self):
        return {task.keys.share.window for task in self.tasks()}


def run(source, engine, *, size, drop_last=False, place=(0, 0), as_columns=False):
    """The flow of some windows, its engine started."""
    recipe = Recipe(source, draws_in_collate=not isinstance(source, Texts), as_columns=as_columns)
    reader = StreamJob(recipe, batched=size is not None, cuts_later=as_columns)
    job = Job(
        dataset=None,
        iterable=False,
        batched=size is not None,
        drop_last=drop_last,
        collate_fn=None if as_columns else lambda rows: rows,
        output="numpy",
        convert=False,
        reader=reader,
    )
    engine.start(job)
    schedule = StreamSchedule(Loading(recipe, size or 1, drop_last, None, Shard()), size or 1)
    epoch = schedule.begin(0, {"place": place})
    epoch.workers = engine.workers if engine.works_ahead else 0
    epoch.prepare(reader, loop_workplace(job, epoch.spans))
    return Flow(epoch, engine)


def place_of(flow):
    flow.plan.catch_up()
    return tuple(flow.plan.position()["place"])


def batches_of(rows, size, drop_last):
    if size is None:
        return rows
    batches = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [batch for batch in batches if not drop_last or len(batch) == size]


def numbered(lengths):
    """Lists of these lengths, of the numbers from 0 on."""
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return [list(range(start, end)) for start, end in pairwise(ends)]


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=12),
    size=st.none() | st.integers(1, 7),
    drop_last=st.booleans(),
    workers=st.integers(1, 4),
    rows_at_once=st.sampled_from([1, 3, 8, 4096]),
    read_s=st.sampled_from([-1, 10]),
    kind=st.sampled_from([Lists, Texts, Told]),
    random=st.randoms(use_true_random=True),
)
def test_any_order_of_completion_gives_the_batches_of_one_reader(
    lengths, size, drop_last, workers, rows_at_once, read_s, kind, random
):
    told = [random.choice([n, n, n, None]) for n in lengths]

    def source():
        return Told(numbered(lengths), told) if kind is Told else kind(numbered(lengths))

    rows = [str(i) if kind is Texts else i for i in range(sum(lengths))]
    drop_last = drop_last and size is not None
    engine = BusyEngine(random.choice, workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_ROWS_AT_ONCE", rows_at_once)
        patch.setattr(fetch, "_FIRST_READ_S", read_s)  # a chunk at a time, or all
        patch.setattr(fetch, "_READ_S", read_s)
        flow = run(source(), engine, size=size, drop_last=drop_last)
        seen, places, most_open = [], [], 0
        for batch in flow:
            seen.append(batch)
            places.append(place_of(flow))
            most_open = max(most_open, len(engine.open_windows()))
        assert seen == batches_of(rows, size, drop_last)
        assert most_open <= WINDOWS_AHEAD * workers
        assert flow.plan.batches == len(seen)
        assert list(flow) == []  # and stays ended
        for at in random.sample(range(len(seen)), min(3, len(seen))):
            rest = run(source(), BusyEngine(random.choice, workers), size=size, drop_last=drop_last, place=places[at])
            assert list(rest) == seen[at + 1 :]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=12),
    size=st.integers(1, 7),
    drop_last=st.booleans(),
    workers=st.integers(0, 3),
    rows_at_once=st.sampled_from([1, 3, 8, 4096]),
    random=st.randoms(use_true_random=True),
)
def test_columns_become_the_batches_of_one_reader(lengths, size, drop_last, workers, rows_at_once, random):
    def begin(place=(0, 0)):
        engine = BusyEngine(random.choice, workers) if workers else HandDrivenEngine(random.choice)
        source = Told(numbered(lengths), lengths)
        return run(source, engine, size=size, drop_last=drop_last, place=place, as_columns=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_ROWS_AT_ONCE", rows_at_once)
        flow = begin()
        seen = [(list(batch["value"]), place_of(flow)) for batch in flow]
        assert [batch for batch, _ in seen] == batches_of(list(range(sum(lengths))), size, drop_last)
        for at, (_, place) in enumerate(seen):
            assert [list(batch["value"]) for batch in begin(place)] == [batch for batch, _ in seen[at + 1 :]]


def test_all_workers_have_something_to_do_at_once():
    engine = BusyEngine(min, 3)
    flow = run(Told(numbered([3] * 9), [3] * 9), engine, size=3)
    flow.fill()
    windows = {task.keys.share.window.number: task.worker for task in engine.tasks()}
    assert windows == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2}


@pytest.mark.parametrize(("n_bytes", "ahead"), [(0, 2), (8 << 20, 4), (9 << 20, 2)])
def test_small_windows_are_read_further_ahead(n_bytes, ahead):
    class Sized(Told):
        def blocks(self):
            return [replace(block, n_bytes=n_bytes) for block in super().blocks()]

    engine = BusyEngine(min, 2)
    flow = run(Sized(numbered([3] * 20), [3] * 20), engine, size=3)
    flow.fill()
    assert len(engine.open_windows()) == ahead * 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("told", "problem"), [(4, "but has 3"), (2, "but has more")])
def test_windows_that_have_other_rows_than_were_told(workers, told, problem):
    engine = BusyEngine(min, workers) if workers else HandDrivenEngine(min)
    flow = run(Told(numbered([3, 3, 3]), [3, told, 3]), engine, size=3)
    assert next(flow) == [0, 1, 2]
    with pytest.raises(RecordError, match=rf"memory.* must have {told} rows, {problem}"):
        list(flow)


def test_windows_whose_rows_are_told_are_read_as_they_are_given_out():
    source = Told(numbered([3, 3, 3]), [3, 3, 3])
    flow = run(source, HandDrivenEngine(min), size=3)
    assert (next(flow), source.read_blocks) == ([0, 1, 2], [0])
    assert (next(flow), source.read_blocks) == ([3, 4, 5], [0, 1])


@pytest.mark.parametrize("told", [2, 4])
def test_windows_that_are_read_as_a_whole_must_have_the_rows_that_were_told(told):
    reader = WindowReader(Recipe(Told(numbered([3]), [told])))
    [block] = Told(numbered([3]), [told]).blocks()
    window = Window(0, 0, (block,), key=1)
    for share in (Share(window._replace(is_shuffled=True)), Share(window, 1, 2)):
        with pytest.raises(RecordError, match=f"must have {told} rows, but has 3"):
            reader.rows(share).whole()


# Where batches fall


def share(number):
    return Share(Window(0, number, (), number))


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    first=st.integers(0, 19),
    size=st.integers(1, 9),
    at_once=st.integers(1, 30),
    n_before=st.integers(0, 5),
    data=st.data(),
)
def test_windows_are_cut_as_one_reader_would(lengths, first, size, at_once, n_before, data):
    """However many rows of them are there at a time."""
    first = min(first, lengths[0] - 1)
    borders = Borders(size, n_before)
    n_given = 0
    for number, n_rows in enumerate(lengths):
        place = start = 0 if number else first
        requests = []
        for n_read in [*sorted(data.draw(st.sets(st.integers(start, n_rows), max_size=4))), None]:
            n_known, n_cut = n_rows if n_read is None else n_read, max([start, *(one.stop for one in requests)])
            is_whole = n_read is None
            made, cut = borders.cut(share(number), n_cut, n_known, at_once, is_whole=is_whole, is_last=is_whole)
            assert cut == max([n_cut, *(one.stop for one in made)]) <= n_known
            assert is_whole or n_known - cut < size  # all that can be cut is
            requests += made
        for request in requests:
            assert request.start == place  # nothing is left out, nothing comes twice
            if isinstance(request, CutBatches):
                n_batches, rest = divmod(request.stop - request.start, size)
                assert rest == 0 < n_batches <= max(1, at_once // size)
                assert n_given + request.start - start == (request.number - n_before) * size
            place = request.stop
        assert place == n_rows
        assert [isinstance(request, SendRows) and request.is_last for request in requests].index(True) == len(
            requests
        ) - 1
        n_given += n_rows - start


@given(n_rows=st.integers(1, 50), first=st.integers(0, 49), at_once=st.integers(0, 30), is_shuffled=st.booleans())
def test_columns_are_cut_in_equal_parts_and_shuffled_ones_not_at_all(n_rows, first, at_once, is_shuffled):
    first = min(first, n_rows - 1)
    window = Window(0, 0, (), 0, is_shuffled)
    requests = cut_columns(Share(window), first, n_rows, at_once)
    assert [row for request in requests for row in range(request.start, request.stop)] == list(range(first, n_rows))
    assert [request.is_last for request in requests] == [False] * (len(requests) - 1) + [True]
    lengths = [request.stop - request.start for request in requests]
    assert len(requests) == 1 if is_shuffled else max(lengths) <= max(1, at_once) and max(lengths) - min(lengths) <= 1

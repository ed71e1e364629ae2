"""A mix is what one reader of all streams would draw, with any workers, on any ranks, and from any batch on."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import DataLoader, Stream
from headrace.base.generators import derive_key
from headrace.order.counter_rng import fractions_at
from headrace.streams.mixing import MixWeights
from headrace.streams.readers import mix
from tests.resuming import epochs_of
from tests.streams.memory import in_memory

WORKERS = [("processes", 0), ("threads", 1), ("threads", 2)]
STOPS = ["first", "all", "longest"]


def labelled(name, n_rows, per_block, *, known=False):
    """A stream of (name, number)."""
    starts = range(0, n_rows, per_block)
    counts = [min(per_block, n_rows - start) for start in starts] if known else None
    return Stream.from_blocks(
        list(starts), lambda start: [(name, i) for i in range(start, min(start + per_block, n_rows))], counts=counts
    )


def model(lengths, weights, stop, seed, epoch=0):
    """Which stream gives each position, and which of its rows, decided one position at a time."""
    key = derive_key(seed, epoch, f"mix {seed}")
    given_rows, ended, rows, position = [0] * len(lengths), {i for i, n in enumerate(lengths) if not n}, [], 0
    silent = set(ended)
    while not (ended if stop == "first" else len(ended) == len(lengths)):
        now = [0.0 if i in silent else w for i, w in enumerate(weights(position))]
        fraction = fractions_at(np.array([position], np.uint64), key)[0]
        stream = int(np.searchsorted(np.cumsum(now), fraction * sum(now), side="right"))
        rows.append((stream, given_rows[stream] % lengths[stream]))
        given_rows[stream] += 1
        position += 1
        if given_rows[stream] == lengths[stream]:
            ended.add(stream)
            if stop == "all":
                silent.add(stream)
    return rows


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    per_block=st.integers(1, 9),
    weights=st.lists(st.sampled_from([1.0, 2.5, 7.0]), min_size=3, max_size=3),
    change=st.integers(1, 30),
    stop=st.sampled_from(STOPS),
    seed=st.integers(0, 3),
    known=st.booleans(),
    workers=st.sampled_from(WORKERS),
)
def test_rows_are_those_of_a_plain_loop(lengths, per_block, weights, change, stop, seed, known, workers):
    n = len(lengths)
    before, after = weights[:n], weights[::-1][:n]
    streams = [labelled(i, length, per_block, known=known) for i, length in enumerate(lengths)]
    mixed = mix(streams, [(0, before), (change, after)], stop=stop, seed=seed)
    rows = model(lengths, lambda position: before if position < change else after, stop, seed)
    assert list(mixed) == rows
    assert mixed.count() == len(rows)
    engine, n_workers = workers
    with DataLoader(mixed, 4, collate_fn=list, engine=engine, num_workers=n_workers) as loader:
        assert list(loader) == [rows[i : i + 4] for i in range(0, len(rows), 4)]


@settings(deadline=None, max_examples=25)
@given(
    stop=st.sampled_from(STOPS),
    window=st.none() | st.integers(1, 3),
    steps=st.sampled_from([(), ("map",), ("filter",), ("take", "map")]),
    first=st.sampled_from(WORKERS),
    then=st.sampled_from(WORKERS),
    at=st.integers(0, 200),
)
def test_goes_on_at_any_batch_with_other_workers(stop, window, steps, first, then, at):
    def make(workers):
        parts = [labelled("a", 31, 4).shuffle(blocks=2), labelled("b", 50, 7).map(noisy)]
        mixed = mix(parts, [1, 2], stop=stop)
        mixed = mixed if window is None else mixed.shuffle(blocks=window)
        for step in steps:
            mixed = {"map": mixed.map(noisy), "filter": mixed.filter(is_even), "take": mixed.take(40)}[step]
        engine, n = workers
        return DataLoader(mixed, 3, collate_fn=list, engine=engine, num_workers=n, seed=5)

    with make(first) as loader:
        seen = [(batch, json.dumps(loader.state_dict())) for _ in range(2) for batch in loader]
    at %= len(seen)
    state = json.loads(seen[at][1])
    with make(then) as resumed:
        resumed.load_state_dict(state)
        rest = [batch for _, batch in epochs_of(resumed, state["epoch"], 2, as_is=True)]
    assert rest == [batch for batch, _ in seen[at + 1 :]]


def noisy(row):
    return (*row, float(headrace.rng().random()))


def is_even(row):
    return row[1] % 2 == 0


@pytest.mark.parametrize("even", ["drop", "pad", "repeat", "allow"])
@pytest.mark.parametrize("lengths", [(20, 30), (400, 300)])
def test_ranks_share_a_mix(even, lengths):
    mixed = mix([labelled(i, n, 5) for i, n in enumerate(lengths)], stop="all")
    parts = [list(DataLoader(mixed, 4, shard=(rank, 3), even=even, collate_fn=list)) for rank in range(3)]
    rows = [row for part in parts for batch in part for row in batch]
    everything = {(i, row) for i, n in enumerate(lengths) for row in range(n)}
    if even in ("pad", "repeat"):
        assert set(rows) == everything
    else:
        assert len(set(rows)) == len(rows) > sum(lengths) - 3
    if even != "allow":
        assert len({len(part) for part in parts}) == 1


def test_processes_give_what_one_loop_gives():
    mixed = mix([labelled("a", 60, 7).map(noisy), labelled("b", 90, 9).shuffle(blocks=2)], [1, 3], stop="longest")
    alone = list(DataLoader(mixed, 8, collate_fn=list, seed=1))
    with DataLoader(mixed, 8, collate_fn=list, seed=1, num_workers=2) as loader:
        assert list(loader) == alone


def test_weights_are_kept():
    rows = list(islice(mix([labelled("a", 9, 3), labelled("b", 8, 4)], [1, 3], stop="never"), 20_000))
    share = Counter(name for name, _ in rows)["a"] / len(rows)
    assert abs(share - 0.25) < 0.015


def test_each_pass_of_a_repeated_stream_is_shuffled_anew():
    mixed = mix([labelled("a", 8, 1).shuffle(blocks=8), labelled("b", 64, 8)], stop="longest")
    numbers = [number for name, number in mixed if name == "a"]
    passes = [numbers[i : i + 8] for i in range(0, len(numbers) - 7, 8)]
    assert all(sorted(one) == list(range(8)) for one in passes)
    assert len(set(map(tuple, passes))) > 1


def test_each_epoch_is_drawn_anew():
    loader = DataLoader(mix([labelled("a", 50, 5), labelled("b", 50, 5)]), None, collate_fn=list)
    first, second = list(loader), list(loader)
    assert first != second


def test_mixes_can_be_mixed_and_packed():
    inner = mix([labelled("a", 12, 5), labelled("b", 20, 6)], stop="all")
    outer = mix([inner, labelled("c", 30, 7)], [2, 1], stop="all").map(lambda row: [row])
    rows = [row[0] for row in DataLoader(outer.pack(1), None, collate_fn=list)]
    assert sorted(rows) == sorted(row for name, n in (("a", 12), ("b", 20), ("c", 30)) for row in labelled(name, n, n))
    for name in "abc":
        assert [i for label, i in rows if label == name] == sorted(i for label, i in rows if label == name)


def test_columns_are_mixed_as_columns():
    parts = [in_memory(10, 3).map(lambda n, k=k: {"k": k, "n": n}).as_columns() for k in range(2)]
    batches = list(DataLoader(mix(parts, stop="all"), 20, output="numpy"))
    assert isinstance(batches[0]["n"], np.ndarray)
    assert sorted(zip(batches[0]["k"].tolist(), batches[0]["n"].tolist(), strict=True)) == [
        (k, n) for k in range(2) for n in range(10)
    ]


def test_bad_rows_of_a_stream_are_told_once():
    def refuse_multiples_of_5(row):
        if row[1] % 5 == 0:
            raise ValueError("refused")
        return row

    mixed = mix([labelled("a", 100, 40).map(refuse_multiples_of_5), labelled("b", 100, 10)], stop="all")
    loader = DataLoader(mixed, 8, collate_fn=list, on_error="skip", num_workers=2, engine="threads")
    with loader, pytest.warns(UserWarning, match="leaves out"):
        n_rows = sum(map(len, loader))
    assert (n_rows, len(loader.errors)) == (180, 20)


def test_weights_of_ranges_of_positions():
    weights = MixWeights(lambda position: [1, position], 2)
    assert [(start, stop, w) for start, stop, w in weights.spans(1000, 2100)] == [
        (1000, 1024, (1.0, 0.0)),
        (1024, 2048, (1.0, 1024.0)),
        (2048, 2100, (1.0, 2048.0)),
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([],), ValueError, "at least one stream"),
        (([[1, 2]],), TypeError, "from_iterable"),
        (([in_memory(2, 1)], [1, 2]), ValueError, "each of the 1 streams"),
        (([in_memory(2, 1)], [-1]), ValueError, "at least 0"),
        (([in_memory(2, 1)], [0]), ValueError, "not all of them 0"),
        (([in_memory(2, 1)], [(5, [1])]), ValueError, "ascend from 0"),
        (([in_memory(2, 1).pack(2)],), ValueError, "pack"),
    ],
)
def test_what_makes_no_mix_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        mix(*arguments)


def test_a_stop_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="'first', 'all', 'longest', 'never'"):
        mix([in_memory(2, 1)], stop="last")


def test_streams_that_are_never_heard_end_nothing():
    assert list(mix([in_memory(5, 2), in_memory(3, 2)], [1, 0], stop="all")) == list(range(5))


@pytest.mark.parametrize(
    ("streams", "weights"), [({"a": 1}, None), (Stream.from_blocks([0], lambda _: [1]), None), ([], "ab")]
)
def test_streams_come_as_a_list_and_weights_as_numbers(streams, weights):
    with pytest.raises(TypeError, match=r"list of streams|must be numbers"):
        mix(streams, weights)


@pytest.mark.parametrize("bad_blocks", [{0}, {1}, {3}, {1, 2}, {0, 3}])
@pytest.mark.parametrize("workers", WORKERS)
def test_windows_of_bad_rows_only_are_told_of(bad_blocks, workers):
    def check(row):
        if row[0] == "a" and row[1] // 5 in bad_blocks:
            raise ValueError(row)
        return row

    engine, n = workers
    mixed = mix([labelled("a", 20, 5).map(check), labelled("b", 20, 5)], stop="all")
    loader = DataLoader(mixed, 4, collate_fn=list, on_error="skip", num_workers=n, engine=engine, seed=0)
    with pytest.warns(UserWarning, match="left out"):
        given_rows = [row for batch in loader for row in batch]
    bad = [("a", i) for i in range(20) if i // 5 in bad_blocks]
    assert Counter(given_rows) + Counter(bad) == Counter([(name, i) for name in "ab" for i in range(20)])
    assert Counter(repr(row) in error.error for row in bad for error in loader.errors)[True] == len(bad)
    assert len(loader.errors) == len(bad)


@pytest.mark.parametrize("workers", WORKERS)
def test_files_that_cannot_be_looked_into_are_left_out_and_told_of(tmp_path, workers):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    for i in range(4):
        pq.write_table(pa.table({"x": range(10 * i, 10 * i + 10)}), tmp_path / f"{i}.parquet")
    damaged = tmp_path / "1.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    streams = [headrace.read_parquet([tmp_path / f"{i}.parquet" for i in files]) for files in ([0, 1], [2, 3])]
    engine, n = workers
    loader = DataLoader(mix(streams, stop="all"), 4, on_error="skip", num_workers=n, engine=engine, seed=0)
    with pytest.warns(UserWarning, match="left out"):
        assert sorted(int(x) for batch in loader for x in batch["x"]) == [*range(10), *range(20, 40)]
    [error] = loader.errors
    assert "1.parquet is damaged" in error.error


def test_a_window_without_rows_after_the_next_row_is_no_part_of_a_block():
    """The last window of the second stream has no rows, and the first block ends in the middle of the one before."""
    first = in_memory(11, 1)
    second = in_memory(10, 9).flat_map(lambda n: [100 + n] * (n % 3))
    rows = list(mix([first, second], stop="all"))
    assert [n for n in rows if n < 100] == list(range(11))
    assert [n for n in rows if n >= 100] == [100 + n for n in range(10) for _ in range(n % 3)]

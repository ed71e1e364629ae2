"""Rows of tokens go on over the borders of windows: those that one reader would cut, with any workers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, Stream
from tests.streams.memory import in_memory

WORKERS = [("processes", 0), ("threads", 1), ("threads", 2)]


def sequences_of(lengths, per_block):
    """Sequences of these lengths, of tokens that are all different, so many in a block."""
    ends = np.cumsum([0, *lengths]).tolist()
    sequences = [list(range(start, start + n)) for start, n in zip(ends, lengths, strict=False)]
    blocks = [sequences[i : i + per_block] for i in range(0, len(sequences), per_block)]
    return Stream.from_blocks(blocks, list), list(range(ends[-1]))


def cut(tokens, length, size, *, drop_last=False, drop_rest=False):
    rows = [tokens[i : i + length] for i in range(0, len(tokens), length)]
    rows = [row for row in rows if not drop_rest or len(row) == length]
    if size is None:
        return rows
    batches = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [b for b in batches if not drop_last or (len(b) == size and len(b[-1]) == length)]


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=25),
    per_block=st.integers(1, 6),
    length=st.integers(1, 8),
    size=st.none() | st.integers(1, 4),
    drop_last=st.booleans(),
    drop_rest=st.booleans(),
    workers=st.sampled_from(WORKERS),
    at=st.integers(0, 100),
)
def test_rows_are_those_of_one_reader(lengths, per_block, length, size, drop_last, drop_rest, workers, at):
    stream, tokens = sequences_of(lengths, per_block)
    packed = stream.pack(length, drop_rest=drop_rest)
    drop_last = drop_last and size is not None

    def make():
        engine, n = workers
        return DataLoader(packed, size, drop_last=drop_last, collate_fn=lambda b: b, engine=engine, num_workers=n)

    assert list(packed) == cut(tokens, length, None, drop_rest=drop_rest)
    assert packed.count() == len(list(packed))
    expected = cut(tokens, length, size, drop_last=drop_last, drop_rest=drop_rest)
    with make() as loader:
        seen = [(batch, json.dumps(loader.state_dict())) for batch in loader]
    assert [batch for batch, _ in seen] == expected
    if seen:
        at %= len(seen)
        with make() as resumed:
            resumed.load_state_dict(json.loads(seen[at][1]))
            if at + 1 < len(seen):
                assert list(resumed) == expected[at + 1 :]


@pytest.mark.parametrize("n_blocks", [3, 40])
@pytest.mark.parametrize("even", ["drop", "pad", "repeat", "allow"])
def test_each_rank_packs_its_own_sequences(n_blocks, even):
    stream, tokens = sequences_of([3, 1, 4, 1, 5] * n_blocks, 5)
    parts = [list(DataLoader(stream.pack(4), 2, shard=(rank, 2), even=even, collate_fn=list)) for rank in range(2)]
    seen = [token for part in parts for batch in part for row in batch for token in row]
    if even in ("pad", "repeat"):
        assert set(seen) == set(tokens)
    else:
        assert len(seen) == len(set(seen))
    if even == "allow":
        assert sorted(seen) == tokens
    else:
        assert len({len(part) for part in parts}) == 1
    short = [row for part in parts for batch in part for row in batch if len(row) < 4]
    assert len(short) <= (0 if even == "repeat" else 2)


def test_arrays_stay_arrays():
    stream = in_memory(10, 3).map(lambda n: np.full(n, n)).pack(6, drop_rest=True)
    batches = list(DataLoader(stream, 4, output="numpy"))
    assert [batch.shape for batch in batches] == [(4, 6), (3, 6)]
    assert np.concatenate(batches).ravel().tolist() == [n for n in range(10) for _ in range(n)][:42]


def test_packing_comes_last():
    packed = in_memory(4, 2).map(lambda n: [n]).pack(2)
    for method in ("map", "filter", "flat_map", "map_batches"):
        with pytest.raises(ValueError, match=rf"{method}\(\) must come before pack"):
            getattr(packed, method)(str)
    with pytest.raises(ValueError, match="must come before pack"):
        packed.pack(3)
    with pytest.raises(ValueError, match="must come before pack"):
        packed.shuffle()


@pytest.mark.parametrize("row", [5, None, {"tokens": [1, 2]}, np.int64(3), np.array(3)], ids=repr)
def test_rows_that_are_no_sequences(row):
    stream = Stream.from_blocks([0], lambda _: [[1, 2], row]).pack(2)
    for rows in (stream, DataLoader(stream)):
        with pytest.raises(TypeError, match=r"pack\(\) needs rows that are sequences of tokens, got .*map\(\)"):
            list(rows)


@pytest.mark.parametrize(("engine", "workers"), WORKERS)
def test_arrays_of_tokens_are_batches_of_arrays_also_where_windows_end_in_the_middle_of_one(engine, workers):
    # A step gives a window's rows bit by bit, so that what is left over of it lies in several chunks.
    stream = Stream.from_blocks(range(4), lambda block: range(50 * block, 50 * block + 50))
    packed = stream.map(lambda n: np.full(n % 7 + 1, n)).pack(64)
    tokens = np.concatenate([np.full(n % 7 + 1, n) for n in range(200)]).tolist()
    with DataLoader(packed, 3, engine=engine, num_workers=workers, output="numpy", drop_last=True) as loader:
        batches = list(loader)
    assert [batch.tolist() for batch in batches] == cut(tokens, 64, 3, drop_last=True)

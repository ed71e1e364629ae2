"""Rows of tokens go on over the borders of windows: those that one reader would cut, with any workers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import DataLoader, StateError, Stream
from headrace.streams.fitting import fit_sequences
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
    for method in ("filter", "flat_map", "map_batches"):
        with pytest.raises(ValueError, match=rf"{method}\(\) must come before pack"):
            getattr(packed, method)(str)
    with pytest.raises(ValueError, match="must come before pack"):
        packed.pack(3)
    with pytest.raises(ValueError, match="must come before pack"):
        packed.shuffle()


@pytest.mark.parametrize("row", [5, None, {"tokens": 3}, np.int64(3), np.array(3)], ids=repr)
def test_rows_that_are_no_sequences(row):
    stream = Stream.from_blocks([0], lambda _: [[1, 2], row]).pack(2)
    for rows in (stream, DataLoader(stream)):
        with pytest.raises(TypeError, match=r"pack\(\) needs rows that are sequences of tokens.*got .*map\(\)"):
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


def documents(n=60):
    return [list(range(100 * i, 100 * i + i * 7 % 11)) for i in range(n)]


SHAPES = {
    "lists": lambda document: document,
    "tuples": tuple,
    "arrays": lambda document: np.array(document, np.int64),
    "small arrays": lambda document: np.array(document, np.int16),
    "lists and arrays": lambda document: np.array(document, np.int64) if len(document) % 2 else document,
    "dicts of lists": lambda document: {"ids": document, "mask": [1] * len(document)},
    "dicts of arrays": lambda document: {"ids": np.array(document, np.int64), "mask": np.ones(len(document), bool)},
}
ENGINES = [("processes", 0), ("threads", 2), ("processes", 2)]


def as_stream(rows, per_block=7):
    blocks = [rows[i : i + per_block] for i in range(0, len(rows), per_block)]
    return Stream.from_blocks(range(len(blocks)), lambda i: blocks[i])


class TestArrays:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    @pytest.mark.parametrize("size", [None, 4])
    def test_batches_are_arrays_of_rows_of_one_length(self, shape, engine, workers, size):
        rows = documents()
        tokens = [token for document in rows for token in document]
        tokens += [0] * (-len(tokens) % 8)
        stream = as_stream([SHAPES[shape](row) for row in rows]).pack(8)
        with DataLoader(stream, size, engine=engine, num_workers=workers, output="numpy") as loader:
            batches = list(loader)
        ids = [batch["ids"] if isinstance(batch, dict) else batch for batch in batches]
        assert {one.shape[-1] for one in ids} == {8}
        assert np.concatenate([one.ravel() for one in ids]).astype(np.int64).tolist() == (
            tokens if shape != "small arrays" else np.array(tokens).astype(np.int16).tolist()
        )
        if "dicts" in shape:
            assert sum(int(batch["mask"].sum()) for batch in batches) == sum(map(len, rows))
        if size is not None:
            assert [len(one) for one in ids[:-1]] == [4] * (len(ids) - 1)

    @pytest.mark.parametrize("given", [[[1.5, 2.5]], [[True, False]], [np.ones((3, 2))]], ids=str)
    def test_whatever_numbers_they_are(self, given):
        [batch] = DataLoader(as_stream(given * 4).pack(4), 8, output="numpy")
        assert batch.shape[1] == 4
        assert batch.dtype == np.asarray(given[0]).dtype

    def test_the_last_row_is_filled_up_or_left_out(self):
        stream = as_stream([[1, 2, 3], [4, 5]])
        for options, last in (({}, [4, 5, 0]), ({"padding_value": 9}, [4, 5, 9]), ({"drop_rest": True}, None)):
            rows = [row for batch in DataLoader(stream.pack(3, **options), 2) for row in batch.tolist()]
            assert rows == [[1, 2, 3]] + ([last] if last else [])
        assert [list(row) for row in stream.pack(3)] == [[1, 2, 3], [4, 5]]
        assert [list(row) for row in stream.pack(3, padding_value=7)] == [[1, 2, 3], [4, 5, 7]]

    def test_tokens_that_are_no_numbers_stay_lists(self):
        stream = as_stream([list("abc"), list("de")]).pack(2)
        assert list(DataLoader(stream, 1, collate_fn=list)) == [[["a", "b"]], [["c", "d"]], [["e"]]]

    @pytest.mark.parametrize(
        "rows",
        [[{"a": [1], "b": [1, 2]}], [{"a": [1]}, {"b": [1]}], [{"a": [1]}, [2]], [{"a": 1}]],
        ids=["lengths", "fields", "kinds", "numbers"],
    )
    @pytest.mark.parametrize("fit", [None, "best"])
    def test_dicts_that_do_not_fit(self, rows, fit):
        with pytest.raises((TypeError, ValueError), match=r"pack\(\) needs rows"):
            list(as_stream(rows).pack(2, fit=fit))


def segments_of(rows, length):
    """Which sequence, and which position of it, each token of a row is, told one token at a time."""
    marked = [(number, token) for number, row in enumerate(rows) for token in row]
    made = []
    for start in range(0, len(marked), length):
        segments, positions, before = [], [], None
        for number, _ in marked[start : start + length]:
            is_new = number != before
            segments.append((segments[-1] if segments else 0) + is_new)
            positions.append(0 if is_new else positions[-1] + 1)
            before = number
        missing = length - len(segments)
        made.append((segments + [0] * missing, positions + [0] * missing))
    return made


class TestSegments:
    @pytest.mark.parametrize("shape", ["lists", "arrays", "dicts of lists"])
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_rows_that_are_cut_number_their_sequences(self, shape, engine, workers):
        rows = documents()
        stream = as_stream([SHAPES[shape](row) for row in rows]).pack(8, segments=True)
        with DataLoader(stream, 3, engine=engine, num_workers=workers, output="numpy") as loader:
            batches = list(loader)
        found = [(s.tolist(), p.tolist()) for b in batches for s, p in zip(b["segments"], b["positions"], strict=True)]
        assert found == segments_of(rows, 8)
        assert set(batches[0]) == {"segments", "positions"} | ({"tokens"} if "dicts" not in shape else {"ids", "mask"})

    @settings(deadline=None, max_examples=80)
    @given(
        sizes=st.lists(st.integers(0, 30), max_size=40),
        length=st.integers(1, 12),
        fit=st.sampled_from(["first", "best"]),
    )
    def test_fitted_sequences_have_each_token_once_and_no_row_overflows(self, sizes, length, fit):
        fitted = fit_sequences(sizes, length, fit)
        seen = sorted((one.sequence, one.start + i) for one in fitted for i in range(one.size))
        assert seen == [(i, j) for i, size in enumerate(sizes) for j in range(size)]
        cells = [(one.row, one.column + i) for one in fitted for i in range(one.size)]
        assert len(set(cells)) == len(cells)
        assert all(column < length for _, column in cells)
        assert all(one.size == length or one.start + one.size == sizes[one.sequence] for one in fitted)
        whole = [size for size in sizes if 0 < size <= length]
        assert len([one for one in fitted if 0 < sizes[one.sequence] <= length]) == len(whole)
        n_rows = 1 + max((one.row for one in fitted), default=-1)
        # Two rows that are at most half full would have been one.
        filled = [sum(one.size for one in fitted if one.row == row) for row in range(n_rows)]
        assert sum(2 * n <= length for n in filled) <= 1
        firsts = [min(one.sequence for one in fitted if one.row == row) for row in range(n_rows)]
        assert firsts == sorted(firsts)

    def test_best_fit_takes_the_fullest_row(self):
        # 6, 5, 4, 4, then 3: the first row with room has 4 left, the best one 3.
        assert [one.row for one in fit_sequences([6, 7, 3], 10, "first") if one.sequence == 2] == [1]
        sizes = [6, 5, 4]
        assert {(one.sequence, one.row) for one in fit_sequences(sizes, 10, "best")} == {(0, 0), (1, 1), (2, 0)}

    @pytest.mark.parametrize("fit", ["first", "best"])
    @pytest.mark.parametrize("shape", ["lists", "arrays", "dicts of lists"])
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_fitted_rows_keep_all_sequences_and_resume(self, fit, shape, engine, workers):
        rows = documents(40)
        field = "ids" if "dicts" in shape else "tokens"

        def make(n=workers, kind=engine):
            stream = as_stream([SHAPES[shape](row) for row in rows]).shuffle(blocks=2).pack(12, fit=fit, at_once=9)
            return DataLoader(stream.map(mark), 3, seed=4, engine=kind, num_workers=n, output="numpy")

        def mark(row):
            return {**row, "n_sequences": row["segments"].max()}

        expected, states = [], []
        alone = make(0, "processes")
        for batch in alone:
            expected.append({name: column.tolist() for name, column in batch.items()})
            states.append(json.dumps(alone.state_dict()))
        with make() as loader:
            assert [{name: column.tolist() for name, column in batch.items()} for batch in loader] == expected
        with make() as resumed:
            resumed.load_state_dict(json.loads(states[1]))
            assert [{n: c.tolist() for n, c in b.items()} for b in resumed] == expected[2:]
        found = []
        for batch in expected:
            for tokens, segments in zip(batch[field], batch["segments"], strict=True):
                marked = list(zip(tokens, segments, strict=True))
                found += [[token for token, s in marked if s == number] for number in range(1, max(segments) + 1)]
        assert sorted(found) == sorted(row for row in rows if row)

    def test_rows_are_full(self):
        sizes = np.random.default_rng(0).lognormal(5, 1, 3000).astype(int) % 900 + 1
        stream = as_stream([np.ones(n, np.int64) for n in sizes], 3000)
        filled = {
            fit: [int((row["segments"] > 0).sum()) for row in stream.pack(1024, fit=fit)] for fit in ("first", "best")
        }
        assert all(sum(rows) == sizes.sum() for rows in filled.values())
        assert all(np.mean(rows) / 1024 > 0.98 for rows in filled.values())

    def test_bad_sequences_are_left_out(self):
        stream = as_stream([[1, 2], 5, [3], None]).pack(4, fit="best")
        loader = DataLoader(stream, 2, on_error="skip")
        with pytest.warns(UserWarning, match="left out"):
            assert [batch["tokens"].tolist() for batch in loader] == [[[1, 2, 3, 0]]]
        assert len(loader.errors) == 2

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"fit": "worst"}, "'first' or 'best'"),
            ({"fit": "best", "drop_rest": True}, "drop_rest"),
            ({"at_once": 0}, "at_once"),
        ],
    )
    def test_wrong_arguments(self, options, text):
        with pytest.raises(ValueError, match=text):
            as_stream([[1]]).pack(4, **options)

    def test_a_state_of_another_fit_is_refused(self):
        loader = DataLoader(as_stream(documents()).pack(8, fit="best"), 2)
        next(iter(loader))
        with pytest.raises(StateError, match="steps"):
            DataLoader(as_stream(documents()).pack(16, fit="best"), 2).load_state_dict(loader.state_dict())


class TestMapAfterPacking:
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    @pytest.mark.parametrize("size", [None, 3])
    @pytest.mark.parametrize("collate", [None, lambda rows: rows], ids=["default", "own"])
    def test_functions_get_packed_rows_and_draw_the_same_numbers(self, engine, workers, size, collate):
        def noisy(row):
            return {"ids": row, "sum": row.sum(), "noise": headrace.rng().random()}

        def make(n, kind):
            stream = as_stream(documents()).pack(8).map(noisy).map(lambda row: {**row, "twice": 2 * row["sum"]})
            return DataLoader(stream, size, seed=2, engine=kind, num_workers=n, collate_fn=collate, output="numpy")

        def plain(batch):
            return json.dumps(batch, default=lambda value: value.tolist())

        alone, expected, states = make(0, "processes"), [], []
        for batch in alone:
            expected.append(plain(batch))
            states.append(alone.state_dict())
        with make(workers, engine) as loader:
            assert [plain(batch) for batch in loader] == expected
        with make(workers, engine) as resumed:
            resumed.load_state_dict(states[2])
            assert [plain(batch) for batch in resumed] == expected[3:]
        assert len(set(expected)) == len(expected)

    def test_without_a_loader(self):
        stream = as_stream([[1, 2, 3], [4]]).pack(2).map(lambda row: row * 2)
        assert [row.tolist() for row in stream] == [[2, 4], [6, 8]]

    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_a_row_that_raises_is_named_or_left_out(self, engine, workers):
        def check(row):
            if 201 in row:
                raise ValueError("no 201")
            return row

        rows = [list(range(100 * i, 100 * i + 5)) for i in range(20)]
        stream = as_stream(rows, 3).pack(5).map(check)
        with (
            DataLoader(stream, 2, engine=engine, num_workers=workers) as loader,
            pytest.raises(ValueError, match="no 201") as caught,
        ):
            list(loader)
        assert any("row 0 of batch 1" in note for note in caught.value.__notes__)
        with (
            DataLoader(stream, 2, engine=engine, num_workers=workers, on_error="skip") as loader,
            pytest.warns(UserWarning, match="left out"),
        ):
            seen = [row for batch in loader for row in batch.tolist()]
        assert seen == [row for row in rows if 201 not in row]
        assert len(loader.errors) == 1

    @pytest.mark.parametrize("worlds", [(1, 2), (2, 3), (2, 1)])
    @pytest.mark.parametrize("kind", ["cut", "segments", "fitted", "mapped"])
    def test_other_ranks_have_what_is_left(self, worlds, kind):
        packed = {
            "cut": lambda stream: stream.pack(6),
            "segments": lambda stream: stream.pack(6, segments=True).map(
                lambda row: row["tokens"][row["segments"] > 0]
            ),
            "fitted": lambda stream: stream.pack(12, fit="best", at_once=5).map(
                lambda row: row["tokens"][row["segments"] > 0]
            ),
            "mapped": lambda stream: stream.pack(6, padding_value=-1).map(lambda row: row[row >= 0]),
        }[kind](as_stream(documents(), 3).shuffle(blocks=2))
        seen, states = [], []
        for rank in range(worlds[0]):
            loader = DataLoader(packed, 2, shard=(rank, worlds[0]), even="allow", collate_fn=list, seed=1)
            batches = iter(loader)
            seen += [token for _, batch in zip(range(4), batches, strict=False) for row in batch for token in row]
            states.append(json.loads(json.dumps(loader.state_dict())))
        for rank in range(worlds[1]):
            loader = DataLoader(packed, 3, shard=(rank, worlds[1]), even="allow", collate_fn=list, seed=1)
            loader.load_state_dict(states)
            seen += [token for batch in loader for row in batch for token in row]
        assert sorted(map(int, seen)) == sorted(token for row in documents() for token in row)

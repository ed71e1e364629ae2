"""Rows of token files: those of a plain loop over all tokens, from any block, in any process, by number or in order."""

from __future__ import annotations

import json
import os
import time
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ChangedFileError, DataLoader, RecordError, StateError, TokenDataset, inspect, mix, read_tokens
from headrace.sources.token_source import TokenSource, make_cut
from tests.sources.exactly_once import check_exactly_once, check_other_processes
from tests.sources.token_writing import cut_rows, write_llm_c, write_megatron

ENGINES = [("processes", 0), ("threads", 2), ("processes", 2)]


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 60_000, n).tolist()


def write_raw(path, tokens, dtype="uint16"):
    np.array(tokens, dtype).tofile(path)


WRITERS = {
    "nanoGPT": ("a.bin", lambda path, tokens: write_raw(path, tokens)),
    "llm.c": ("a.bin", write_llm_c),
    "npy": ("a.npy", lambda path, tokens: np.save(path, np.array(tokens, np.int32))),
    "npy, big-endian": ("a.npy", lambda path, tokens: np.save(path, np.array(tokens, ">i8"))),
    "Megatron": ("a.bin", lambda path, tokens: write_megatron(path.with_suffix(""), [tokens[:7], tokens[7:]])),
}


def plain(row):
    return {name: value.tolist() for name, value in row.items()}


def batches_of(loader):
    return [{name: np.asarray(column).tolist() for name, column in batch.items()} for batch in loader]


class TestFormats:
    @pytest.mark.parametrize("name", WRITERS)
    def test_rows_are_those_of_a_plain_loop(self, tmp_path, name):
        file, write = WRITERS[name]
        tokens = ids(100)
        write(tmp_path / file, tokens)
        assert [plain(row) for row in read_tokens(tmp_path / file, 8)] == cut_rows(tokens, 8)
        dataset = TokenDataset(tmp_path / file, 8)
        assert [plain(dataset[i]) for i in range(len(dataset))] == cut_rows(tokens, 8)

    @pytest.mark.parametrize("name", ["a", "a.bin", "a.idx", "."])
    @pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
    def test_megatron_files_by_any_of_their_names(self, tmp_path, name, dtype):
        tokens = ids(50)
        write_megatron(tmp_path / "a", [tokens[:20], tokens[20:]], dtype)
        assert [plain(row) for row in read_tokens(tmp_path / name, 8)] == cut_rows(tokens, 8)

    def test_a_dtype_makes_a_file_raw(self, tmp_path):
        tokens = ids(40)
        write_megatron(tmp_path / "a", [tokens], "int32")
        rows = [plain(row)["tokens"] for row in read_tokens(tmp_path / "a.bin", 8, dtype="uint16", targets=False)]
        assert rows == np.array(tokens, np.int32).view(np.uint16).reshape(-1, 8).tolist()

    def test_several_files_end_where_they_end(self, tmp_path):
        parts = [ids(n, seed=n) for n in (30, 3, 0, 50)]
        for i, tokens in enumerate(parts):
            write_raw(tmp_path / f"{i}.bin", tokens)
        expected = [row for tokens in parts for row in cut_rows(tokens, 8)]
        assert [plain(row) for row in read_tokens(tmp_path, 8)] == expected
        dataset = TokenDataset(tmp_path, 8)
        taken = dataset.take(np.array([5, 0, 3, 3]))
        assert taken["tokens"].tolist() == [expected[i]["tokens"] for i in (5, 0, 3, 3)]
        assert plain(dataset[-1]) == expected[-1]
        with pytest.raises(IndexError, match=f"has {len(expected)} rows"):
            dataset[len(expected)]

    def test_row_dtype(self, tmp_path):
        write_raw(tmp_path / "a.bin", ids(50))
        [batch] = DataLoader(read_tokens(tmp_path, 8, row_dtype="int32"), 10, output="numpy")
        assert batch["tokens"].dtype == batch["targets"].dtype == np.int32


class TestDocuments:
    @settings(deadline=None, max_examples=60)
    @given(
        lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
        length=st.integers(1, 7),
        stride=st.integers(1, 9),
        targets=st.booleans(),
        by_index=st.booleans(),
    )
    def test_segments_positions_and_targets(self, tmp_path_factory, lengths, length, stride, targets, by_index):
        folder = tmp_path_factory.mktemp("documents")
        documents = [[*range(10, 10 + n), 7] for n in lengths]  # 7 ends each
        tokens = [token for document in documents for token in document]
        borders = list(accumulate(map(len, documents)))
        if by_index:
            write_megatron(folder / "a", documents)
        else:
            write_raw(folder / "a.bin", tokens)
        how = {"documents": True} if by_index else {"end": 7}
        rows = [plain(row) for row in read_tokens(folder, length, stride=stride, targets=targets, **how)]
        assert rows == cut_rows(tokens, length, stride, targets=targets, borders=borders)
        dataset = TokenDataset(folder, length, stride=stride, targets=targets, **how)
        order = np.random.default_rng(0).permutation(len(rows))
        taken = dataset.take(order)
        assert all(taken[name].tolist() == [rows[i][name] for i in order] for name in taken)

    def test_documents_of_several_sequences_and_of_none(self, tmp_path):
        sequences = [ids(n, seed=n) for n in (3, 0, 5, 1, 0, 4)]
        documents = write_megatron(tmp_path / "a", sequences, per_document=2)
        assert [row.tolist() for row in read_tokens(tmp_path / "a", None)] == documents

    @pytest.mark.parametrize("block_bytes", [1, 50, 10**6])
    def test_rows_that_are_documents(self, tmp_path, block_bytes):
        documents = write_megatron(tmp_path / "a", [ids(n % 13, seed=n) for n in range(100)])
        source = read_tokens(tmp_path / "a", None, block_bytes=block_bytes).recipe.source
        check_exactly_once(source, documents)

    def test_documents_must_be_known(self, tmp_path):
        write_raw(tmp_path / "a.bin", ids(20))
        with pytest.raises(ValueError, match=r"no index.*Pass a length"):
            list(read_tokens(tmp_path / "a.bin", None))
        with pytest.raises(ValueError, match=r"no index.*Pass end="):
            list(read_tokens(tmp_path / "a.bin", 4, documents=True))


class TestSplits:
    def test_parts_are_whole_documents_rounded_as_megatron_does(self, tmp_path):
        documents = [ids(n % 5 + 1, seed=n) for n in range(37)]
        write_megatron(tmp_path / "a", documents)
        seen = []
        for number, part in enumerate(("train", "valid", "test")):
            fractions = [0.0, 0.8, 0.95, 1.0]
            first, last = (round(fractions[number + i] * 37.0) for i in (0, 1))
            rows = [row.tolist() for row in read_tokens(tmp_path / "a", None, split="80,15,5", part=part)]
            assert rows == documents[first:last]
            seen += rows
            tokens = [token for document in documents[first:last] for token in document]
            cut = [plain(row) for row in read_tokens(tmp_path / "a", 4, split=(80, 15, 5), part=number)]
            assert cut == cut_rows(tokens, 4)
        assert seen == documents

    def test_without_an_index_tokens_are_split(self, tmp_path):
        tokens = ids(101)
        write_raw(tmp_path / "a.bin", tokens)
        parts = [read_tokens(tmp_path / "a.bin", 4, split=(3, 1), part=i) for i in (0, 1)]
        assert [[plain(row) for row in part] for part in parts] == [cut_rows(tokens[:76], 4), cut_rows(tokens[76:], 4)]

    @pytest.mark.parametrize(
        ("split", "part", "text"),
        [
            ("a,b", 0, "sizes of its parts"),
            ((0, 0), 0, "sizes"),
            ((1, 1), 2, "one of the 2 parts"),
            ((1, 1), "x", "'x'"),
        ],
    )
    def test_what_is_no_split(self, split, part, text):
        with pytest.raises(ValueError, match=text):
            read_tokens("a.bin", 4, split=split, part=part)


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=3),
    length=st.integers(1, 9),
    stride=st.none() | st.integers(1, 12),
    targets=st.booleans(),
    block_bytes=st.integers(1, 80),
)
def test_each_row_comes_from_exactly_one_block(tmp_path_factory, counts, length, stride, targets, block_bytes):
    folder = tmp_path_factory.mktemp("blocks")
    parts = [ids(n, seed=n) for n in counts]
    for i, tokens in enumerate(parts):
        write_raw(folder / f"{i}.bin", tokens)
    source = read_tokens(folder, length, stride=stride, targets=targets, block_bytes=block_bytes).recipe.source
    check_exactly_once(source, [row for tokens in parts for row in cut_rows(tokens, length, stride, targets=targets)])


def test_other_processes_read_the_same(tmp_path):
    write_megatron(tmp_path / "a", [ids(30), ids(40)])
    check_other_processes(read_tokens(tmp_path / "a", 8, documents=True, block_bytes=100).recipe.source)


STREAMS = {
    "plain": lambda stream: stream,
    "shuffled": lambda stream: stream.shuffle(blocks=3),
    "mapped": lambda stream: stream.map(lambda row: {**row, "first": int(row["tokens"][0])}),
    "columns": lambda stream: stream.map_batches(lambda columns: columns, 7),
    "mixed": lambda stream: mix([stream.shuffle(blocks=2), stream], [1, 2], stop="all"),
    "repeated": lambda stream: stream.shuffle(blocks=2).repeat(2),
}


class TestLoading:
    @pytest.mark.parametrize("kind", STREAMS)
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_any_worker_and_any_batch(self, tmp_path, kind, engine, workers):
        for i in range(3):
            write_megatron(tmp_path / f"{i}", [ids(n, seed=n) for n in range(25 + i)], "uint16")

        def make(**options):
            stream = STREAMS[kind](read_tokens(tmp_path, 8, documents=True, block_bytes=150))
            return DataLoader(stream, 5, seed=3, **options)

        loader, expected, states = make(), [], []
        for batch in loader:
            expected.append(batch)
            states.append(json.dumps(loader.state_dict()))
        with make(num_workers=workers, engine=engine) as loader:
            assert batches_of(loader) == batches_of(expected)
        for at in (1, len(expected) // 2):
            with make(num_workers=workers, engine=engine) as resumed:
                resumed.load_state_dict(json.loads(states[at]))
                assert batches_of(resumed) == batches_of(expected[at + 1 :])

    @pytest.mark.parametrize("n_blocks", [3, 40])
    def test_ranks_have_each_row_once(self, tmp_path, n_blocks):
        tokens = list(range(8 * 5 * n_blocks + 1))
        write_raw(tmp_path / "a.bin", tokens)
        stream = read_tokens(tmp_path / "a.bin", 8, block_bytes=80).shuffle(blocks=1)
        seen, states = [], []
        for rank in (0, 1):
            loader = DataLoader(stream, 2, shard=(rank, 2), even="allow", seed=1)
            batches = iter(loader)
            seen += [batch["tokens"].tolist() for _, batch in zip(range(3), batches, strict=False)]
            states.append(loader.state_dict())
        for rank in range(3):
            loader = DataLoader(stream, 3, shard=(rank, 3), even="allow", seed=1)
            loader.load_state_dict(states)
            seen += [batch["tokens"].tolist() for batch in loader]
        assert sorted(row[0] for batch in seen for row in batch) == tokens[:-1:8]

    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_the_dataset_is_shuffled_as_a_whole_and_resumed(self, tmp_path, engine, workers):
        write_raw(tmp_path / "a.bin", range(1001))

        def make():
            dataset = TokenDataset(tmp_path / "a.bin", 8)
            return DataLoader(dataset, 4, shuffle=True, seed=5, num_workers=workers, engine=engine)

        with make() as loader:
            batches = iter(loader)
            first = [next(batches) for _ in range(3)]
            state = loader.state_dict()
            rest = batches_of(batches)
        assert sorted(row[0] for b in [*batches_of(first), *rest] for row in b["tokens"]) == list(range(0, 1000, 8))
        with make() as resumed:
            resumed.load_state_dict(state)
            assert batches_of(resumed) == rest

    def test_arrays_of_a_batch_may_be_written_to(self, tmp_path):
        write_raw(tmp_path / "a.bin", range(100))
        for stream in (read_tokens(tmp_path, 8), read_tokens(tmp_path, 8).shuffle()):
            for batch in DataLoader(stream, 4, output="numpy"):
                batch["tokens"][:] = 0
                assert (batch["targets"] > 0).all()

    def test_len_and_seek_need_no_reading(self, tmp_path):
        write_raw(tmp_path / "a.bin", range(1001))
        stream = read_tokens(tmp_path, 8, block_bytes=100)
        loader = DataLoader(stream, 4)
        assert (len(stream), len(loader)) == (125, 32)
        loader.seek(20)
        assert next(iter(loader))["tokens"][0, 0] == 20 * 4 * 8


class TestDamage:
    def damaged(self, folder, kind):
        write_megatron(folder / "good", [ids(100)])
        path = folder / "bad.bin"
        write_megatron(folder / "bad", [ids(60), ids(50)])
        index = folder / "bad.idx"
        if kind == "tokens cut off":
            path.write_bytes(path.read_bytes()[:-8])
        elif kind == "half a token":
            index.unlink()
            path.write_bytes(b"odd")
        elif kind == "index cut off":
            index.write_bytes(index.read_bytes()[:-30])
        elif kind == "no index":
            index.write_bytes(b"something else, of some length that is enough")
        elif kind == "npy":
            path.unlink()
            index.unlink()
            (folder / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00rubbish")
        elif kind == "floats":
            path.unlink()
            index.unlink()
            np.save(folder / "bad.npy", np.zeros((3, 4)))

    KINDS = ("tokens cut off", "half a token", "index cut off", "no index", "npy", "floats")

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_damaged_file_is_named(self, tmp_path, kind):
        self.damaged(tmp_path, kind)
        with pytest.raises(RecordError, match=r"bad\.(bin|idx|npy)"):
            list(read_tokens(tmp_path, 8))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_or_left_out_and_quarantined(self, tmp_path, kind, engine, workers):
        data = tmp_path / "data"
        data.mkdir()
        self.damaged(data, kind)
        loader = DataLoader(
            read_tokens(data, 8),
            4,
            on_error="skip",
            quarantine=tmp_path / "bad.jsonl",
            num_workers=workers,
            engine=engine,
        )
        with loader, pytest.warns(UserWarning, match="left out"):
            rows = [row for batch in batches_of(loader) for row in batch["tokens"]]
        assert rows == [row["tokens"] for row in cut_rows(ids(100), 8)]
        [bad] = (tmp_path / "bad.jsonl").read_text().splitlines()
        assert "bad." in json.loads(bad)["where"]

    def test_a_file_that_has_changed_is_refused(self, tmp_path):
        write_raw(tmp_path / "a.bin", ids(100))
        stream = read_tokens(tmp_path / "a.bin", 8)
        assert len(stream) == 12
        write_raw(tmp_path / "a.bin", ids(50))
        with pytest.raises(ChangedFileError, match=r"a\.bin"):
            list(stream)

    def test_an_index_whose_documents_do_not_ascend(self, tmp_path):
        write_megatron(tmp_path / "a", [ids(9), ids(9), ids(9)])
        content = bytearray((tmp_path / "a.idx").read_bytes())
        content[-32:-24], content[-24:-16] = content[-24:-16], content[-32:-24]
        (tmp_path / "a.idx").write_bytes(content)
        with pytest.raises(RecordError, match="must ascend"):
            list(read_tokens(tmp_path / "a", 4, documents=True))

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"length": 0}, ValueError, "length must be at least 1"),
            ({"length": 4, "stride": 0}, ValueError, "stride must be at least 1"),
            ({"length": 4, "dtype": "float32"}, TypeError, "dtype must be a type of integers"),
            ({"length": 4, "row_dtype": "uint16", "end": 3}, ValueError, "ignore_index=-100 does not fit uint16"),
        ],
    )
    def test_wrong_arguments(self, arguments, error, text):
        with pytest.raises(error, match=text):
            read_tokens("a.bin", **arguments)


class TestVeryLarge:
    N = 10**12

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "train.bin"
        with open(path, "wb") as file:
            os.truncate(file.fileno(), 2 * self.N)  # a sparse file, which takes no room
            for place in (0, self.N - 1025):
                file.seek(2 * place)
                file.write(np.arange(1, 1026, dtype=np.uint16).tobytes())
        if path.stat().st_blocks > 10**6:
            pytest.skip("the file system has no sparse files")
        return path

    @pytest.mark.parametrize("kind", ["stream", "shuffled stream", "dataset"])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_starts_at_once(self, path, kind, workers):
        begun = time.perf_counter()
        if kind == "dataset":
            loader = DataLoader(TokenDataset(path, 1024), 32, shuffle=True, seed=1, num_workers=workers)
        else:
            stream = read_tokens(path, 1024)
            loader = DataLoader(stream.shuffle() if "shuffled" in kind else stream, 32, seed=1, num_workers=workers)
        with loader:
            batch = next(iter(loader))
        assert batch["tokens"].shape == (32, 1024)
        assert batch["tokens"][0, 0] == (1 if kind == "stream" else 0)
        assert time.perf_counter() - begun < 60  # well below 1 s; to touch every row would take hours

    def test_the_last_row_is_found_by_number(self, path):
        begun = time.perf_counter()
        dataset = TokenDataset(path, 1024)
        assert len(dataset) == (self.N - 1025) // 1024 + 1
        by_one = TokenDataset(path, 1024, stride=1)
        last = by_one[len(by_one) - 1]
        assert (last["tokens"][0], last["targets"][-1]) == (1, 1025)
        assert time.perf_counter() - begun < 60


def test_inspect_tells_of_tokens(tmp_path):
    write_megatron(tmp_path / "a", [ids(30), ids(40)], "uint16")
    found = inspect(tmp_path / "a.idx", length=8, documents=True)
    assert (found.format, found.n_rows, found.rows_are) == ("tokens", 8, "exact")
    assert found.columns["targets"] == "int64 of length 8"
    assert (found.details["tokens"], found.details["documents"]) == (70, 2)
    assert found.samples[0]["segments"] == [1] * 8
    assert inspect(read_tokens(tmp_path / "a", None)).n_rows == 2


def test_a_split_is_part_of_a_state(tmp_path):
    write_raw(tmp_path / "a.bin", ids(1000))
    loader = DataLoader(read_tokens(tmp_path / "a.bin", 8), 4)
    next(iter(loader))
    for other in ({"length": 16}, {"length": 8, "split": (1, 1)}, {"length": 8, "stride": 4}):
        with pytest.raises(StateError, match=r"n_blocks|rows of tokens"):
            DataLoader(read_tokens(tmp_path / "a.bin", **other), 4).load_state_dict(loader.state_dict())


def test_the_source_is_public_enough_to_be_made_by_hand(tmp_path):
    write_raw(tmp_path / "a.bin", ids(20))
    assert TokenSource(tmp_path / "a.bin", make_cut(4)).n_rows == 4

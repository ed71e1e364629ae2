"""A window of a shuffle is a number of rows, of bounded memory; or a number of blocks, for those who say so."""

from __future__ import annotations

import gzip

import pytest

from headrace import DataLoader, StateError, Stream, mix, read_text
from headrace.sources.source import Block
from headrace.streams.windows import Shuffle

N = 2000


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"{i:09}\n" for i in range(N)))  # 10 bytes each
    return read_text(tmp_path, block_bytes=500)  # 50 rows a block


def known():
    return Stream.from_blocks(range(0, N, 50), lambda start: range(start, start + 50), counts=[50] * (N // 50))


def unknown():
    return Stream.from_blocks(range(0, N, 50), lambda start: range(start, start + 50))


STREAMS = {
    "counts": known,
    "no counts": unknown,
    "list": lambda: Stream.from_iterable(range(N), block_rows=50),
    "generator": lambda: Stream.from_iterable(lambda: (n for n in range(N)), block_rows=50),
    "dispatched": lambda: Stream.from_iterable(lambda: (n for n in range(N)), block_rows=50, shard="dispatch"),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize(("rows", "n_blocks"), [(64, 2), (100, 2), (101, 3), (1000, 20)])
def test_a_window_has_about_as_many_rows(make, rows, n_blocks):
    stream = make().shuffle(rows)
    assert f"of {n_blocks} blocks" in stream.explain()
    assert sorted(stream) == list(range(N))


def test_lines_of_which_nobody_knows_how_many(lines):
    assert "10 windows of 4 blocks" in lines.shuffle(window=200).explain()
    assert sorted(map(int, lines.shuffle(window=200))) == list(range(N))


def test_a_window_is_a_block_at_least_and_all_data_at_most():
    stream = Stream.from_blocks([0, 1000], lambda start: range(start, start + 1000), counts=[1000, 1000])
    assert "2 windows of 1 block" in stream.shuffle(100).explain()
    assert sorted(known().shuffle(10**9)) == list(range(N))


def test_a_mix():
    mixed = mix([known(), known().map(lambda n: n + N)], stop="all").shuffle(300)
    assert sorted(mixed) == list(range(2 * N))


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_workers_and_resume(make, workers):
    def loader(workers):
        return DataLoader(
            make().shuffle(200), batch_size=30, seed=3, num_workers=workers, engine="threads", output="numpy"
        )

    with loader(0) as plain, loader(workers) as first:
        expected = [batch.tolist() for batch in plain]
        batches = iter(first)
        begun = [next(batches).tolist() for _ in range(20)]
        state = first.state_dict()
        batches.close()
    with loader(workers) as second:
        second.load_state_dict(state)
        assert begun + [batch.tolist() for batch in second] == expected


def test_ranks_agree_and_may_become_more(lines):
    def loader(rank, world):
        return DataLoader(lines.shuffle(200), batch_size=20, seed=3, shard=(rank, world), even="allow", collate_fn=list)

    loaders = [loader(rank, 2) for rank in range(2)]
    rows, states = [], []
    for each in loaders:
        batches = iter(each)
        rows += [row for _ in range(9) for row in next(batches)]
        states.append(each.state_dict())
    for rank in range(3):
        resumed = loader(rank, 3)
        resumed.load_state_dict(states)
        rows += [row for batch in resumed for row in batch]
    assert sorted(map(int, rows)) == list(range(N))


def test_the_default_is_eight_blocks(lines):
    for stream in (lines, known()):
        assert list(stream.shuffle()) == list(stream.shuffle(blocks=8))


class TestMemory:
    def test_a_window_that_does_not_fit_is_refused_before_the_first_row(self, lines):
        stream = lines.shuffle(1000, memory=5000)
        with pytest.raises(
            ValueError, match=r"1,000 rows .* memory=5,000 bytes, .* about 10,000\. Pass a window of at most 500 rows"
        ):
            next(iter(stream))
        with pytest.raises(ValueError, match="1,000 rows"):
            next(iter(DataLoader(stream, batch_size=2)))

    def test_so_are_blocks(self, lines):
        with pytest.raises(ValueError, match=r"20 blocks .*Pass at most blocks=4; or pass a larger memory="):
            next(iter(lines.shuffle(blocks=20, memory="2.4 kB")))

    def test_a_window_larger_than_the_data_takes_no_more_than_the_data(self, lines):
        assert len(list(lines.shuffle(10**7, memory=30_000))) == N

    def test_by_default_as_many_blocks_as_fit(self, lines):
        assert "of 3 blocks" in lines.shuffle(memory=1600).explain()

    def test_a_block_that_does_not_fit(self, tmp_path):
        for name in "ab":
            (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(bytes(range(256)) * 8))
        with pytest.raises(ValueError, match="Split the files"):
            next(iter(read_text(tmp_path).shuffle(memory=10)))

    @pytest.mark.parametrize("path", ["a.txt", "a.txt.gz"])
    def test_compressed_blocks_count_four_times(self, path):
        blocks = [Block(path, 0, None, n_bytes=1000)] * 8
        assert Shuffle(most_bytes=4000).blocks_per_window(blocks, len) == (4 if path == "a.txt" else 1)


class TestArguments:
    @pytest.mark.parametrize("rows", [1, 4, 63])
    def test_who_means_blocks_is_told(self, rows):
        with pytest.warns(UserWarning, match=f"is a number of rows. .* pass blocks={rows}"):
            known().shuffle(rows)

    def test_both(self):
        with pytest.raises(ValueError, match="not both"):
            known().shuffle(1000, blocks=2)

    @pytest.mark.parametrize("options", [{"window": 0}, {"blocks": 0}, {"memory": "much"}])
    def test_what_is_no_size(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            known().shuffle(**options)

    def test_a_state_of_another_window_is_refused(self):
        first = DataLoader(known().shuffle(blocks=4), batch_size=10, collate_fn=list)
        next(iter(first))
        for other in (known().shuffle(200), known().shuffle(blocks=5)):
            with pytest.raises(StateError, match="shuffle"):
                DataLoader(other, batch_size=10, collate_fn=list).load_state_dict(first.state_dict())

"""Files and streams as sequences."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

import pytest

from headrace import Stream, read_text
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import plain, take, through_json

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def files(tmp_path):
    """Three files, some tokens per line."""
    paths = []
    for number, lines in enumerate((4, 2, 5)):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"f{number}l{line}a f{number}l{line}b\n" for line in range(lines)))
        paths.append(path)
    return paths


def tokens_of(path):
    """What M1.3 reads of a file."""
    with Path(path).open() as file:
        for line in file:
            yield from line.strip("\n").split(" ")


def lines_as_streams(paths):
    return [read_text(path, block_bytes=20).flat_map(str.split) for path in paths]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["function", "streams"])
def test_m1_6_b_files_in_groups(files, workers, kind):
    """M1.6 (b)."""
    given, read = (files, tokens_of) if kind == "function" else (lines_as_streams(files), None)
    loader = MultiStreamDataLoader(given, 3, read=read, assign="partition", num_workers=workers)
    columns = [islice(cycle(list(tokens_of(path))), 25) for path in files]
    assert take(loader, 25) == [list(step) for step in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", ["function", "streams"])
def test_m1_6_c_every_position_reads_all_files(files, kind):
    """M1.6 (c)."""
    given, read = (files, tokens_of) if kind == "function" else (lines_as_streams(files), None)
    loader = MultiStreamDataLoader(given, 4, read=read, is_first=True)
    everything = sorted(token for path in files for token in tokens_of(path))
    steps = take(loader, 2 * len(everything))
    for position in range(4):
        tokens = [step["data"][position] for step in steps]
        half = len(everything)
        assert sorted(tokens[:half]) == sorted(tokens[half:]) == everything
        starts = [step["data"][position] for step in steps if step["is_first"][position]]
        assert sorted(starts) == sorted([f"f{number}l0a" for number in range(3)] * 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_m1_6_a_one_file_from_different_offsets(files, workers):
    """M1.6 (a)."""
    tokens = list(tokens_of(files[2]))
    loader = MultiStreamDataLoader(str(files[2]), 3, read=tokens_of, assign="offset", num_workers=workers)
    expected = [[tokens[(start + step) % 10] for start in (0, 4, 7)] for step in range(25)]
    assert take(loader, 25) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_m1_6_a_one_stream_from_different_blocks(tmp_path, workers):
    """M1.6 (a), for a file that is never read as a whole."""
    path = tmp_path / "large.txt"
    path.write_text("".join(f"{line:04}\n" for line in range(400)))
    stream = read_text(path, block_bytes=50).map(int)
    loader = MultiStreamDataLoader(stream, 4, assign="offset", is_first=True, num_workers=workers)
    steps = take(loader, 450)
    starts = steps[0]["data"]
    assert starts == sorted(set(starts))
    assert [round(start / 100) for start in starts] == [0, 1, 2, 3]
    for position, start in enumerate(starts):
        assert [step["data"][position] for step in steps] == [(start + k) % 400 for k in range(450)]
        firsts = [k for k, step in enumerate(steps) if step["is_first"][position]]
        assert firsts == sorted({0, (400 - start) % 400, *([400] if start == 0 else [])})
    once = MultiStreamDataLoader(stream, 4, assign="offset", cycle=False, num_workers=workers)
    seen = [item for step in take(once, 1000) for item, there in zip(*step.values(), strict=True) if there]
    assert sorted(seen) == list(range(400))


def test_m1_3_a_file_is_read_once_and_again(files):
    """M1.3, in several positions."""
    loader = MultiStreamDataLoader(files[:1], 5, read=tokens_of)
    tokens = list(tokens_of(files[0]))
    assert take(loader, 20) == [[tokens[k % 8]] * 5 for k in range(20)]


read_blocks = []


def read_block(block):
    read_blocks.append(block)
    return range(10 * block, 10 * block + 10)


def test_a_stream_goes_on_without_reading_what_came_before():
    def make():
        return MultiStreamDataLoader([Stream.from_blocks(list(range(1000)), read_block)], 1)

    loader = make()
    list(islice(loader, 7003))
    state = through_json(loader.state_dict())
    read_blocks.clear()
    loader = make()
    loader.load_state_dict(state)
    assert plain(next(iter(loader))) == [7003]
    assert len(read_blocks) < 700


@pytest.mark.parametrize("packed", [{}, {"segments": True}], ids=["map", "segments"])
def test_what_follows_packing_has_no_place(packed):
    stream = Stream.from_blocks([0, 10], lambda start: [[start, start + 1]]).pack(2, **packed)
    stream = stream if packed else stream.map(lambda row: row)
    with pytest.raises(ValueError, match="one by one"):
        list(MultiStreamDataLoader([stream, stream], 2, cycle=False))

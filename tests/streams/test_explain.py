"""What `explain` says is true of the plan."""

from __future__ import annotations

import pytest

from headrace import Stream, read_text
from headrace.streams.explain import mixing_score


@pytest.fixture
def lines(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("line\n" * 20)
    return read_text(tmp_path, block_bytes=25)  # 4 blocks of each file


def test_what_is_read(lines):
    said = lines.map(str.upper).filter(len).explain().splitlines()
    assert said == [
        "text: 2 files, 0.0 MiB, 8 blocks, an unknown number of rows",
        "steps: Map, Filter",
        "epoch: 8 windows of 1 block; in the natural order",
        "rank 0: windows 0, 1, 2, 3, 4, 5, 6, 7, read by 1 workers, whoever is free",
    ]


def test_windows_and_mixing(lines):
    said = lines.shuffle(2).repeat(3).explain()
    assert "12 windows of 2 blocks; shuffled, mixing 57% of that of a full shuffle" in said


def test_ranks():
    said = Stream.from_blocks(range(16), lambda i: [i]).explain(workers=3, world=2).splitlines()
    assert said[-2:] == [
        "rank 0: windows 0, 2, 4, 6, 8, 10, 12, 14, read by 3 workers, whoever is free",
        "rank 1: windows 1, 3, 5, 7, 9, 11, 13, 15, read by 3 workers, whoever is free",
    ]


def test_many_ranks_and_windows_are_not_all_listed():
    said = Stream.from_blocks(range(1000), lambda i: [i], counts=[1] * 1000).explain(world=10)
    assert "1000 blocks, 1,000 rows" in said
    assert "rank 0: windows 0, 10, 20, 30, 40, 50, 60, 70, …" in said
    assert "rank 8" not in said
    assert said.endswith("… and 2 ranks more, every 10th window each")


@pytest.mark.parametrize(
    ("n_blocks", "per_window", "score"), [(1, 1, 1.0), (0, 4, 1.0), (8, 1, 0.0), (8, 8, 1.0), (8, 99, 1.0)]
)
def test_mixing_lies_between_none_and_a_full_shuffle(n_blocks, per_window, score):
    assert mixing_score(n_blocks, per_window) == score


def test_larger_windows_mix_better():
    scores = [mixing_score(100, per_window) for per_window in range(1, 101)]
    assert scores == sorted(set(scores))

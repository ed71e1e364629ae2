"""What `explain` says is true of the plan."""

from __future__ import annotations

import pytest

from headrace import Stream, read_text
from headrace.sources.source import Block
from headrace.streams.explain import mixing_score
from headrace.streams.readers import mix
from headrace.streams.windows import Window


@pytest.fixture
def lines(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("line\n" * 20)
    return read_text(tmp_path, block_bytes=25)  # 4 blocks of each file


def own(n, **options):
    return Stream.from_blocks(range(n), lambda i: [i], **options)


def test_what_is_read(lines):
    said = lines.map(str.upper).filter(len).explain().splitlines()
    assert said == [
        "text: 2 files, 0.0 MiB, 8 blocks",
        "steps: Map, Filter",
        "epoch: 8 windows of 1 block; in the natural order; an unknown number of rows",
        "rank 0: windows 0, 1, 2, 3, 4, 5, 6, 7, read by the loader itself",
    ]


def test_one_worker_and_one_window():
    assert own(1, counts=[3]).explain(workers=1).splitlines() == [
        "your own: 1 block",
        "steps: none",
        "epoch: 1 window of 1 block; in the natural order; 3 rows",
        "rank 0: window 0, read by one worker",
    ]


def test_windows_and_mixing(lines):
    said = lines.shuffle(blocks=2).repeat(3).explain()
    assert "epoch: 12 windows of 2 blocks; shuffled, neighbours are" in said
    assert "100% as far apart as after a full shuffle" in lines.shuffle(blocks=8).explain()


def test_whole_windows_of_ranks_and_the_rows_of_what_is_left():
    said = own(17).explain(workers=3, world=2).splitlines()
    assert said[-2:] == [
        "rank 0: windows 0, 2, 4, 6, 8, 10, 12, 14 and one row in 2 of window 16, read by 3 workers, whoever is free",
        "rank 1: windows 1, 3, 5, 7, 9, 11, 13, 15 and one row in 2 of window 16, read by 3 workers, whoever is free",
    ]


def test_few_windows_are_shared_by_rows():
    said = own(3).explain(world=2).splitlines()
    assert said[-1] == "rank 1: one row in 2 of windows 0, 1, 2, read by the loader itself"


def test_what_take_and_skip_leave():
    assert "rank 0: windows 2, 3, " in own(6).skip(2).take(2).explain()
    assert "epoch: 1 window of 1 block; in the natural order; 1 row" in own(4, counts=[1] * 4).take(1).explain(world=2)


def test_many_ranks_and_windows_are_not_all_listed():
    said = own(1000, counts=[1] * 1000).explain(world=10)
    assert "1,000 blocks" in said
    assert "; 1,000 rows" in said
    assert "rank 0: windows 0, 10, 20, 30, 40, 50, 60, 70, …" in said
    assert "rank 8" not in said
    assert said.endswith("… and 2 ranks more, likewise")


def test_mixes_iterables_and_packing():
    said = mix([own(2), Stream.from_iterable([1, 2])]).pack(4).explain().splitlines()
    assert said[:3] == [
        "a mix of your own, an iterable, list:",
        "  your own: 2 blocks",
        "  an iterable, list, read by every worker, which leaves out the others' rows",
    ]
    assert "packing: rows of 4 tokens, over all borders of windows" in said


def windows_of(numbers):
    return [Window(0, i, tuple(Block("file", n, n + 1) for n in some), i) for i, some in enumerate(numbers)]


def test_mixing_is_measured():
    assert mixing_score(windows_of([[0], [1], [2]])) == 0
    assert mixing_score(windows_of([[0, 1, 2, 3]])) == pytest.approx(1)
    assert mixing_score(windows_of([])) == 1
    near, far = mixing_score(windows_of([[0, 1], [2, 3]])), mixing_score(windows_of([[0, 2], [1, 3]]))
    assert 0 < near < far < 1


@pytest.mark.parametrize(("options", "text"), [({"workers": -1}, "workers"), ({"world": 0}, "world")])
def test_nobody_to_read_is_refused(options, text):
    with pytest.raises(ValueError, match=f"{text} must be at least"):
        own(2).explain(**options)

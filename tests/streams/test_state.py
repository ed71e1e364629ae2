"""The state of a loader over a stream: taken at any moment, loaded where it fits, refused where it does not."""

from __future__ import annotations

import json
import os
import random

import pytest

import headrace
from headrace import DataLoader, StateError
from tests.streams.memory import in_memory


def stream():
    return in_memory(40, 4)


def make(**options):
    return DataLoader(stream(), batch_size=3, collate_fn=list, seed=1, **options)


def test_a_state_taken_right_after_a_resume_can_be_loaded():
    first = make()
    batches = iter(first)
    next(batches)
    second, third = make(), make()
    second.load_state_dict(first.state_dict())
    iter(second)
    third.load_state_dict(second.state_dict())
    assert list(third) == list(batches)


def test_a_state_taken_after_seek_can_be_loaded():
    first, second = make(), make()
    first.seek(4)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert list(second) == list(make())[4:]


def test_seek_leaves_out_the_batches_before():
    loader = make(num_workers=2, engine="threads")
    loader.seek(4)
    with loader:
        assert list(loader) == list(make())[4:]


def test_after_the_loop_a_state_is_the_beginning_of_the_next_epoch():
    first, second = (DataLoader(stream().shuffle(blocks=3), batch_size=3, collate_fn=list) for _ in range(2))
    list(first)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first)


@pytest.mark.parametrize(
    "other",
    [
        stream().shuffle(blocks=3, seed=2),
        stream().shuffle(blocks=2, seed=1),
        stream(),
        stream().shuffle(blocks=3, seed=1).filter(bool),
        stream().shuffle(blocks=3, seed=1).take(20),
        stream().shuffle(blocks=3, seed=1).repeat(2),
        in_memory(40, 5).shuffle(blocks=3, seed=1),
    ],
    ids=["seed", "window", "not shuffled", "steps", "limits", "rounds", "blocks"],
)
def test_a_state_of_another_order_is_refused(other):
    loader = DataLoader(stream().shuffle(blocks=3, seed=1), batch_size=3, collate_fn=list)
    next(iter(loader))
    with pytest.raises(StateError, match="does not fit"):
        DataLoader(other, batch_size=3, collate_fn=list).load_state_dict(loader.state_dict())


def test_a_state_of_other_files_is_refused(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\n")
    loader = DataLoader(headrace.read_text(path), batch_size=1)
    next(iter(loader))
    path.write_text("a\nb\nc\nd\n")
    with pytest.raises(StateError, match=r"lines\.txt had 6 bytes, and has 8 bytes"):
        DataLoader(headrace.read_text(path), batch_size=1).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_files_in_another_place_go_on_with_the_next_batch(tmp_path, workers):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        for i in range(4):
            (tmp_path / folder / f"{i}.txt").write_text("".join(f"{i} {row}\n" for row in range(10)))
            os.utime(tmp_path / folder / f"{i}.txt", (i, len(folder)))

    def load(folder, **options):
        stream = headrace.read_text(tmp_path / folder).shuffle(blocks=2)
        return DataLoader(stream, batch_size=3, collate_fn=list, seed=1, engine="threads", **options)

    loader = load("here")
    batches = iter(loader)
    next(batches)
    with load("there", num_workers=workers) as other:
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert list(other) == list(batches)


def test_a_file_that_a_former_state_cannot_tell_is_warned_of_once(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\n")
    loader = DataLoader(headrace.read_text(path), batch_size=1, shard=(0, 1))
    next(iter(loader))
    state = loader.state_dict()
    state["course"]["described"]["files"] = [file[:3] for file in state["course"]["described"]["files"]]
    os.utime(path, (1, 1))
    other = DataLoader(headrace.read_text(path), batch_size=1, shard=(0, 1))
    with pytest.warns(UserWarning, match=r"lines\.txt was last changed at another time") as warned:
        other.load_state_dict(state)
    assert len(warned) == 1
    assert list(other) == [["b"], ["c"]]


def test_a_damaged_list_of_files_is_refused(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\n")
    loader = DataLoader(headrace.read_text(path), batch_size=1)
    next(iter(loader))
    state = loader.state_dict()
    for files in ([[1]], [None], "x", None):
        state["course"]["described"]["files"] = files
        with pytest.raises(StateError):
            DataLoader(headrace.read_text(path), batch_size=1).load_state_dict(state)


def test_a_damaged_place_is_refused():
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    state["course"]["place"] = [0, -1]
    with pytest.raises(StateError, match="damaged"):
        make().load_state_dict(state)


def test_another_batch_size_goes_on_with_the_same_row():
    loader = make()
    next(iter(loader))
    other = DataLoader(stream(), batch_size=5, collate_fn=list, seed=1)
    other.load_state_dict(loader.state_dict())
    assert [row for batch in other for row in batch] == list(range(3, 40))


def test_another_batch_size_of_a_rank_goes_on_with_the_same_row():
    def of_rank(batch_size):
        return DataLoader(stream(), batch_size=batch_size, seed=1, shard=(0, 2), collate_fn=list)

    loader, other = of_rank(2), of_rank(3)
    batches = iter(loader)
    next(batches)
    other.load_state_dict(loader.state_dict())
    assert [row for batch in other for row in batch] == [row for batch in batches for row in batch]


def own_generator(rows):
    return rows, float(headrace.rng().random())


def global_generator(rows):
    return rows, random.random()


@pytest.mark.parametrize("collate", [own_generator, global_generator])
def test_a_collation_draws_by_the_seed(collate):
    def batches(**options):
        with DataLoader(stream(), batch_size=3, seed=1, collate_fn=collate, **options) as loader:
            return list(loader)

    assert batches() == batches() == batches(num_workers=2)
    assert len({drawn for _, drawn in batches()}) == 14


def test_every_row_of_every_epoch_draws_other_numbers():
    loader = DataLoader(stream().map(lambda row: float(headrace.rng().random())), batch_size=None, seed=1)
    drawn = [*loader, *loader]
    assert len(set(drawn)) == len(drawn) == 80
    loader.set_epoch(0)
    assert list(loader) == drawn[:40]


def noted_blocks(read):
    def read_block(block):
        read.append(block)
        return range(4 * block, 4 * block + 4)

    return headrace.Stream.from_blocks(list(range(10)), read_block, counts=[4] * 10)


@pytest.mark.parametrize("shard", [None, (1, 2)])
def test_seek_does_not_read_what_lies_before(shard):
    def make(read):
        return DataLoader(noted_blocks(read).shuffle(blocks=2), batch_size=3, collate_fn=list, seed=1, shard=shard)

    batches = list(make([]))
    for at in (0, 3, len(batches)):
        read = []
        loader = make(read)
        loader.seek(at)
        assert list(loader) == batches[at:]
        if shard is None:
            assert len(read) <= 10 - at * 3 // 8 * 2


def test_the_epoch_after_a_seek_is_whole():
    loader = make()
    loader.seek(10)
    assert len(list(loader)) == 4
    assert len(list(loader)) == 14

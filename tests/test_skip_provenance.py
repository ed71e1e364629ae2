"""Batches that are left out, and where batches come from: for every kind of loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader, Dataset, IterableDataset, MultiStreamDataLoader, Sampler, Stream, mix, read_text
from tests.needs import needs_torch
from tests.resuming import own_generators, plain, through_json

N = 60


class Numbers(Dataset[int]):
    """Each sample is its own index."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return int(index)


class Odd(Sampler[int]):
    """A sampler of a user's own, that draws."""

    def __iter__(self) -> Any:
        return iter(np.random.permutation(N)[: N // 2].tolist())

    def __len__(self) -> int:
        return N // 2


class Halves(IterableDataset[int]):
    """Each worker yields numbers of its own."""

    def __iter__(self) -> Any:
        from headrace import get_worker_info

        worker = get_worker_info()
        first = 0 if worker is None else 1000 * worker.id
        return iter(range(first, first + 40))


def rows_of(start: int) -> range:
    return range(start, start + 10)


def numbered(first: int = 0, n: int = N) -> Stream:
    starts = list(range(first, first + n, 10))
    return Stream.from_blocks(starts, rows_of, counts=[10] * len(starts))


def doubled(n: int) -> list[int]:
    return [n, n]


def is_even(n: int) -> bool:
    return n % 2 == 0


def as_tokens(n: int) -> list[int]:
    return [n] * (n % 3 + 1)


Make = Callable[..., Any]
KINDS: dict[str, Make] = {
    "map": lambda **more: DataLoader(Numbers(), 4, **more),
    "map, shuffled": lambda **more: DataLoader(Numbers(), 4, shuffle=True, **more),
    "map, seeded": lambda **more: DataLoader(Numbers(), 4, shuffle=True, seed=3, **more),
    "map, a sampler of one's own": lambda **more: DataLoader(Numbers(), 4, sampler=Odd(), seed=3, **more),
    "map, single samples": lambda **more: DataLoader(Numbers(), None, shuffle=True, seed=3, **more),
    "iterable": lambda **more: DataLoader(Halves(), 4, **more),
    "iterable, seeded": lambda **more: DataLoader(Halves(), 4, seed=3, **more),
    "stream": lambda **more: DataLoader(numbered(), 4, **more),
    "stream, shuffled": lambda **more: DataLoader(numbered().shuffle(blocks=3), 4, seed=3, **more),
    "stream, filtered": lambda **more: DataLoader(numbered().filter(is_even), 4, **more),
    "stream, packed": lambda **more: DataLoader(numbered().map(as_tokens).pack(3), 4, collate_fn=list, **more),
    "mix": lambda **more: DataLoader(mix([numbered(), numbered(1000)], [1, 2], stop="first"), 4, seed=3, **more),
    "sequences": lambda **more: MultiStreamDataLoader(
        [range(10 * i + 1, 10 * i + 6 + i) for i in range(8)], 3, assign="partition", cycle=False, seq_len=2, **more
    ),
}
KEYED = [name for name in KINDS if name.startswith("map")]
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "engine": "threads"},
]


def batches_of(loader: Any) -> list[Any]:
    with own_generators():
        return [plain(getattr(batch, "data", batch)) for batch in loader]


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "processes", "threads"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_left_out_by_every_kind_of_loader(kind, workers):
    make = KINDS[kind]
    with make(output="numpy", **workers) as loader:
        whole = batches_of(loader)
    assert len(whole) > 6
    with make(output="numpy", **workers) as loader:
        loader.skip(1, 3)
        loader.skip(5, 6)
        assert batches_of(loader) == [whole[0], *whole[3:5], *whole[6:]]
        if "seeded" not in kind and kind not in ("map, shuffled", "mix", "stream, shuffled"):  # the same in each epoch
            assert len(batches_of(loader)) == len(whole)  # it is of one epoch


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "processes", "threads"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_is_in_the_state(kind, workers):
    make = KINDS[kind]
    with make(output="numpy", **workers) as loader:
        whole = batches_of(loader)
    with make(output="numpy", **workers) as loader, own_generators():
        batches = iter(loader)
        first = next(batches)
        assert plain(getattr(first, "data", first)) == whole[0]
        loader.skip(2, 4)  # while workers have these in hand
        state = through_json(loader.state_dict())
        rest = [plain(getattr(batch, "data", batch)) for batch in batches]
        assert rest == [whole[1], *whole[4:]]
    with make(output="numpy", **workers) as again, own_generators():
        again.load_state_dict(state)
        assert through_json(again.state_dict())["skips"] == [[0, 2, 4]]
        if kind.startswith("iterable"):
            with pytest.warns(UserWarning, match="is iterated again"):
                resumed = [plain(batch) for batch in again]
        else:
            resumed = [plain(getattr(batch, "data", batch)) for batch in again]
        assert resumed == rest


def test_batches_by_key_that_are_left_out_are_not_loaded():
    asked: list[int] = []

    class Noting(Numbers):
        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    loader = DataLoader(Noting(), 4, output="numpy")
    loader.skip(1, 14)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [56, 57, 58, 59]]
    assert asked == [0, 1, 2, 3, 56, 57, 58, 59]


def test_a_batch_that_raises_can_be_left_out():
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 9:
                raise OSError("lost")
            return index

    with DataLoader(Broken(), 4, num_workers=2, engine="threads", output="numpy") as loader:
        loader.skip(2, 3)
        assert len(list(loader)) == 14


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("iterable")])
def test_an_audit_counts_what_is_left_out(kind):
    loader = KINDS[kind](output="numpy")
    audit = loader.audit()
    loader.skip(1, 3)
    batches_of(loader)
    audit.check()
    assert "left out" in audit.report()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [((3, 3), "end must be greater than first"), ((-1, 2), "first must be an int"), ((0, 2), "has given 1 batches")],
)
def test_wrong_ranges_are_refused(arguments, complaint):
    loader = DataLoader(Numbers(), 4, output="numpy")
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match=complaint):
        loader.skip(*arguments)


def test_an_epoch_that_is_over_leaves_out_nothing():
    loader = DataLoader(Numbers(), 4, output="numpy")
    list(loader)
    with pytest.raises(ValueError, match="epoch 0 is over"):
        loader.skip(3, 5, epoch=0)
    loader.skip(3, 5)  # of the next one
    assert len(list(loader)) == 13


# Provenance


@pytest.mark.parametrize("kind", KEYED)
def test_the_keys_of_a_batch_are_computed(kind):
    loader = KINDS[kind](output="numpy")
    batches = batches_of(loader)
    found = [loader.provenance(n, epoch=0) for n in range(len(batches))]
    single = kind == "map, single samples"
    assert [one.keys for one in found] == ([[batch] for batch in batches] if single else batches)
    with pytest.raises(IndexError, match="no such batch"):
        loader.provenance(len(batches), epoch=0)


def test_the_numbers_drawn_afterwards_are_the_same():
    with own_generators():
        loader = KINDS["map, shuffled"](output="numpy")
        batches = iter(loader)
        next(batches)
        before = [plain(batch) for batch in batches]
    with own_generators():
        loader = KINDS["map, shuffled"](output="numpy")
        batches = iter(loader)
        next(batches)
        loader.provenance(3)
        assert [plain(batch) for batch in batches] == before


@pytest.mark.parametrize("kind", ["map, seeded", "stream", "stream, shuffled", "mix", "sequences"])
@pytest.mark.parametrize("world", [1, 2])
def test_provenance_is_the_same_on_ranks_and_after_resuming(kind, world):
    ranks = [KINDS[kind](output="numpy", shard=(rank, world)) for rank in range(world)]
    for rank, loader in enumerate(ranks):
        batches = batches_of(loader)
        assert len(batches) > 2
        again = KINDS[kind](output="numpy", shard=(rank, world))
        iterator = iter(again)
        next(iterator)
        state = through_json(again.state_dict())
        resumed = KINDS[kind](output="numpy", shard=(rank, world))
        resumed.load_state_dict(state)
        for n, batch in enumerate(batches):
            origins = resumed.provenance(n)
            assert (origins.rank, origins.world) == (rank, world)
            assert values_of(origins, kind) == flat(batch, kind)


def values_of(found: Any, kind: str) -> list[int]:
    """What the samples of these origins are."""
    if kind.startswith("map"):
        return list(found.keys)
    if kind == "sequences":
        return sorted(10 * one.key + 1 + one.row for one in found.samples)
    return [int(one.source) + one.row for one in found.samples]  # blocks are named by their first number


def flat(batch: Any, kind: str) -> list[int]:
    numbers = np.asarray(batch).ravel().tolist()
    return sorted(n for n in numbers if n) if kind == "sequences" else numbers


def test_rows_of_files_are_named(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(30)))
    paths = sorted(map(str, tmp_path.iterdir()))
    loader = DataLoader(read_text(paths, block_bytes=40).shuffle(blocks=3), 4, seed=1, collate_fn=list)
    with pytest.raises(ValueError, match="Pass read=True"):
        loader.provenance(1)
    batches = list(loader)
    lines = {path: (tmp_path / path).read_text().splitlines() for path in paths}
    for n, batch in enumerate(batches):
        found = loader.provenance(n, epoch=0, read=True)
        assert [line_of(one, lines) for one in found.samples] == batch
        assert set(found.sources) <= set(paths)


def line_of(one: Any, lines: dict[str, list[str]]) -> str:
    if one.block is None:
        return lines[one.source][one.row]
    first = int(one.block.partition("bytes ")[2].split()[0])
    with open(one.source, "rb") as file:
        begun = file.read(first)
    before = begun.count(b"\n") + (bool(begun) and not begun.endswith(b"\n"))  # a line is where its start is
    return lines[one.source][before + one.row]


def test_rows_of_parquet_files_are_counted_from_the_beginning_of_the_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    from headrace import read_parquet

    path = tmp_path / "n.parquet"
    pq.write_table(pa.table({"n": range(50)}), path, row_group_size=10)
    loader = DataLoader(read_parquet(path, block_bytes=1).shuffle(blocks=2), 8, seed=1, output="numpy")
    for n, batch in enumerate(loader):
        found = loader.provenance(n)
        assert [one.row for one in found.samples] == batch["n"].tolist()
        assert {(one.source, one.block) for one in found.samples} == {(str(path), None)}


def test_rows_that_are_filtered_or_packed_are_known_by_their_blocks():
    loader = KINDS["stream, filtered"](output="numpy")
    list(loader)
    found = loader.provenance(2, epoch=0)  # rows 16 to 22
    assert [(one.source, one.row) for one in found.samples] == [("10", None), ("20", None)]
    packed = KINDS["stream, packed"](output="numpy")
    list(packed)
    assert packed.provenance(0, epoch=0).samples[0].source == "0"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: KINDS["iterable"](), "only it knows what it yields"),
        (lambda: KINDS["map, shuffled"](), "Pass seed="),
        (lambda: DataLoader(numbered(), 4, on_error="skip"), 'on_error="skip"'),
        (lambda: MultiStreamDataLoader([iter_of] * 3, 3, read=lambda make: make()), "Pass lengths="),
    ],
)
def test_where_it_is_not_known_an_error_says_why(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make().provenance(0)


def iter_of() -> Any:
    return (n for n in range(5))


def test_a_batch_size_that_was_changed_by_resuming_is_told():
    loader = KINDS["map, seeded"](output="numpy")
    next(iter(loader))
    state = through_json(loader.state_dict())
    larger = DataLoader(Numbers(), 8, shuffle=True, seed=3, output="numpy")
    larger.load_state_dict(state)
    with pytest.raises(ValueError, match="resumed at batch 1 with another batch size"):
        larger.provenance(0)
    [batch, *_] = [batch.tolist() for batch in larger]
    assert larger.provenance(1, epoch=0).keys == batch


@needs_torch
def test_torchs_distributed_sampler_is_followed():
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, seed=5)
    loader = DataLoader(Numbers(), 4, sampler=sampler)
    batches = [batch.tolist() for batch in loader]
    assert [loader.provenance(n, epoch=0).keys for n in range(len(batches))] == batches

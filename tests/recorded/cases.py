"""Loaders whose batches are a function of their data, arguments, seed and epoch; and those whose states are recorded.

A case makes its loader of the folder with the data and of options for workers, which must not matter.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, MultiStreamDataset, Stream, mix, rng
from headrace.base.optional import is_installed
from tests.recorded.files import FILES, sequences, words_of
from tests.recorded.hashes import hash_batches
from tests.resuming import Counting, Eager, Lazy, Noisy, Pairs, Telling, own_generators

WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "engine": "threads"},
}
SEED = 7
EPOCHS = 2

Make = Callable[[Path, dict[str, Any]], Any]


@dataclass(frozen=True)
class Case:
    """A loader, and what is recorded of it.

    Attributes:
        n_batches: of each epoch that count; all, if None.
        ways: by which kinds of workers its batches are made.
        needs: a module without which it cannot be read.
    """

    make: Make
    n_batches: int | None = None
    ways: tuple[str, ...] = tuple(WAYS)
    needs: str | None = None

    @property
    def can_run(self) -> bool:
        return self.needs is None or is_installed(self.needs)

    def hashes(self, folder: Path, way: str) -> list[str]:
        """A hash for each epoch."""
        with own_generators(3), self.make(folder, WAYS[way]) as loader:
            return [hash_batches(_first(loader, self.n_batches)) for _ in range(EPOCHS)]


@dataclass(frozen=True)
class StateCase:
    """A loader, and the batch after which its state is recorded.

    Attributes:
        n_batches: how many further ones count; all to the end of the epoch, if None.
        ranks: whose states are saved, to be loaded by one rank more.
    """

    make: Make
    at: int = 5
    n_batches: int | None = None
    ranks: int | None = None

    def record(self, folder: Path) -> dict[str, Any]:
        """The state after some batches (a list of those of all ranks, if there are several), and a hash of the rest."""
        states, rests = zip(*(self._stop(folder, shard) for shard in _shards(self.ranks)), strict=True)
        saved = json.loads(json.dumps(states).replace(str(folder), "/recorded"))
        if self.ranks is None:
            return {"state": saved[0], "rest": rests[0]}
        return {"state": saved, "rest": self.resume(folder, saved, "inline")}

    def _stop(self, folder: Path, shard: dict[str, Any]) -> tuple[Any, str]:
        with own_generators(3), self.make(folder, shard) as loader:
            batches = iter(loader)
            for _ in range(self.at):
                next(batches)
            return loader.state_dict(), hash_batches(_first(batches, self.n_batches))

    def resume(self, folder: Path, state: Any, way: str) -> str:
        """The hash of the batches that follow a state; with ranks, of those of one rank more."""
        rest: list[Any] = []
        for shard in _shards(None if self.ranks is None else self.ranks + 1):
            with own_generators(4), self.make(folder, {**WAYS[way], **shard}) as loader:
                loader.load_state_dict(state)
                rest += _first(loader, self.n_batches)
        return hash_batches(rest)


def _shards(ranks: int | None) -> list[dict[str, Any]]:
    return [{}] if ranks is None else [{"shard": (rank, ranks)} for rank in range(ranks)]


def _first(batches: Iterable[Any], n: int | None) -> Iterator[Any]:
    return iter(batches) if n is None else islice(batches, n)


# Datasets by key


def _by_key(folder: Path, options: dict[str, Any], order: Callable[[], dict[str, Any]], **others: Any) -> Any:
    n = 103
    arguments = order()
    if "batch_sampler" not in arguments:
        arguments["batch_size"] = others.pop("batch_size", 4)
    dataset = Noisy(n, others.pop("draw", "nothing"))
    seed = others.pop("seed", SEED)
    return DataLoader(dataset, seed=seed, output="numpy", **arguments, **others, **options)


_N = 103
_LENGTHS = np.arange(_N) * 37 % 23 + 1
_LABELS = [i * i % 7 for i in range(_N)]

ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "random": lambda: {"sampler": headrace.RandomSampler(range(_N))},
    "random with replacement": lambda: {"sampler": headrace.RandomSampler(range(_N), replacement=True)},
    "random, more than there are": lambda: {"sampler": headrace.RandomSampler(range(_N), num_samples=2 * _N + 5)},
    "random with replacement, 50": lambda: {
        "sampler": headrace.RandomSampler(range(_N), replacement=True, num_samples=50)
    },
    "subset": lambda: {"sampler": headrace.SubsetRandomSampler(list(range(0, _N, 3)))},
    "weighted": lambda: {"sampler": headrace.WeightedRandomSampler(_LENGTHS / 4, 90)},
    "weighted, without replacement": lambda: {
        "sampler": headrace.WeightedRandomSampler(_LENGTHS / 4, 60, replacement=False)
    },
    "distributed": lambda: {"sampler": headrace.DistributedSampler(range(_N), 2, 1, seed=5)},
    "distributed, in order": lambda: {
        "sampler": headrace.DistributedSampler(range(_N), 2, 0, shuffle=False, drop_last=True)
    },
    "batch sampler": lambda: {"batch_sampler": headrace.BatchSampler(headrace.RandomSampler(range(_N)), 6, True)},
    "buckets": lambda: {"batch_sampler": headrace.BucketBatchSampler(_LENGTHS, 5, seed=5)},
    "buckets of tokens": lambda: {"batch_sampler": headrace.BucketBatchSampler(_LENGTHS, max_tokens=64, window=40)},
    "buckets, in order": lambda: {
        "batch_sampler": headrace.BucketBatchSampler(_LENGTHS, 5, shuffle=False, drop_last=True)
    },
    "classes": lambda: {"batch_sampler": headrace.ClassBatchSampler(_LABELS, 3, 2, seed=5)},
    "classes, 9 batches": lambda: {
        "batch_sampler": headrace.ClassBatchSampler(_LABELS, 2, 9, batches_per_epoch=9, small_classes="drop")
    },
    "a list": lambda: {"sampler": list(range(_N))[::-2]},
    "a list of batches": lambda: {"batch_sampler": [[i, _N - 1 - i, 3] for i in range(50)]},
    "a user's eager sampler": lambda: {"sampler": Eager(_N)},
    "a user's lazy sampler": lambda: {"sampler": Lazy(_N)},
    "a user's sampler with a state": lambda: {"sampler": Counting(_N)},
    "a user's sampler with set_epoch": lambda: {"sampler": Telling(_N)},
    "a user's batch sampler": lambda: {"batch_sampler": Pairs(_N)},
}
_SELECTED_ORDERS = {"shuffled", "weighted", "buckets", "classes", "a user's lazy sampler", "a user's batch sampler"}
_DRAWN_BY_TORCH = {"weighted", "random with replacement"}  # by NumPy without it: other draws
_INLINE = ("inline",)
_NOT_THREADS = ("inline", "processes")  # threads share the global generators


def _cases_by_key() -> Iterator[tuple[str, Case]]:
    for name, order in ORDERS.items():
        ways = tuple(WAYS) if name in _SELECTED_ORDERS else _INLINE
        needs = "torch" if name == "distributed" else None
        yield f"key/{name}", Case(partial(_by_key, order=order), ways=ways, needs=needs)
        for rank in range(3):
            sharded = partial(_by_key, order=order, shard=(rank, 3))
            yield f"key/{name}/rank {rank} of 3", Case(sharded, ways=ways if rank == 1 else _INLINE, needs=needs)
    shuffled = ORDERS["shuffled"]
    for even in ("drop", "pad", "repeat", "allow"):
        for rank in range(2):
            made = partial(_by_key, order=shuffled, shard=(rank, 2), even=even, batch_size=5)
            yield f"key/shuffled/even={even}/rank {rank} of 2", Case(made, ways=_INLINE)
    yield "key/shuffled/single samples", Case(partial(_by_key, order=shuffled, batch_size=None))
    yield "key/shuffled/drop_last", Case(partial(_by_key, order=shuffled, drop_last=True))
    yield "key/shuffled/another seed", Case(partial(_by_key, order=shuffled, seed=2**40 + 1))
    for draw in ("rng", "random", "numpy", "a normal number of numpy"):
        for name in ("sequential", "shuffled", "weighted", "buckets"):
            made = partial(_by_key, order=ORDERS[name], draw=draw)
            yield f"key/{name}/draws from {draw}", Case(made, ways=tuple(WAYS) if draw == "rng" else _NOT_THREADS)
    # Without a seed, the global generators decide: they start from the same state here.
    for name in ("shuffled", "weighted", "random with replacement", "a user's eager sampler", "a user's batch sampler"):
        needs = "torch" if name in _DRAWN_BY_TORCH else None
        yield f"key, torch's order/{name}", Case(partial(_by_key, order=ORDERS[name], seed=None), needs=needs)
        drawn = partial(_by_key, order=ORDERS[name], seed=None, draw="numpy")
        yield f"key, torch's order/{name}/draws from numpy", Case(drawn, ways=_INLINE, needs=needs)


# Users' iterable datasets


class Numbers(IterableDataset[Any]):
    """Numbers, split over the workers, each with a draw."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = headrace.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.n, step):
            yield {"number": number, "python": random.random(), "numpy": np.random.rand(), "own": rng().random()}


class Resumable(IterableDataset[int]):
    """Numbers that go on where the state says."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while self.next < self.n:
            self.next += 1
            yield (self.next - 1) ** 2
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def _iterable(folder: Path, options: dict[str, Any], **others: Any) -> Any:
    arguments = {"batch_size": 4, "seed": SEED, "output": "numpy", **others, **options}
    return DataLoader(arguments.pop("dataset", None) or Numbers(61), **arguments)


def _iterable_cases() -> Iterator[tuple[str, Case]]:
    for workers in (0, 1, 2):
        yield f"iterable/{workers} workers", Case(partial(_iterable, num_workers=workers), ways=_INLINE)
    yield "iterable/single samples", Case(partial(_iterable, batch_size=None), ways=_INLINE)
    yield "iterable/2 workers/drop_last", Case(partial(_iterable, num_workers=2, drop_last=True), ways=_INLINE)
    yield "iterable/2 workers/no seed", Case(partial(_iterable, num_workers=2, seed=None), ways=_INLINE)


# Streams


def paths(folder: Path, pattern: str) -> list[Path]:
    return [folder / pattern.format(file) for file in range(FILES)]


def text(folder: Path, **options: Any) -> Stream:
    return headrace.read_text(paths(folder, "lines-{}.txt"), block_bytes=1500, **options)


def jsonl(folder: Path, **options: Any) -> Stream:
    return headrace.read_jsonl(paths(folder, "rows-{}.jsonl"), block_bytes=4000, **options)


def _csv(folder: Path, **options: Any) -> Stream:
    return headrace.read_csv(paths(folder, "rows-{}.csv"), block_bytes=3000, types={"text": "str"}, **options)


def _own_rows(block: int) -> Iterator[str]:
    return (words_of(number) for number in range(block, block + block % 50))


def own(folder: Path) -> Stream:
    return Stream.from_blocks(range(0, 600, 17), _own_rows)


def _squares() -> Iterator[int]:
    return (n * n for n in range(777))


def iterated(folder: Path, shard: Any = "stride") -> Stream:
    return Stream.from_iterable(_squares, shard=shard, block_rows=32)


SOURCES: dict[str, Callable[[Path], Stream]] = {
    "text": text,
    "text, words": partial(text, words=True),
    "text, whole files": lambda folder: headrace.read_text(paths(folder, "lines-{}.txt"), whole_files=True),
    "text.gz": lambda folder: headrace.read_text(paths(folder, "lines-{}.txt.gz")),
    "jsonl": jsonl,
    "jsonl.gz": lambda folder: headrace.read_jsonl(paths(folder, "rows-{}.jsonl.gz")),
    "csv": _csv,
    "csv, columns": partial(_csv, rows="columns"),
    "parquet": lambda folder: headrace.read_parquet(paths(folder, "rows-{}.parquet"), block_bytes=6000),
    "parquet, columns": lambda folder: headrace.read_parquet(
        paths(folder, "rows-{}.parquet"), block_bytes=6000, rows="columns"
    ),
    "parquet, filtered": lambda folder: headrace.read_parquet(
        paths(folder, "rows-{}.parquet"), block_bytes=6000, columns=["id", "text"], filters=[("score", ">", 60)]
    ),
    "arrow": lambda folder: headrace.read_arrow(paths(folder, "rows-{}.arrow"), block_bytes=6000),
    "arrow, columns": lambda folder: headrace.read_arrow(
        paths(folder, "rows-{}.arrow"), block_bytes=6000, rows="columns"
    ),
    "tar": lambda folder: headrace.read_tar(paths(folder, "samples-{}.tar"), block_bytes=20_000),
    "tar, undecoded": lambda folder: headrace.read_tar(
        paths(folder, "samples-{}.tar"), block_bytes=20_000, decode=False
    ),
    "sqlite": lambda folder: headrace.read_sql(
        folder / "rows.db", "SELECT id, score, text FROM samples", "id", block_rows=60
    ),
    "sqlite, columns": lambda folder: headrace.read_sql(
        folder / "rows.db", "SELECT id, score FROM samples WHERE score > 9", "id", block_rows=60, rows="columns"
    ),
    "blocks": own,
    "iterable": iterated,
    "iterable, dispatched": partial(iterated, shard="dispatch"),
    "tokens": lambda folder: headrace.read_tokens(paths(folder, "tokens-{}.bin"), 16, block_bytes=600),
    "tokens, documents": lambda folder: headrace.read_tokens(
        paths(folder, "tokens-{}.bin"), 16, stride=12, end=3, block_bytes=600
    ),
}


def _needs(source: str) -> str | None:
    return "pyarrow" if source.startswith(("parquet", "arrow")) else None


def _draws(row: Any) -> Any:
    return row, random.random(), float(np.random.rand()), float(rng().random())


def _has_words(line: str) -> bool:
    return len(line) > 12


def _words(line: str) -> list[str]:
    return line.split()


def _lengths(line: str) -> list[int]:
    return [len(word) for word in line.split()]


def _noisy_sum(row: Any) -> tuple[int, float]:
    return int(row.sum()), rng().random()


def _noisy_columns(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "noise": rng().random(len(columns["id"]))}


def _scaled(columns: dict[str, Any]) -> dict[str, Any]:
    return {"id": columns["id"], "scaled": np.asarray(columns["score"]) * 2}


def _draw_some(line: str) -> list[str]:
    return [word for word in line.split() if rng().random() < 0.5]


STEPS: dict[str, Callable[[Path], Stream]] = {
    "map": lambda folder: text(folder).map(str.upper),
    "map that draws": lambda folder: text(folder).map(_draws),
    "shuffle, map that draws": lambda folder: text(folder).shuffle(blocks=3).map(_draws),
    "filter": lambda folder: text(folder).filter(_has_words),
    "flat_map": lambda folder: text(folder).flat_map(_words),
    "flat_map that draws": lambda folder: text(folder).shuffle(blocks=4).flat_map(_draw_some),
    "shuffle, filter, map, flat_map": lambda folder: (
        text(folder).shuffle(blocks=5).filter(_has_words).map(str.title).flat_map(_words)
    ),
    "map_batches": lambda folder: jsonl(folder).map_batches(_scaled, 16),
    "map_batches that draws": lambda folder: jsonl(folder).shuffle(blocks=2).map_batches(_noisy_columns, 50),
    "map_batches, columns": lambda folder: jsonl(folder).map_batches(_scaled, 16).as_columns(),
    "take": lambda folder: text(folder).take(333),
    "skip": lambda folder: text(folder).skip(333),
    "shuffle, skip, take": lambda folder: text(folder).shuffle(blocks=3).skip(100).take(900),
    "filter, skip, map, take": lambda folder: text(folder).filter(_has_words).skip(40).map(str.upper).take(500),
    "flat_map, take": lambda folder: text(folder).flat_map(_words).take(1234),
    "repeat": lambda folder: text(folder).take(200).repeat(3),
    "shuffle, repeat": lambda folder: own(folder).shuffle(blocks=4).repeat(3),
    "repeat for ever": lambda folder: own(folder).shuffle(blocks=4).repeat(),
    "shuffle with a seed": lambda folder: text(folder).shuffle(blocks=4, seed=99),
}
PACKED: dict[str, Callable[[Path], Stream]] = {
    "pack": lambda folder: text(folder).map(_lengths).pack(50),
    "pack, drop_rest": lambda folder: own(folder).map(_lengths).pack(64, drop_rest=True),
    "shuffle, pack": lambda folder: text(folder).shuffle(blocks=4).map(_lengths).pack(33),
    "segments": lambda folder: text(folder).map(_lengths).pack(50, segments=True),
    "first fit": lambda folder: text(folder).shuffle(blocks=2).map(_lengths).pack(32, fit="first", at_once=40),
    "best fit": lambda folder: text(folder).map(_lengths).pack(32, fit="best"),
    "map after pack": lambda folder: text(folder).map(_lengths).pack(50).map(_noisy_sum),
}


def _parts(folder: Path) -> list[Stream]:
    return [text(folder).take(300), own(folder).shuffle(blocks=3), text(folder).shuffle(blocks=2).filter(_has_words)]


def _schedule(position: int) -> list[float]:
    return [1.0, 1 + position / 500, 2.0]


MIXES: dict[str, Callable[[Path], Stream]] = {
    "equal": lambda folder: mix(_parts(folder)),
    "weights": lambda folder: mix(_parts(folder), [5, 1, 3]),
    "weights, all": lambda folder: mix(_parts(folder), [5, 1, 3], stop="all"),
    "weights, longest": lambda folder: mix(_parts(folder), [5, 1, 3], stop="longest"),
    "weights, never": lambda folder: mix(_parts(folder), [5, 1, 3], stop="never"),
    "schedule": lambda folder: mix(_parts(folder), [(0, [1, 1, 0]), (150, [1, 4, 4])], stop="all"),
    "function": lambda folder: mix(_parts(folder), _schedule, stop="all", seed=11),
    "mapped": lambda folder: mix(_parts(folder), [1, 2, 3]).map(_draws),
    "of mixes": lambda folder: mix([mix(_parts(folder), [1, 2, 3]), own(folder)], [3, 1], stop="all").skip(20),
    "columns": lambda folder: mix([_csv(folder, rows="columns"), jsonl(folder).as_columns()], [2, 1], stop="all"),
    "packed": lambda folder: mix([part.map(_lengths) for part in _parts(folder)], stop="all").pack(40),
    "even": lambda folder: mix(_parts(folder), [5, 1, 3], stop="all", draw="even"),
    "by tokens": lambda folder: mix(_parts(folder), [5, 1, 3], stop="longest", draw="tokens"),
    "stratified": lambda folder: mix(_parts(folder), [5, 1, 3], stop="all", draw="stratified"),
    "whole batches": lambda folder: mix(_parts(folder), [5, 1, 3], stop="longest", draw="batches"),
}
_ENDLESS = {"repeat for ever": 200, "weights, never": 150}
_OWN_SEEDED = {"shuffle with a seed": None, "function": None}  # without one of the loader


def _stream(folder: Path, options: dict[str, Any], make: Callable[[Path], Stream], **others: Any) -> Any:
    arguments = {"batch_size": 8, "seed": SEED, "output": "numpy", **others}
    stream = make(folder)
    if stream.recipe.packing is not None:
        arguments["collate_fn"] = list
    return DataLoader(stream, **arguments, **options)


def _shuffled(folder: Path, make: Callable[[Path], Stream]) -> Stream:
    return make(folder).shuffle(blocks=3)


def _stream_cases() -> Iterator[tuple[str, Case]]:
    for name, make in SOURCES.items():
        needs = _needs(name)
        yield f"stream/{name}", Case(partial(_stream, make=make), needs=needs)
        shuffled = partial(_shuffled, make=make)
        yield f"stream/{name}/shuffled", Case(partial(_stream, make=shuffled), needs=needs)
        for rank in range(2):
            sharded = partial(_stream, make=shuffled, shard=(rank, 2))
            yield f"stream/{name}/shuffled/rank {rank} of 2", Case(sharded, ways=_INLINE, needs=needs)
    for group, made in (("steps", STEPS), ("packed", PACKED), ("mix", MIXES)):
        for name, make in made.items():
            seed = _OWN_SEEDED.get(name, SEED)
            ways = _NOT_THREADS if "draws" in name or name == "mapped" else tuple(WAYS)
            yield (
                f"{group}/{name}",
                Case(partial(_stream, make=make, seed=seed), ways=ways, n_batches=_ENDLESS.get(name)),
            )
    evened: dict[str, Callable[[Path], Stream]] = {
        "text": text,
        "text, shuffled": partial(_shuffled, make=text),
        "blocks, filtered": lambda folder: own(folder).filter(_has_words),
        "mix": MIXES["weights, all"],
        "packed": PACKED["shuffle, pack"],
        "iterable": iterated,
    }
    for name, make in evened.items():
        for even in ("drop", "pad", "repeat", "allow"):
            for rank in range(2):
                sharded = partial(_stream, make=make, shard=(rank, 2), even=even)
                ways = tuple(WAYS) if rank == 0 and even in ("drop", "repeat") else _INLINE
                yield f"even/{name}/{even}/rank {rank} of 2", Case(sharded, ways=ways)
    yield "stream/text/single rows", Case(partial(_stream, make=partial(_shuffled, make=text), batch_size=None))
    yield "stream/text/drop_last", Case(partial(_stream, make=text, drop_last=True), ways=_INLINE)


# Sequences side by side


def _read_words(number: int) -> list[int]:
    return _lengths(words_of(number))


def _lanes(folder: Path, options: dict[str, Any], **others: Any) -> Any:
    arguments: dict[str, Any] = {"seed": SEED, "output": "numpy", **others}
    if arguments.get("assign") == "offset":
        given: Any = np.arange(211)
    else:
        given = arguments.pop("sequences", None) or sequences()
        given = given(folder) if callable(given) else given
    return MultiStreamDataLoader(given, arguments.pop("batch_size", 4), **arguments, **options)


def _streams(folder: Path) -> list[Stream]:
    return [text(folder).flat_map(_lengths).skip(100 * i).take(40 + 9 * i) for i in range(6)]


def _columns(folder: Path) -> list[dict[str, Any]]:
    return [{"step": sequence, "half": sequence / 2} for sequence in sequences()]


def _datasets(folder: Path) -> list[MultiStreamDataset]:
    return MultiStreamDataset.split_datasets([sequence.tolist() for sequence in sequences()], 4, max_workers=2)


def _lane_cases() -> Iterator[tuple[str, Case]]:
    for assign in ("shuffle", "partition", "offset"):
        for cycle in (True, False):
            name = f"lanes/{assign}{'' if cycle else ', once'}"
            n_batches = 90 if cycle else None
            base = {"assign": assign, "cycle": cycle}
            yield name, Case(partial(_lanes, **base), n_batches)
            yield f"{name}/seq_len", Case(partial(_lanes, seq_len=7, **base), n_batches)
            full = {"seq_len": 5, "targets": True, "is_first": True, "batch_first": True}
            yield f"{name}/targets", Case(partial(_lanes, **full, **base), n_batches)
            for rank in range(2):
                sharded = partial(_lanes, shard=(rank, 2), targets=True, **base)
                yield f"{name}/rank {rank} of 2", Case(sharded, n_batches, ways=_INLINE)
    for assign in ("shuffle", "partition"):
        read = partial(_lanes, assign=assign, sequences=list(range(3, 60, 4)), read=_read_words, seq_len=3)
        yield f"lanes/{assign}/read", Case(read, 60)
        yield f"lanes/{assign}/streams", Case(partial(_lanes, assign=assign, sequences=_streams, seq_len=3), 60)
        yield f"lanes/{assign}/columns", Case(partial(_lanes, assign=assign, sequences=_columns), 60)
    yield "lanes/datasets", Case(partial(_lanes, sequences=_datasets, batch_size=None), 60, ways=_INLINE)


CASES: dict[str, Case] = dict(
    [*_cases_by_key(), *_iterable_cases(), *_stream_cases(), *_lane_cases()],
)


# States


def _generated(folder: Path, options: dict[str, Any], order: str = "shuffled", **others: Any) -> Any:
    generator = np.random.Generator(np.random.PCG64(9))
    made = partial(_by_key, order=ORDERS[order], seed=None, generator=generator)
    return made(folder, options, **others)


STATES: dict[str, StateCase] = {
    "key, torch's order": StateCase(_generated),
    "key, torch's order/a user's sampler with a state": StateCase(
        partial(_generated, order="a user's sampler with a state")
    ),
    "key/shuffled": StateCase(partial(_by_key, order=ORDERS["shuffled"], draw="rng")),
    "key/shuffled/draws from numpy": StateCase(partial(_by_key, order=ORDERS["shuffled"], draw="numpy")),
    "key/weighted": StateCase(partial(_by_key, order=ORDERS["weighted"])),
    "key/buckets": StateCase(partial(_by_key, order=ORDERS["buckets"])),
    "key/a user's lazy sampler": StateCase(partial(_by_key, order=ORDERS["a user's lazy sampler"])),
    "key/shuffled/rank 1 of 2": StateCase(partial(_by_key, order=ORDERS["shuffled"], shard=(1, 2))),
    "iterable": StateCase(partial(_iterable)),
    "iterable with a state": StateCase(lambda folder, options: _iterable(folder, options, dataset=Resumable(61))),
    "stream/text": StateCase(partial(_stream, make=text), at=30),
    "stream/text/before the first batch": StateCase(partial(_stream, make=text), at=0),
    "stream/text/shuffled": StateCase(partial(_stream, make=partial(_shuffled, make=text)), at=101),
    "stream/text/rank 1 of 2": StateCase(
        partial(_stream, make=partial(_shuffled, make=text), shard=(1, 2), even="pad"), at=30
    ),
    "stream/text/from 2 ranks to 3": StateCase(partial(_stream, make=partial(_shuffled, make=text)), at=30, ranks=2),
    "steps/shuffle, skip, take/from 2 ranks to 3": StateCase(
        partial(_stream, make=STEPS["shuffle, skip, take"], even="allow"), at=30, ranks=2
    ),
    "mix/weights, all/from 2 ranks to 3": StateCase(partial(_stream, make=MIXES["weights, all"]), at=9, ranks=2),
    "stream/jsonl": StateCase(partial(_stream, make=jsonl), at=30),
    "stream/jsonl.gz": StateCase(partial(_stream, make=SOURCES["jsonl.gz"]), at=111),
    "stream/text.gz/shuffled": StateCase(partial(_stream, make=partial(_shuffled, make=SOURCES["text.gz"])), at=3),
    "stream/csv, columns": StateCase(partial(_stream, make=SOURCES["csv, columns"]), at=30),
    "stream/tar": StateCase(partial(_stream, make=SOURCES["tar"]), at=30),
    "stream/blocks": StateCase(partial(_stream, make=own), at=30),
    "stream/iterable": StateCase(partial(_stream, make=iterated), at=30),
    "stream/iterable, dispatched": StateCase(partial(_stream, make=SOURCES["iterable, dispatched"]), at=30),
    "steps/shuffle, map that draws": StateCase(partial(_stream, make=STEPS["shuffle, map that draws"]), at=77),
    "steps/shuffle, filter, map, flat_map": StateCase(
        partial(_stream, make=STEPS["shuffle, filter, map, flat_map"]), at=77
    ),
    "steps/shuffle, skip, take": StateCase(partial(_stream, make=STEPS["shuffle, skip, take"]), at=77),
    "steps/shuffle, repeat": StateCase(partial(_stream, make=STEPS["shuffle, repeat"]), at=100),
    "packed/pack": StateCase(partial(_stream, make=PACKED["pack"])),
    "packed/shuffle, pack": StateCase(partial(_stream, make=PACKED["shuffle, pack"]), at=9),
    "mix/weights, all": StateCase(partial(_stream, make=MIXES["weights, all"]), at=40),
    "mix/schedule": StateCase(partial(_stream, make=MIXES["schedule"]), at=40),
    "mix/weights, never": StateCase(partial(_stream, make=MIXES["weights, never"]), at=40, n_batches=60),
    "packed/best fit": StateCase(partial(_stream, make=PACKED["best fit"])),
    "mix/by tokens": StateCase(partial(_stream, make=MIXES["by tokens"]), at=40),
    "mix/stratified": StateCase(partial(_stream, make=MIXES["stratified"]), at=40),
    "stream/tokens": StateCase(partial(_stream, make=partial(_shuffled, make=SOURCES["tokens"])), at=9),
    "mix/packed": StateCase(partial(_stream, make=MIXES["packed"]), at=7),
    "lanes/shuffle": StateCase(partial(_lanes, assign="shuffle"), at=33, n_batches=60),
    "lanes/partition": StateCase(partial(_lanes, assign="partition", seq_len=4, targets=True), at=9, n_batches=60),
    "lanes/partition, once": StateCase(partial(_lanes, assign="partition", cycle=False, seq_len=4)),
    "lanes/offset": StateCase(partial(_lanes, assign="offset"), at=33, n_batches=60),
    "lanes/offset, once/rank 1 of 2": StateCase(partial(_lanes, assign="offset", cycle=False, shard=(1, 2)), at=33),
}

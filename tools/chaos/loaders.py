"""Random loaders of every kind: what is loaded, and the ways of loading it that must make no difference."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace import (
    DataLoader,
    Dataset,
    IterableDataset,
    MultiStreamDataLoader,
    RandomSampler,
    Sampler,
    Stream,
    SubsetRandomSampler,
    WeightedRandomSampler,
    mix,
    rng,
)

# What is loaded


def _exit() -> None:
    os._exit(9)


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _run_out_of_memory() -> None:
    raise MemoryError("no memory for this sample")


DEATHS: dict[str, Callable[[], None]] = {
    "SIGKILL": _signal(signal.SIGKILL),
    "SIGSEGV": _signal(signal.SIGSEGV),
    "SIGBUS": _signal(signal.SIGBUS),
    "SIGABRT": _signal(signal.SIGABRT),
    "SIGTERM": _signal(signal.SIGTERM),
    "exit": _exit,
}


@dataclass(frozen=True)
class Traps:
    """What happens when a worker makes certain samples, each once: the first to make its file in `folder`.

    Attributes:
        deaths: a name in `DEATHS`, by the number of the sample.
        failures: the samples that raise a MemoryError, always.
    """

    folder: str = ""
    deaths: Mapping[int, str] = field(default_factory=dict)
    failures: frozenset[int] = frozenset()

    def spring(self, number: int) -> None:
        if number in self.failures:
            _run_out_of_memory()
        death = self.deaths.get(number)
        if death is None or headrace.get_worker_info() is None:
            return
        try:
            os.close(os.open(f"{self.folder}/{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        DEATHS[death]()


NO_TRAPS = Traps()

_DRAWS: dict[str, Callable[[], float]] = {
    "nothing": lambda: 0.0,
    "rng": lambda: float(rng().random()),
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),
    "normal": lambda: float(np.random.randn()) + random.gauss(0, 1),
    "all": lambda: float(rng().random()) + random.random() + float(np.random.rand()),
}


@dataclass(frozen=True)
class Content:
    """Makes a sample of a number: that number, what is drawn for it, and perhaps an array."""

    draw: str = "nothing"
    n_bytes: int = 0
    traps: Traps = NO_TRAPS

    def make(self, number: int) -> Any:
        drawn = _DRAWS[self.draw]()
        if number % 3 == 0:
            drawn += _DRAWS[self.draw]()
        self.traps.spring(number)
        return (number, drawn, np.full(self.n_bytes // 8, number, np.float64)) if self.n_bytes else (number, drawn)


class Map(Dataset[Any]):
    def __init__(self, content: Content, n: int) -> None:
        self.content = content
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.content.make(index)


class Numbers(IterableDataset[Any]):
    """Numbers, split over the workers unevenly."""

    @staticmethod
    def is_dealt(number: int, worker: int, workers: int) -> bool:
        return number * number % 7 % workers == worker

    def __init__(self, content: Content, n: int) -> None:
        self.content = content
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = headrace.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(self.n):
            if self.is_dealt(number, worker, workers):
                yield self.content.make(number)


class Resumable(Numbers):
    """Knows its state."""

    next = 0

    @staticmethod
    def is_dealt(number: int, worker: int, workers: int) -> bool:
        return number % workers == worker

    def __iter__(self) -> Iterator[Any]:
        info = headrace.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        while self.next < self.n:
            number, self.next = self.next, self.next + 1
            if self.is_dealt(number, worker, workers):
                yield self.content.make(number)
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Turning(Resumable):
    """Begins elsewhere in each epoch; every worker gives all numbers."""

    turn = 0

    @staticmethod
    def is_dealt(number: int, worker: int, workers: int) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        while self.next < self.n:
            number, self.next = self.next, self.next + 1
            yield self.content.make((number + 5 * self.turn) % self.n)
        self.next, self.turn = 0, self.turn + 1

    def state_dict(self) -> dict[str, int]:
        return {"turn": self.turn, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.turn, self.next = state["turn"], state["next"]


ITERABLES: dict[str, type[Numbers]] = {"plain": Numbers, "resumable": Resumable, "turning": Turning}


class Eager(Sampler[int]):
    """Draws the whole epoch in `__iter__`."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.n).tolist())

    def __len__(self) -> int:
        return self.n


class Counting(Eager):
    """Knows its state: the epoch, and how many of it it has given."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.number = self.given = 0

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.number).permutation(self.n).tolist()
        while self.given < self.n:
            self.given += 1
            yield order[self.given - 1]
        self.given = 0
        self.number += 1

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number, self.given = state["number"], state["given"]


def _triples(n: int) -> list[list[int]]:
    return [[i, (i * 5) % n, n - 1 - i] for i in range(0, n, 2)]


ORDERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sequential": lambda n: {},
    "shuffled": lambda n: {"shuffle": True},
    "with replacement": lambda n: {"sampler": RandomSampler(range(n), replacement=True, library="numpy")},
    "weighted": lambda n: {"sampler": WeightedRandomSampler(np.arange(1.0, n + 1), n, False, library="numpy")},
    "subset": lambda n: {"sampler": SubsetRandomSampler(list(range(0, n, 2)), library="numpy")},
    "eager": lambda n: {"sampler": Eager(n)},
    "with a state": lambda n: {"sampler": Counting(n)},
    "buckets": lambda n: {"batch_sampler": headrace.BucketBatchSampler(np.arange(n) % 7 + 1, 3, seed=5)},
    "batch sampler": lambda n: {
        "batch_sampler": headrace.BatchSampler(RandomSampler(range(n), library="numpy"), 3, True)
    },
    "list of batches": lambda n: {"batch_sampler": _triples(n)},
}


def _block(content: Content, rows: int, first: int) -> Iterator[Any]:
    for number in range(first, first + 1 + first % rows):
        yield content.make(number)


def _first_number(n: int) -> Iterator[int]:
    yield from range(n)


def _is_kept(row: Any) -> bool:
    return bool(row[0] % 5)


def _twice(row: Any) -> list[Any]:
    return [row] * (row[0] % 3)


def _tokens(row: Any) -> list[float]:
    return [float(row[0]), *[row[1]] * (row[0] % 4)]


def _blocks(n: int) -> Stream:
    return Stream.from_blocks(list(range(0, n, 3)), partial(_block, Content(), 5))


def _iterated(n: int, shard: str) -> Stream:
    return Stream.from_iterable(partial(_first_number, n), shard=shard, block_rows=4).map(Content().make)


def _text(folder: Path, n: int) -> Stream:
    """Of three files, which are written if they are not there yet."""
    paths = [folder / f"numbers-{n}-{i}.txt" for i in range(3)]
    for i, path in enumerate(paths):
        if not path.exists():
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text("".join(f"{number}\n" for number in range(i * n // 3, (i + 1) * n // 3)))
            new.replace(path)
    return headrace.read_text(paths, block_bytes=32)


def _of_line(line: str) -> Any:
    return Content().make(int(line))


STREAMS: dict[str, Callable[[Path, int], Stream]] = {
    "blocks": lambda folder, n: _blocks(n),
    "text": lambda folder, n: _text(folder, n).map(_of_line),
    "iterable": lambda folder, n: _iterated(n, "stride"),
    "dispatched": lambda folder, n: _iterated(n, "dispatch"),
    "shuffled": lambda folder, n: _blocks(n).shuffle(blocks=3),
    "text, shuffled": lambda folder, n: _text(folder, n).shuffle(blocks=2, seed=3).map(_of_line),
    "filtered": lambda folder, n: _blocks(n).shuffle(blocks=2).filter(_is_kept).flat_map(_twice),
    "limited": lambda folder, n: _blocks(n).skip(5).take(n),
    "repeated": lambda folder, n: _blocks(n // 2 + 1).shuffle(blocks=2).repeat(2),
    "packed": lambda folder, n: _blocks(n).map(_tokens).pack(5),
    "shuffled, packed": lambda folder, n: _blocks(n).shuffle(blocks=3).map(_tokens).pack(4, drop_rest=True),
    "mixed": lambda folder, n: mix([_blocks(n), _iterated(n, "stride")], [2, 1], stop="all"),
    "mixed, first": lambda folder, n: mix([_blocks(n).shuffle(blocks=2), _text(folder, n).map(_of_line)], [1, 3]),
    "mixed, never": lambda folder, n: mix([_blocks(n), _blocks(n + 4).shuffle(blocks=2)], stop="never"),
    "mixed, packed": lambda folder, n: mix([_blocks(n), _blocks(n + 9)], stop="all").map(_tokens).pack(6),
}


class Sequence:
    """A sequence that can only be iterated over."""

    def __init__(self, content: Content, first: int, n: int) -> None:
        self.content, self.first, self.n = content, first, n

    def __iter__(self) -> Iterator[Any]:
        return (self.content.make(number) for number in range(self.first, self.first + self.n))


class Remembering:
    """An iterator that knows its state."""

    def __init__(self, content: Content, first: int, n: int) -> None:
        self.content, self.first, self.n, self.at = content, first, n, 0

    def __iter__(self) -> Remembering:
        return self

    def __next__(self) -> Any:
        if self.at >= self.n:
            raise StopIteration
        self.at += 1
        return self.content.make(self.first + self.at - 1)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Remembered(Sequence):
    """A sequence whose iterators know their states."""

    def __iter__(self) -> Iterator[Any]:
        return Remembering(self.content, self.first, self.n)


LANES = {
    f"{assign}, {form}{', once' if once else ''}": (assign, form, once)
    for assign in ("shuffle", "partition", "offset")
    for form in ("arrays", "iterables", "resumable", "streams")
    if assign != "offset" or form in ("arrays", "iterables")
    for once in (True, False)
}


def _sequences(content: Content, n: int, assign: str, form: str) -> Any:
    if assign == "offset":
        return np.arange(n) if form == "arrays" else Map(content, n)
    sizes = [1 + (7 * i + n) % 9 for i in range(6)]
    if form == "arrays":
        return [np.arange(100 * i, 100 * i + size) for i, size in enumerate(sizes)]
    if form == "streams":
        return [_blocks(size).map(partial(_made_again, content)) for size in sizes]
    return [(Remembered if form == "resumable" else Sequence)(content, 100 * i, size) for i, size in enumerate(sizes)]


KINDS: dict[str, tuple[str, ...]] = {
    "map": tuple(ORDERS),
    "iterable": tuple(ITERABLES),
    "stream": tuple(STREAMS),
    "lanes": tuple(LANES),
}

# Loaders


@dataclass(frozen=True)
class Way:
    """How batches are made, which must not matter."""

    engine: str = "inline"
    workers: int = 2
    prefetch: int | None = None
    persistent: bool = False
    method: str = "fork"

    def arguments(self) -> dict[str, Any]:
        if self.engine == "inline":
            return {}
        kind = {"engine": "threads"} if self.engine == "threads" else {"multiprocessing_context": self.method}
        return {
            **kind,
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "persistent_workers": self.persistent,
        }


@dataclass(frozen=True)
class Configuration:
    """What decides the batches.

    Attributes:
        form: one of those of the kind in `KINDS`.
        most: batches of an epoch; those of some have no end.
    """

    kind: str = "map"
    form: str = "sequential"
    n: int = 20
    batch_size: int | None = 3
    drop_last: bool = False
    seed: int | None = 1
    draw: str = "nothing"
    n_bytes: int = 0
    in_order: bool = True
    most: int = 60
    shard: tuple[int, int] | None = None
    seq_len: int | None = None

    def make(self, way: Way, folder: Path, traps: Traps = NO_TRAPS, **others: Any) -> Any:
        content = Content(self.draw, self.n_bytes, traps)
        arguments: dict[str, Any] = {"output": "numpy", **way.arguments(), **others}
        if self.shard is not None:
            arguments["shard"] = self.shard
        if self.kind == "lanes":
            assign, form, once = LANES[self.form]
            return MultiStreamDataLoader(
                _sequences(content, self.n, assign, form),
                self.batch_size or 1,
                assign=assign,
                cycle=not once,
                seq_len=self.seq_len,
                seed=self.seed or 0,
                **arguments,
            )
        arguments |= {"batch_size": self.batch_size, "seed": self.seed, "in_order": self.in_order}
        arguments["drop_last"] = self.drop_last and self.batch_size is not None
        if self.kind == "map":
            order = ORDERS[self.form](self.n)
            if "batch_sampler" in order:
                del arguments["batch_size"], arguments["drop_last"]
            return DataLoader(Map(content, self.n), **order, **arguments)
        if self.kind == "iterable":
            return DataLoader(ITERABLES[self.form](content, self.n), **arguments)
        stream = STREAMS[self.form](folder, self.n)
        if stream.recipe.packing is None and (self.draw != "nothing" or self.n_bytes or traps != NO_TRAPS):
            stream = stream.map(partial(_made_again, content))
        return DataLoader(stream, **arguments, collate_fn=list)

    def depends_on(self, way: Way) -> tuple[Any, ...]:
        """What else decides the batches: users' iterables see their workers, and so do draws without a seed."""
        if self.kind == "iterable":
            return ("inline",) if way.engine == "inline" else (way.workers, way.engine if self.draws_freely else "")
        if self.kind == "map" and self.seed is None:  # torch's order: there is one seed more to draw for workers
            return (
                ("inline",) if way.engine == "inline" else (way.workers, way.engine) if self.draws_freely else ("any",)
            )
        if self.kind == "stream" and self.draws_freely:  # workers that stay are seeded once
            return (way.engine != "inline" and way.persistent,)
        return ()

    def is_moved_by_chance(self, way: Way, after: int) -> bool:
        """Whether it depends on timing how far workers that stay have iterated when an epoch is left.

        What is in flight then is worked on all the same, as in torch: that moves datasets that go on where they were,
        and free draws. But tasks are dealt among the workers that are not known to have ended; when it is learned that
        one has, depends on timing.
        """
        keeps_place = self.form != "plain" or self.draws_freely
        if self.kind != "iterable" or not keeps_place or not way.persistent or way.workers == 1:
            return False
        is_dealt = ITERABLES[self.form].is_dealt
        fewest = min(sum(is_dealt(i, worker, way.workers) for i in range(self.n)) for worker in range(way.workers))
        pulled = -(-after // way.workers) + (way.prefetch or 2) + 1
        return pulled * (self.batch_size or 1) > fewest

    def samples(self, batch: Any) -> list[Any]:
        """The samples of a batch of a map or a stream, without their arrays; of packed rows, the tokens.

        What is drawn is left out where no seed decides it.
        """
        if self.kind == "map":
            columns = [np.atleast_1d(column).tolist() for column in batch[: 1 if self.draws_freely else 2]]
            return list(zip(*columns, strict=True))
        rows = batch if self.batch_size is not None else [batch]
        if "packed" in self.form:
            return [token for row in rows for token in row]
        return [tuple(row[: 1 if self.draws_freely else 2]) for row in rows]

    @property
    def draws_freely(self) -> bool:
        """Whether what is drawn is decided by no seed."""
        return self.draw != "nothing" and self.seed is None and self.kind != "lanes"

    @property
    def has_own_draws(self) -> bool:
        """Whether it draws from the global generators, which threads share."""
        return self.draw not in ("nothing", "rng")


INLINE = Way()
CONFIGURATION = Configuration()


def _made_again(content: Content, row: Any) -> Any:
    return content.make(row[0])


def draw_configuration(chance: random.Random, kind: str | None = None) -> Configuration:
    kind = kind or chance.choice(list(KINDS))
    form = chance.choice(KINDS[kind])
    return Configuration(
        kind,
        form,
        n=chance.choice(
            [
                chance.randint(1 if kind != "lanes" else 4, 4),
                chance.randint(4, 12),
                chance.randint(10, 40),
                chance.randint(30, 60),
            ]
        ),
        batch_size=chance.choice([None, 1, 2, 3, 3, 5]) if kind != "lanes" else chance.choice([1, 2, 3, 4]),
        drop_last=chance.random() < 0.2,
        seed=chance.choice([None, 1, chance.getrandbits(30)]),
        draw=chance.choice(list(_DRAWS)),
        n_bytes=chance.choice([0, 0, 80, 8_000]),
        most=chance.choice([10, 30, 60]),
        seq_len=chance.choice([None, 1, 3, 7]) if kind == "lanes" else None,
    )


def draw_way(chance: random.Random, *engines: str) -> Way:
    return Way(
        chance.choice(engines or ("inline", "threads", "processes")),
        chance.randint(1, 3),
        chance.choice([None, None, 1, 2, 4]),
        chance.random() < 0.4,
    )


def plain(batch: Any) -> Any:
    """A batch of whatever arrays and containers, as values that can be compared."""
    if isinstance(batch, np.ndarray):
        return (
            batch.tolist() if batch.ndim < 2 else [batch.shape, batch.reshape(-1)[:: max(1, batch.shape[-1])].tolist()]
        )
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return {name: plain(part) for name, part in batch.items()} if isinstance(batch, dict) else batch

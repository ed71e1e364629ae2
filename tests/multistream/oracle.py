"""What batches of several streams must hold, in plain Python: one item after the other, no blocks, no arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle, islice, pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from headrace import Dataset, IterableDataset
from headrace.base.generators import derive_key
from headrace.multistream.assign import ShuffledPieces, Shuffles
from headrace.multistream.loader import MultiStreamDataLoader

IGNORED = -100


def item_of(sequence: int, index: int) -> int:
    """Items tell what they are."""
    return 1000 * sequence + index


def listed(lengths: list[int]) -> list[list[int]]:
    return [[item_of(k, j) for j in range(n)] for k, n in enumerate(lengths)]


class Generated:
    """A function that makes a generator, and that any process can import."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __call__(self) -> Iterator[int]:
        yield from self.items


class Repeated:
    """An iterable that is no list."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


class ByKey(Dataset[Any]):
    """A dataset whose samples are sequences."""

    def __init__(self, sequences: list[list[int]]) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> Any:
        return np.array(self.sequences[index], np.int64)


class Streamed(IterableDataset[Any]):
    """A dataset that is a sequence."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


GIVEN: dict[str, Callable[[list[list[int]]], Any]] = {
    "arrays": lambda sequences: [np.array(sequence, np.int64) for sequence in sequences],
    "lists": lambda sequences: sequences,
    "generators": lambda sequences: [Generated(sequence) for sequence in sequences],
    "iterables": lambda sequences: [Repeated(sequence) for sequence in sequences],
    "a dataset": ByKey,
    "datasets": lambda sequences: [Streamed(sequence) for sequence in sequences],
}
OF_KNOWN_LENGTH = ("arrays", "lists")


@dataclass(frozen=True)
class Case:
    """What decides the batches."""

    lengths: tuple[int, ...] = (6, 3, 9, 4)
    batch_size: int = 3
    assign: str = "shuffle"
    cycle: bool = True
    seq_len: int | None = None
    targets: bool = False
    is_first: bool = False
    batch_first: bool = False
    seed: int = 0
    given: str = "arrays"

    @property
    def sequences(self) -> list[list[int]]:
        return listed(list(self.lengths))

    def loader(self, **others: Any) -> MultiStreamDataLoader:
        sequences = self.sequences
        if self.assign == "offset":
            sequences = [[item for sequence in sequences for item in sequence]]
        given = GIVEN[self.given](sequences)
        arguments = {name: value for name, value in vars(self).items() if name not in ("lengths", "given")}
        return MultiStreamDataLoader(given[0] if self.assign == "offset" else given, **{**arguments, **others})

    # The oracle

    def pieces(self, position: int, epoch: int) -> Iterator[tuple[list[int], bool]]:
        """What a position reads, piece by piece, and whether a sequence begins with it."""
        sequences = self.sequences
        n = len(sequences)
        if self.assign == "shuffle":
            key = derive_key(self.seed, epoch, "sequences of positions")
            order = ShuffledPieces(Shuffles(n, key), self.batch_size, position)
            numbers = (int(order.at(np.array([ordinal]))[0]) for ordinal in (count() if self.cycle else range(n)))
            return ((sequences[number], True) for number in numbers)
        if self.assign == "partition":
            groups = deal(self.lengths if self.given in OF_KNOWN_LENGTH else (1,) * n, self.batch_size)
            group = groups[position]
            return ((sequences[number], True) for number in (cycle(group) if self.cycle else group))
        whole = [item for sequence in sequences for item in sequence]
        borders = [-(-len(whole) * i // self.batch_size) for i in range(self.batch_size + 1)]
        segments = [(whole[a:b], i == 0) for i, (a, b) in enumerate(pairwise(borders))]
        return islice(cycle(segments), position, None) if self.cycle else iter([segments[position]])

    def stream(self, position: int, epoch: int = 0) -> Iterator[tuple[int, bool]]:
        """The items of a position, and whether a sequence begins there."""
        step = 0
        for piece, begins in self.pieces(position, epoch):
            for i, item in enumerate(piece):
                yield item, i == 0 and (begins or step == 0)
                step += 1

    def expected(self, n: int, epoch: int = 0) -> list[Any]:
        """The first n batches of an epoch, or all that there are."""
        length = self.seq_len or 1
        streams = [list(islice(self.stream(position, epoch), n * length + 1)) for position in range(self.batch_size)]
        reach = max(map(len, streams))
        total = n if self.cycle else min(n, -(-reach // length))
        return [self._batch(streams, k * length) for k in range(total)]

    def _batch(self, streams: list[list[tuple[int, bool]]], start: int) -> Any:
        fields = {"data": _data}
        if self.targets:
            fields["targets"] = _target
        if self.is_first:
            fields["is_first"] = _is_first
        if not self.cycle:
            fields["mask"] = _has_item
        made = {name: self._laid_out(field, streams, start) for name, field in fields.items()}
        return made["data"] if len(made) == 1 else made

    def _laid_out(self, field: Callable[..., Any], streams: list[Any], start: int) -> Any:
        if self.seq_len is None:
            return [field(stream, start) for stream in streams]
        steps = range(start, start + self.seq_len)
        if self.batch_first:
            return [[field(stream, step) for step in steps] for stream in streams]
        return [[field(stream, step) for stream in streams] for step in steps]


def _has_item(stream: list[tuple[int, bool]], step: int) -> bool:
    return step < len(stream)


def _data(stream: list[tuple[int, bool]], step: int) -> int:
    return stream[step][0] if step < len(stream) else 0


def _is_first(stream: list[tuple[int, bool]], step: int) -> bool:
    return step < len(stream) and stream[step][1]


def _target(stream: list[tuple[int, bool]], step: int) -> int:
    follows = step + 1 < len(stream) and not stream[step + 1][1]
    return stream[step + 1][0] if follows else IGNORED


def deal(lengths: tuple[int, ...], groups: int) -> list[list[int]]:
    """The longest first, each to the group that has least so far."""
    dealt: list[list[int]] = [[] for _ in range(groups)]
    if len(set(lengths)) == 1:
        return [list(range(group, len(lengths), groups)) for group in range(groups)]
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        least = min(dealt, key=lambda group: sum(lengths[member] for member in group))
        least.append(number)
    return [sorted(group) for group in dealt]


# Batches as plain values


def plain(batch: Any) -> Any:
    """A batch as lists, or as a dict of them if it has several fields."""
    if hasattr(batch, "_asdict"):
        return {name: plain(value) for name, value in batch._asdict().items() if value is not None}
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return np.asarray(batch).tolist() if hasattr(batch, "shape") else batch


def take(loader: Any, n: int) -> list[Any]:
    """The first n batches of the next epoch; its workers are ended."""
    with loader:
        return [plain(batch) for batch in islice(loader, n)]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def cases(**fixed: Any) -> st.SearchStrategy[Case]:
    """Cases of all kinds that have something to read in every position that needs it."""
    drawn = {
        "lengths": st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any).map(tuple),
        "batch_size": st.integers(1, 5),
        "assign": st.sampled_from(["shuffle", "partition", "offset"]),
        "cycle": st.booleans(),
        "seq_len": st.none() | st.integers(1, 6),
        "targets": st.booleans(),
        "is_first": st.booleans(),
        "batch_first": st.booleans(),
        "seed": st.integers(0, 5),
        "given": st.sampled_from(list(GIVEN)),
    }
    built = st.builds(Case, **{**drawn, **{name: st.just(value) for name, value in fixed.items()}})
    return built.map(_sensible)


def _sensible(case: Case) -> Case:
    if case.seq_len is None:
        case = replace(case, batch_first=False)
    if case.assign == "offset" and case.given == "a dataset":
        case = replace(case, given="lists")
    if case.assign == "partition":
        dealt = [sum(case.lengths[number] for number in case_group) for case_group in _groups(case)]
        if not all(dealt):
            case = replace(case, assign="shuffle")
    return case


def _groups(case: Case) -> list[list[int]]:
    known = case.given in OF_KNOWN_LENGTH
    return deal(case.lengths if known else (1,) * len(case.lengths), case.batch_size)

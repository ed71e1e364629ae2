"""Gets the samples of a task by their keys, and makes them a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

from headrace.base.indices import as_index_array
from headrace.base.messages import PackedIndices, PlacedKeys
from headrace.base.randomness import SampleRandomness

_LONGEST_STRIDE = 256
_STRIDE_S = 5e-4

STOP, TASK, POSITION, LISTENS, GATHERS = range(5)
"""The fields of a board: asked to stop, number of the task at work plus one, position of the sample at work (or -1),
whether the worker can be asked for its stack, and whether it may send several batches at a time."""


class Board(Protocol):
    """A few numbers that a worker and its engine both see."""

    def __getitem__(self, field: int, /) -> int: ...

    def __setitem__(self, field: int, value: int, /) -> None: ...


class EndOfStream(Exception):  # noqa: N818 (it is no error, like StopIteration)
    """An iterable dataset has no further batch."""


class Abandoned(Exception):  # noqa: N818 (nor is this)
    """Nobody wants the rest of this batch."""


class NoSampleLeft(Exception):  # noqa: N818 (nor this)
    """All samples of the batch were bad."""


class Builder(Protocol):
    """Takes the samples of one batch as they arrive."""

    def add(self, sample: Any) -> None: ...

    def extend(self, samples: list[Any]) -> None: ...

    def finish(self) -> Any: ...

    @property
    def only_keeps(self) -> bool:
        """Whether samples are only kept, so that they may as well come all at once."""
        ...


class ListBuilder:
    """Gives `collate` all samples at once."""

    only_keeps = True

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._samples: list[Any] = []
        self.add = self._samples.append
        self.extend = self._samples.extend

    def finish(self) -> Any:
        return self._collate(self._samples)


@dataclass
class Watch:
    """How a worker follows the fetching of its samples, from another thread or process.

    Attributes:
        board: is told which sample is at work, and tells when to stop; see `STOP`.
        skip_errors: whether samples that raise are left out.
        leave_out: positions in the batch that must not be touched.
        bad: the keys and errors of the samples that were left out.
    """

    board: Board
    skip_errors: bool = False
    leave_out: tuple[int, ...] = ()
    bad: list[tuple[Any, Exception]] = field(default_factory=list)


class MapFetcher:
    """Fetches from a dataset by key.

    Args:
        collate: what makes a batch of a list of samples, or of a single one if not `batched`.
        batched: whether keys come as batches.
        take: fetches a whole batch at once, if given; for integer keys only.
        build: makes the builder of a batch of so many samples; if None, `collate` gets them as a list.
        randomness: gives each sample its random numbers; if None, they are left to chance.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        batched: bool,
        take: Callable[[Any], Any] | None = None,
        build: Callable[[int], Builder] | None = None,
        watch: Watch | None = None,
        randomness: SampleRandomness | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._take = take
        self._build = build
        self._watch = watch
        self._randomness = randomness
        self._stride = 1  # how many samples are got between looks at the board

    def fetch(self, keys: Any) -> Any:
        """The batch of these keys.

        Raises:
            NoSampleLeft: all samples were bad, and left out.
        """
        if type(keys) is not PlacedKeys:
            return self._fetch(keys)
        if self._randomness is None:
            return self._fetch(keys.keys)
        return self._randomness.make(keys.place, partial(self._fetch_afresh, keys.keys, self._randomness))

    def _fetch_afresh(self, keys: Any, randomness: SampleRandomness) -> Any:
        if self._watch is not None:
            self._watch.bad.clear()
        randomness.enter_batch()
        return self._fetch(keys)

    def _fetch(self, keys: Any) -> Any:
        if not self._batched:
            return self._fetch_single(keys)
        packed = isinstance(keys, PackedIndices)
        whole = self._watch is None or not self._watch.leave_out
        if self._take is not None and whole:
            indices = keys.array if packed else as_index_array(keys)
            if indices is not None and len(indices):
                try:
                    return self._take(indices)
                except Exception:
                    if self._watch is None or not self._watch.skip_errors:
                        raise
        listed = keys.array.tolist() if packed else keys
        get_items = getattr(self._dataset, "__getitems__", None)
        if get_items and whole:
            try:
                samples = get_items(listed)
            except Exception:
                if self._watch is None or not self._watch.skip_errors:
                    raise
            else:
                return self._collate(samples)
        return self._fetch_one_by_one(listed)

    def _fetch_single(self, key: Any) -> Any:
        try:
            if self._watch is not None and self._watch.leave_out:
                raise NoSampleLeft
            for _ in (None,) if self._randomness is None else self._randomness.over((None,)):
                sample = self._dataset[key]
        except Exception as error:
            if self._watch is None or not self._watch.skip_errors:
                raise
            self._watch.bad.append((key, error))
            raise NoSampleLeft from error
        return self._collate(sample)

    def _fetch_one_by_one(self, keys: Any) -> Any:
        dataset = self._dataset
        if self._build is None:
            builder: Builder = ListBuilder(self._collate)
        else:
            keys = keys if hasattr(keys, "__len__") else list(keys)
            builder = self._build(len(keys))
        if self._randomness is not None:
            keys = self._randomness.over(keys)
        if self._watch is None:
            keys = iter(keys)
            for key in keys:
                builder.add(dataset[key])
                if builder.only_keeps:  # known after the first; a comprehension takes a third of the time
                    builder.extend([dataset[key] for key in keys])
            return builder.finish()
        added, board, watch = 0, self._watch.board, self._watch
        if not watch.leave_out and not watch.skip_errors:
            self._add_all(enumerate(keys), builder, board)
            board[POSITION] = -1  # from here on, it is no single sample's fault
            return builder.finish()
        for i, key in enumerate(keys):
            if board[STOP]:
                raise Abandoned
            if i in watch.leave_out:
                continue
            board[POSITION] = i
            try:
                sample = dataset[key]
            except Exception as error:
                if not watch.skip_errors:
                    raise
                watch.bad.append((key, error))
                continue
            builder.add(sample)
            added += 1
        if not added and (watch.bad or watch.leave_out):
            raise NoSampleLeft
        board[POSITION] = -1
        return builder.finish()

    def _add_all(self, keys: Iterator[tuple[int, Any]], builder: Builder, board: Board) -> None:
        """Add the samples of these keys, which come with their positions; quick ones several at a time."""
        dataset, stride = self._dataset, self._stride
        for board[POSITION], key in keys:
            if board[STOP]:
                raise Abandoned
            builder.add(dataset[key])
            while builder.only_keeps:  # known after the first; a comprehension takes two thirds of the time
                if board[STOP]:
                    raise Abandoned
                started = perf_counter()
                samples = [dataset[key] for board[POSITION], key in islice(keys, stride)]
                if not samples:
                    return
                builder.extend(samples)
                self._stride = stride = next_stride(stride, perf_counter() - started)


def next_stride(size: int, seconds: float) -> int:
    """How many samples to get at once, after `size` took so long: looking at each takes as long as quick ones do."""
    return max(min(2 * size, int(size * _STRIDE_S / (seconds + 1e-9)), _LONGEST_STRIDE), 1)

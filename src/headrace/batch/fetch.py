"""Gets the samples of a task and makes them a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

from headrace.base.indices import as_index_array
from headrace.base.messages import PackedIndices, Pull

_LONGEST_STRIDE = 64
_QUICK_S = 1e-4
_MOST_BARREN = 1000  # errors in a row, after which a stream is given up that never says that it has ended

STOP, TASK, POSITION, LISTENS = range(4)
"""The fields of a board: asked to stop, number of the task at work plus one, position of the sample at work (or -1),
and whether the worker can be asked for its stack."""


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

    def finish(self) -> Any: ...


class ListBuilder:
    """Gives `collate` all samples at once."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._samples: list[Any] = []
        self.add = self._samples.append

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
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._take = take
        self._build = build
        self._watch = watch

    def fetch(self, keys: Any) -> Any:
        """The batch of these keys.

        Raises:
            NoSampleLeft: all samples were bad, and left out.
        """
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
        if self._watch is None:
            for key in keys:
                builder.add(dataset[key])
            return builder.finish()
        added, board, watch = 0, self._watch.board, self._watch
        if not watch.leave_out and not watch.skip_errors:
            for board[POSITION], key in enumerate(keys):
                if board[STOP]:
                    raise Abandoned
                builder.add(dataset[key])
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


class IterableFetcher:
    """Fetches from the one iteration over a dataset that it starts.

    Args:
        drop_last: leave out a last batch that is not full.
        build: makes the builder of a batch of at most so many samples; if None, `collate` gets them as a list.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        collate: Callable[[Any], Any],
        *,
        drop_last: bool,
        build: Callable[[int], Builder] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._samples = iter(dataset)
        self._collate = collate
        self._drop_last = drop_last
        self._build = build
        self._watch = watch
        self._ended = False
        self._stride = 1  # how many samples are pulled at once
        self._barren = 0  # errors since the last sample

    def fetch(self, keys: Pull) -> Any:
        """The next batch.

        Raises:
            EndOfStream: there is none.
            NoSampleLeft: all samples were bad, and left out.
        """
        if keys.count is None:
            samples = self._pull(1)
            if samples:
                return self._collate(samples[0])
            raise NoSampleLeft if self._watch is not None and self._watch.bad else EndOfStream
        if self._ended:
            raise EndOfStream
        builder = ListBuilder(self._collate) if self._build is None else self._build(keys.count)
        missing, n = keys.count, 0
        while missing and not self._ended:
            size = min(self._stride, missing)
            missing -= size
            for sample in self._pull(size, keys.count - missing - size):
                builder.add(sample)
                n += 1
        if self._ended and (not n or self._drop_last):
            raise EndOfStream
        if not n:
            raise NoSampleLeft
        if self._watch is not None:
            self._watch.board[POSITION] = -1
        return builder.finish()

    def _pull(self, size: int, position: int = 0) -> list[Any]:
        """The next `size` samples, or fewer at the end; bad ones, which are left out, count too."""
        watch = self._watch
        if watch is not None:
            if watch.board[STOP]:
                raise Abandoned
            watch.board[POSITION] = position if size == 1 else -1
            if watch.skip_errors:
                return self._pull_good(size, watch)
        started = perf_counter()
        samples = list(islice(self._samples, size))
        # Quick samples are pulled by the dozen: looking at each takes as long as they do.
        self._stride = min(2 * size, _LONGEST_STRIDE) if perf_counter() - started < _QUICK_S else 1
        self._ended = len(samples) < size
        return samples

    def _pull_good(self, size: int, watch: Watch) -> list[Any]:
        samples = []
        for _ in range(size):
            try:
                samples.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
            except Exception as error:
                self._barren += 1
                if self._barren > _MOST_BARREN:
                    self._ended = True
                    raise
                watch.bad.append((None, error))
            else:
                self._barren = 0
        return samples

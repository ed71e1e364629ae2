"""Gets the samples of a task and makes them a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

from headrace.base.indices import as_index_array
from headrace.base.messages import PackedIndices, Place, PlacedKeys, Pull, StreamStart
from headrace.base.randomness import SampleRandomness
from headrace.batch.stream_state import begin_stream, knows_state, stream_state

_LONGEST_STRIDE = 256
_HEAP_TYPE = 1 << 9  # the flag of classes that are written in Python
_STRIDE_S = 5e-4
_MOST_BARREN = 1000  # errors in a row, after which a stream is given up that never says that it has ended

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
                self._stride = stride = _next_stride(stride, perf_counter() - started)


class IterableFetcher:
    """Fetches from the one iteration over a dataset that it starts.

    Args:
        drop_last: leave out a last batch that is not full.
        build: makes the builder of a batch of at most so many samples; if None, and where they come all at once,
            `collate` gets them as a list.
        randomness: gives each batch its random numbers; if None, they are left to chance.
        lane: which of several iterations over copies of the dataset this is.
        start: where to begin.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        collate: Callable[[Any], Any],
        *,
        drop_last: bool,
        build: Callable[[int], Builder] | None = None,
        watch: Watch | None = None,
        randomness: SampleRandomness | None = None,
        lane: int = 0,
        start: StreamStart | None = None,
    ) -> None:
        self._dataset = dataset
        self._start = start
        self._collate = collate
        self._drop_last = drop_last
        self._build = build
        self._watch = watch
        self._randomness = randomness
        self._lane = lane
        self._begun = -1  # batches; before the first, the iteration itself is begun
        self._ended = False
        self._tells_state = False
        self._stride = 1  # how many samples are pulled at once
        self._barren = 0  # errors since the last sample
        if randomness is None:
            self._begin()
        elif start is not None:
            self._in_place(start.epoch, self._begin)
        else:
            self._samples: Any = None  # the first task tells the epoch, by which `__iter__` draws

    def _begin(self) -> None:
        start = self._start
        has_ended = start is not None and start.has_ended
        self._samples = iter(()) if has_ended else begin_stream(self._dataset, start)
        # `islice` calls `__iter__` again, with which a dataset that is its own iterator may start over.
        self._is_built_in = not type(self._samples).__flags__ & _HEAP_TYPE
        self._tells_state = knows_state(self._dataset) or knows_state(self._samples)
        self._begun = 0
        if start is not None:
            self._go_to(start)

    def _go_to(self, start: StreamStart) -> None:
        if start.state is not None or start.has_ended:
            self._begun = start.batches
            return
        for _ in range(start.batches):
            # An error ended this batch then, too; it was told, and the iteration went on as it does now.
            with suppress(Exception):
                self._in_place(start.epoch, partial(self._skip, start.size))
            if self._watch is not None:
                self._watch.bad.clear()

    def _skip(self, n: int) -> None:
        while n and not self._ended:
            size = min(self._stride, n)
            self._pull(size)
            n -= size

    def state(self) -> dict[str, Any] | None:
        """What the dataset and its iterator tell of themselves, if they do, and whether they have come to the end."""
        if not self._tells_state:
            return None
        state = stream_state(self._dataset, self._samples)
        return None if state is None else {**state, "has_ended": self._ended}

    def fetch(self, keys: Any) -> Any:
        """The next batch.

        Raises:
            EndOfStream: there is none.
            NoSampleLeft: all samples were bad, and left out.
        """
        if type(keys) is not PlacedKeys:
            return self._fetch(keys)
        if self._samples is None:
            try:
                self._in_place(keys.place.epoch, self._begin)
            except Exception:
                self._samples, self._is_built_in = iter(()), True  # told once; then the stream has ended
                raise
        return self._in_place(keys.place.epoch, partial(self._fetch, keys.keys))

    def _in_place(self, epoch: int, make: Callable[[], Any]) -> Any:
        place = Place(epoch, (self._lane << 48) + self._begun, 0)
        self._begun += 1
        if self._randomness is None:
            return make()
        randomness = self._randomness

        def make_here() -> Any:
            randomness.enter_batch()
            return make()

        return randomness.make(place, make_here)

    def _fetch(self, keys: Pull) -> Any:
        if keys.count is None:
            samples = self._pull(1)
            if samples:
                return self._collate(samples[0])
            raise NoSampleLeft if self._watch is not None and self._watch.bad else EndOfStream
        if self._ended:
            raise EndOfStream
        n, finish = self._pull_all(keys.count) if self._stride >= keys.count else self._pull_by_strides(keys.count)
        if self._ended and (not n or self._drop_last):
            raise EndOfStream
        if not n:
            raise NoSampleLeft
        if self._watch is not None:
            self._watch.board[POSITION] = -1
        return finish()

    def _pull_all(self, count: int) -> tuple[int, Callable[[], Any]]:
        samples = self._pull(count)  # all at once: then they need not be collated as they arrive
        return len(samples), partial(self._collate, samples)

    def _pull_by_strides(self, count: int) -> tuple[int, Callable[[], Any]]:
        """How many samples there were, and what makes a batch of them."""
        builder = ListBuilder(self._collate) if self._build is None else self._build(count)
        asked, n = 0, 0
        while asked < count and not self._ended:
            size = min(self._stride, count - asked)
            samples = self._pull(size, asked)
            builder.extend(samples)
            asked += size
            n += len(samples)
        return n, builder.finish

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
        samples = list(islice(self._samples, size)) if self._is_built_in else self._pull_singly(size)
        self._stride = _next_stride(size, perf_counter() - started)
        self._ended = len(samples) < size
        return samples

    def _pull_singly(self, size: int) -> list[Any]:
        samples = []
        with suppress(StopIteration):
            for _ in range(size):
                samples.append(next(self._samples))  # noqa: PERF401 (a comprehension loses them all at the end)
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


def _next_stride(size: int, seconds: float) -> int:
    """How many samples to get at once, after `size` took so long: looking at each takes as long as quick ones do."""
    return max(min(2 * size, int(size * _STRIDE_S / (seconds + 1e-9)), _LONGEST_STRIDE), 1)

"""Pulls the samples of a task from an iterable dataset, and makes them a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from headrace.base.errors import StateError
from headrace.base.messages import IterableStart, Place, PlacedKeys, Pull
from headrace.base.own_states import knows_state, load_state
from headrace.base.randomness import SampleRandomness
from headrace.base.state import load_worker_generators, save_worker_generators
from headrace.batch.fetch import (
    POSITION,
    STOP,
    Abandoned,
    Builder,
    EndOfStream,
    ListBuilder,
    NoSampleLeft,
    Watch,
    next_stride,
)
from headrace.batch.iterable_state import begin_stream, stream_state

_HEAP_TYPE = 1 << 9  # the flag of classes that are written in Python
_MOST_BARREN = 1000  # errors in a row, after which an iterable is given up that never says that it has ended


class IterableFetcher:
    """Fetches from the one iteration over a dataset that it starts.

    Args:
        drop_last: leave out a last batch that is not full.
        build: makes the builder of a batch of at most so many samples; if None, and where they come all at once,
            `collate` gets them as a list.
        randomness: gives each batch its random numbers; if None, they are left to chance.
        lane: which of several iterations over copies of the dataset this is.
        start: where to begin.
        snapshot_every: after how many batches the dataset is asked for its state.
        saves_generators: whether the generators that it draws from are in the state, too.
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
        start: IterableStart | None = None,
        snapshot_every: int = 1,
        saves_generators: bool = False,
    ) -> None:
        self._dataset = dataset
        self._start = start
        self._snapshot_every = snapshot_every
        self._saves_generators = saves_generators
        self._given = 0 if start is None else start.batches
        self._generators: dict[str, Any] | None = None  # at the beginning, if they are wanted
        self._collate = collate
        self._drop_last = drop_last
        self._build = build
        self._watch = watch
        self._randomness = randomness
        self._lane = lane
        self._begun = -1  # batches; before the first, the iteration itself is begun
        self._ended = False
        self.n_short = -1  # samples in the last batch, if it had fewer than were asked for
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
        state = {} if start is None or start.state is None else start.state
        if start is not None and start.has_ended:
            self._samples = iter(())
            if "dataset" in state:
                load_state(self._dataset, state["dataset"])  # with which it begins the next epoch
            self._load_generators(state)
        elif start is None or start.is_new or not ("dataset" in state or "iterator" in state):
            self._load_generators(state)
            self._generators = save_worker_generators() if self._saves_generators else None
            self._samples = begin_stream(self._dataset, start)
        else:
            self._samples = begin_stream(self._dataset, start)
            self._load_generators(state)
        # `islice` calls `__iter__` again, with which a dataset that is its own iterator may start over.
        self._is_built_in = not type(self._samples).__flags__ & _HEAP_TYPE
        self._tells_state = knows_state(self._dataset) or knows_state(self._samples)
        self._begun = 0
        if start is not None:
            self._go_to(start)

    @staticmethod
    def _load_generators(state: Mapping[str, Any]) -> None:
        if "generators" in state:
            load_worker_generators(state["generators"])

    def _go_to(self, start: IterableStart) -> None:
        if start.has_ended:
            self._begun = start.batches
            return
        first = self._begun = start.batches - start.since
        # Whoever wants the same random numbers again must draw all of them, those of collating included.
        redo = partial(self._skip, start.size or 1)
        if self._saves_generators:
            redo = partial(self._fetch, Pull(start.size))
        for number in range(first, start.batches):
            if self._ended:
                raise StateError(
                    f"The state was taken after {start.batches} batches of {type(self._dataset).__name__}, which ends "
                    f"after {number} now. Start the epoch anew, without the state."
                )
            # An error ended this batch then, too; it was told, and the iteration went on as it does now.
            with suppress(Exception):
                self._in_place(start.epoch, redo)
            if self._watch is not None:
                self._watch.bad.clear()

    def _skip(self, n: int) -> None:
        while n and not self._ended:
            size = min(self._stride, n)
            self._pull(size)
            n -= size

    def state(self, *, is_last: bool = False) -> dict[str, Any] | None:
        """What the dataset and its iterator tell of themselves, if they do, and whether they have come to the end.

        Args:
            is_last: whether no further batch comes; then none has come just now.
        """
        self._given += not is_last
        if not self._tells_state:
            return self._generators_told()
        if self._given % self._snapshot_every and not self._ended:
            return None
        state = stream_state(self._dataset, self._samples)
        if state is None:
            return None
        generators = {"generators": save_worker_generators()} if self._saves_generators else {}
        return {**state, **generators, "has_ended": self._ended}

    def _generators_told(self) -> dict[str, Any] | None:
        """Of a dataset that knows no state, and so is run forward: the generators that it began with, told once.

        At the end, it is those with which the next epoch begins.
        """
        if not self._saves_generators or not (self._given == 1 or self._ended):
            return None
        return {"generators": save_worker_generators() if self._ended else self._generators, "has_ended": self._ended}

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
                self._samples, self._is_built_in = iter(()), True  # told once; then the iterable has ended
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
        builder: Builder | None = None
        if self._stride >= keys.count:  # all at once: then they need not be collated as they arrive
            samples = self._pull(keys.count)
            n = len(samples)
        else:
            builder, n = self._pull_by_strides(keys.count)
        self.n_short = n if n < keys.count else -1
        if self._ended and (not n or self._drop_last):
            raise EndOfStream
        if not n:
            raise NoSampleLeft
        if self._watch is not None:
            self._watch.board[POSITION] = -1  # from here on, it is no single sample's fault
        return self._collate(samples) if builder is None else builder.finish()

    def _pull_by_strides(self, count: int) -> tuple[Builder, int]:
        """What makes a batch of the next samples, and how many there were."""
        builder = ListBuilder(self._collate) if self._build is None else self._build(count)
        asked, n = 0, 0
        while asked < count and not self._ended:
            size = min(self._stride, count - asked)
            samples = self._pull(size, asked)
            builder.extend(samples)
            asked += size
            n += len(samples)
        return builder, n

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
        self._stride = next_stride(size, perf_counter() - started)
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

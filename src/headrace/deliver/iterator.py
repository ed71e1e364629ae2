"""What `iter(loader)` returns."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NoReturn, Protocol

from headrace.base.errors import warn_user
from headrace.base.optional import loaded
from headrace.base.typevars import Batch_co
from headrace.deliver.skipped import SkippedSamples


@dataclass(frozen=True, slots=True)
class PromisedLength:
    """What `len(loader)` said of an iterable dataset."""

    dataset: Any
    samples: int


class EpochBatches(Protocol):
    """Where the batches of an epoch come from."""

    plan: Any

    @property
    def latest(self) -> int:
        """The number of the batch that came last."""

    @property
    def ready(self) -> Iterator[Any] | None:
        """Batches that may be taken without asking, if each is counted in `plan.taken`."""

    def break_off(self, error: BaseException) -> None:
        """One of these could not be taken."""

    def __next__(self) -> Any: ...

    def close(self) -> None:
        """Give up the rest, and end what was started for it."""


class Counts(Protocol):
    """Knows how many batches epochs have."""

    def n_batches(self, epoch: int) -> int: ...


class Timer(Protocol):
    """Hears of the turns of the loop: of those with `batches & mask == 0`, and when one that is open is over."""

    batches: int
    mask: int

    @property
    def open(self) -> Any:
        """The turn that is being timed; None if there is none."""

    def ask(self) -> None:
        """A batch is asked for."""

    def arrive(self) -> None:
        """It is there, and still to be pinned, or moved to a device."""

    def give(self, number: int, batch: Any) -> None:
        """The loop gets it."""

    def stop(self) -> None:
        """There is no further one."""

    def end(self) -> None:
        """What was started for the epoch has ended."""


class _NoBatches:
    """Of an epoch that has not begun, or could not."""

    plan = None
    latest = -1
    ready = None

    def __next__(self) -> NoReturn:
        raise StopIteration

    def break_off(self, error: BaseException) -> None:
        """There is nothing to be taken."""

    def close(self) -> None:
        """Nothing was started."""


class LoaderIterator(Generic[Batch_co]):
    """The batches of one epoch, or with persistent workers of one after the other.

    Guarantees: until its first batch is asked for, nothing is drawn or started for an epoch, and none is counted.
    Iterators that draw from shared generators draw in the order in which they were made, as torch's do: those that wait
    begin as soon as any iterator of their thread is asked for a batch, unless they are gone by then.

    Attributes:
        promise: the length that an iterable dataset was asked for, to warn if it yields more.
        timer: hears of the turns of the loop.
        draws: whether the beginning of its epoch draws from generators that others may draw from, too.
        on_empty: asked if the epoch turns out to have nothing left at its first batch: it may begin the next one.
    """

    def __init__(self) -> None:
        self._counts: Counts | None = None
        self._batches: EpochBatches = _NoBatches()
        self._plan: Any = None
        self._run: Iterator[Any] = iter(())  # batches that lie ready, up to the next turn that is timed
        self._skipped: SkippedSamples | None = None
        self._finish: Callable[[Any], Any] | None = None
        self._profiler: Any = _profiler_of_torch()
        self._stays = False
        self._delivered = self._discarded = 0
        self._begin: Callable[[LoaderIterator], None] | None = None
        self._count: Callable[[], int] | None = None
        self._failure: Exception | None = None
        self.on_empty: Callable[[LoaderIterator], bool] | None = None
        self.draws = False
        self._is_new = False  # nothing was asked of it since it began to wait
        self._beginning = threading.RLock()
        self.timer: Timer | None = None
        self.promise: PromisedLength | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the epoch begins with the next batch that is asked for."""
        return self._begin is not None

    def wait(self, begin: Callable[[LoaderIterator], None], count: Callable[[], int], *, draws: bool) -> None:
        """Begin an epoch as soon as a batch is asked for.

        Args:
            begin: calls `begin` of the iterator that it is given.
            count: tells how many batches the epoch would have that begins now.
            draws: whether its beginning draws from generators that others may draw from, too.
        """
        self.draws = draws
        self._run = iter(())
        self._begin, self._count, self._failure, self._is_new = begin, count, None, True
        if draws:
            _waiting.add(self)

    def begin(
        self,
        batches: EpochBatches,
        counts: Counts,
        skipped: SkippedSamples | None = None,
        *,
        stays: bool = False,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        """Go on with the batches of an epoch.

        Args:
            batches: where they come from.
            counts: knows how many there are.
            skipped: who keeps account of the samples that are left out of the batches, if any may be.
            stays: whether workers are used again for the next epoch.
            finish: applied to each batch at last, e.g. to pin its memory.
        """
        self._batches = batches
        self._plan = batches.plan
        self._run = iter(())
        self._counts = counts
        self._skipped = skipped
        self._stays = stays
        self._finish = finish
        self._profiler = _profiler_of_torch()
        self.on_empty = None
        self._delivered = self._discarded = 0
        self.timer = None
        self.promise = None

    def begin_now(self) -> None:
        """Begin the epoch that waits for its first batch, and those that others have waited for as long.

        Raises:
            Exception: what kept it from beginning; it has no batches, then.
        """
        for iterator in _waiting.take():
            iterator._try_to_begin()
        self._try_to_begin()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # the traceback knows this frame; so nothing is kept alive in a circle

    def _try_to_begin(self) -> None:
        with self._beginning:  # another thread may ask for the first batch just now
            if self._begin is None:
                return
            try:
                self._begin(self)
            except Exception as error:  # noqa: BLE001 (raised when its first batch is due)
                self._failure = error
            self._begin = self._count = None

    def discard(self, n: int) -> None:
        """Pass over the next n batches."""
        skips, self._plan.skips = self._plan.skips, ()  # which are to be counted, too
        for _ in range(n):
            try:
                next(self._batches)
            except StopIteration:
                self._end(None)
                return
            self._delivered += 1
            self._discarded += 1
        self._plan.skips = skips

    def ask_for_each(self) -> None:
        """Take no batch any more that lies ready, without asking for it."""
        self._run = iter(())

    @property
    def plan(self) -> Any:
        """Of the epoch."""
        return self._plan

    def __iter__(self) -> LoaderIterator[Batch_co]:
        return self

    def __next__(self) -> Batch_co:
        """The next batch.

        Raises:
            Exception: what the user's code raised for this batch; the next call goes on with the one after it.
            TooManyBadSamplesError: all batches of the epoch were left out.
            StopIteration: the epoch is over.
        """
        try:
            for batch in self._run:
                self._plan.taken += 1
                return batch  # type: ignore[no-any-return]
        except BaseException as error:
            self._batches.break_off(error)
            raise
        if self._profiler is not None and self._profiler.is_recording():
            with self._profiler.record():
                return self._next()  # type: ignore[no-any-return]
        return self._next()  # type: ignore[no-any-return]

    def _next(self) -> Any:
        if _waiting.iterators or self._is_new:
            self.begin_now()
            if self._is_new:
                self._is_new = False
                return self._first()
        if self._plan is not None and self._plan.taken:
            self._plan.catch_up()
        timer = self.timer
        is_timed = timer is not None and not (timer.batches & timer.mask and timer.open is None)
        if timer is not None and is_timed:
            timer.ask()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end(timer)
            raise
        if self._finish is not None:
            if timer is not None:
                timer.arrive()
            batch = self._finish(batch)
        self._delivered += 1
        if timer is not None:
            timer.batches += 1
            if is_timed:
                timer.give(self._batches.latest, batch)
        if self.promise is not None and self._delivered > self.promise.samples:
            self._warn_of_length(self.promise)
        if not is_timed and self._finish is None and (self._profiler is None or not self._profiler.is_recording()):
            ready = self._batches.ready
            if ready is not None:
                self._run = ready if timer is None else islice(ready, _untimed(timer.batches, timer.mask))
        return batch

    def _first(self) -> Any:
        """The first batch. A state that was taken after the last batch of an epoch leads to the next epoch."""
        on_empty, self.on_empty = self.on_empty, None
        try:
            return self._next()
        except StopIteration:
            if on_empty is None or self._delivered > self._discarded or not on_empty(self):
                raise
        return self._next()

    def _end(self, timer: Timer | None) -> None:
        if self.plan is None:
            return
        self.plan.is_over = True
        if timer is not None:
            timer.stop()
        if not self._stays:
            self._batches.close()
        if timer is not None:
            timer.end()
        if self._skipped is not None:
            self._skipped.check_epoch(self.plan.first + self._delivered)

    def close(self) -> None:
        """End the epoch here, and the workers too."""
        self._run = iter(())
        self._begin = self._count = self._failure = self.on_empty = None
        self._batches.close()

    def _warn_of_length(self, promise: PromisedLength) -> None:
        advice = (
            " With several workers, each iterates over its own copy of the dataset: let it read its own part only, by "
            "headrace.get_worker_info()."
        )
        advice = advice if self.plan.workers > 1 else ""
        warn_user(
            f"Length of IterableDataset {promise.dataset} was reported to be {promise.samples} (when accessing "
            f"len(dataloader)), but {self._delivered} samples have been fetched.{advice}"
        )

    def __len__(self) -> int:
        if self._count is not None:
            return self._count()
        return 0 if self._counts is None else self._counts.n_batches(self.plan.epoch)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader.")


def _profiler_of_torch() -> Any:
    """What tells whether torch's profiler records, and marks ranges for it; None if torch is not in use."""
    if loaded("torch.autograd") is None:
        return None
    from headrace.frameworks import torch_profiler

    return torch_profiler


def _untimed(number: int, mask: int) -> int:
    """How many numbers, from this one on, lie before the next one with `number & mask == 0`.

    Args:
        mask: ones side by side.
    """
    if not number & mask:
        return 0
    period = mask + (mask & -mask)
    return period - number % period


class _WaitingIterators(threading.local):
    """The iterators of a thread that will draw as they begin, in the order in which they were made."""

    def __init__(self) -> None:
        self.iterators: list[weakref.ref[LoaderIterator]] = []

    def add(self, iterator: LoaderIterator) -> None:
        self.iterators = [one for one in self.iterators if one() not in (None, iterator)]
        self.iterators.append(weakref.ref(iterator))

    def take(self) -> Iterator[LoaderIterator]:
        """Those that are still there. They are taken one by one: Ctrl-C may leave some to the next who asks."""
        while self.iterators:
            iterator = self.iterators.pop(0)()
            if iterator is not None:
                yield iterator


_waiting = _WaitingIterators()


class OpenIterators:
    """The iterators of a loader that somebody still holds. They belong to this process: a pickled copy has none."""

    def __init__(self) -> None:
        # Not a WeakSet, which has callbacks in Python: an interrupt that is raised in one is lost.
        self._refs: list[weakref.ref[LoaderIterator]] = []

    def add(self, iterator: LoaderIterator) -> None:
        self._refs = [ref for ref in self._refs if ref() not in (None, iterator)]
        self._refs.append(weakref.ref(iterator))

    def close(self) -> None:
        """End the epochs of all of them, and their workers."""
        refs, self._refs = self._refs, []
        for ref in refs:
            iterator = ref()
            if iterator is not None:
                iterator.close()

    def __reduce__(self) -> Any:
        return OpenIterators, ()

"""What `iter(loader)` returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from headrace.base.progress import Progress
from headrace.base.warning import warn_user
from headrace.deliver.skipped import SkippedSamples


@dataclass(frozen=True, slots=True)
class PromisedLength:
    """What `len(loader)` said of an iterable dataset."""

    dataset: Any
    samples: int


class Source(Protocol):
    """Where the batches of an epoch come from."""

    @property
    def latest(self) -> int:
        """The number of the batch that came last."""

    def __next__(self) -> Any: ...

    def close(self) -> None:
        """Give up the rest, and end what was started for it."""


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

    def end(self) -> None:
        """There is no further one."""


class LoaderIterator:
    """The batches of one epoch, or with persistent workers of one after the other.

    Args:
        batches: where they come from.
        index_sampler: what `len` of the iterator is the length of.
        promise: the length that an iterable dataset was asked for, to warn if it yields more.
        skipped: who keeps account of the samples that are left out of the batches, if any may be.
        progress: is told when the epoch is over.
        workers: how many workers there are.
        stays: whether the source is used again for the next epoch.
        finish: applied to each batch at last, e.g. to pin its memory.
    """

    def __init__(
        self,
        batches: Source,
        index_sampler: Any,
        promise: PromisedLength | None,
        skipped: SkippedSamples | None = None,
        progress: Progress | None = None,
        *,
        workers: int = 0,
        stays: bool = False,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._index_sampler: Sized = index_sampler
        self._finish = finish
        self._workers = workers
        self._stays = stays
        self.begin(batches, promise, skipped, progress)

    def begin(
        self,
        batches: Source,
        promise: PromisedLength | None,
        skipped: SkippedSamples | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Start over with the batches of another epoch."""
        self._batches = batches
        self._progress = progress
        self._promise = promise
        self._skipped = skipped
        self._delivered = 0
        self._timer: Timer | None = None

    def time(self, timer: Timer) -> None:
        """Tell `timer` of the turns of this epoch from now on."""
        self._timer = timer

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised for this batch; the next call goes on with the one after it.
            TooManyBadSamplesError: all batches of the epoch were left out.
            StopIteration: the epoch is over.
        """
        timer = self._timer
        if timer is None or (timer.batches & timer.mask and timer.open is None):
            return self._advance(timer)
        timer.ask()
        batch = self._advance(timer)
        timer.give(self._batches.latest, batch)
        return batch

    def _advance(self, timer: Timer | None) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if timer is not None:
                timer.end()
            if self._progress is not None:
                self._progress.is_over = True
            if not self._stays:
                self._batches.close()
            if self._skipped is not None:
                before = 0 if self._progress is None else self._progress.first
                self._skipped.check_epoch(before + self._delivered)
            raise
        if self._finish is not None:
            if timer is not None:
                timer.arrive()
            batch = self._finish(batch)
        if timer is not None:
            timer.batches += 1
        self._delivered += 1
        if self._promise is not None and self._delivered > self._promise.samples:
            self._warn_of_length(self._promise)
        return batch

    def close(self) -> None:
        """End the epoch here, and the workers too."""
        self._batches.close()

    def _warn_of_length(self, promise: PromisedLength) -> None:
        advice = (
            " With several workers, each iterates over its own copy of the dataset: let it read its own part only, by "
            "headrace.get_worker_info()."
        )
        warn_user(
            f"Length of IterableDataset {promise.dataset} was reported to be {promise.samples} (when accessing "
            f"len(dataloader)), but {self._delivered} samples have been fetched.{advice if self._workers > 1 else ''}"
        )

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader.")


class OpenIterators(weakref.WeakSet[LoaderIterator]):
    """The iterators of a loader that somebody still holds. They belong to this process: a pickled copy has none."""

    def close(self) -> None:
        """End the epochs of all of them, and their workers."""
        for iterator in list(self):
            iterator.close()
        self.clear()

    def __reduce__(self) -> Any:
        return OpenIterators, ()

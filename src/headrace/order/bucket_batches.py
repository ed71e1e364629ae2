"""Batches of samples of similar length, so that little is padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from headrace.base.generators import derive_key
from headrace.base.indices import Indices
from headrace.order.batch_order_sampler import BatchOrderSampler, checked_int
from headrace.order.permutation import Permutation

_BATCHES_PER_WINDOW = 100
_COUNTED_AT_ONCE = 2**18  # samples
_UNLIMITED = 2**62  # two of them still fit int64


class BucketBatchSampler(BatchOrderSampler):
    """Batches of samples of similar length, in random order: for `batch_sampler` of headrace's or torch's DataLoader.

    The shuffled samples are cut into windows. Each window is sorted by length, cut into batches, and its batches are
    shuffled. So a batch holds neighbours in length, while what meets in a window is random, and new in every epoch.

    Guarantees: every sample comes exactly once per epoch; with `batch_size` alone, every batch but the last one of the
    epoch is full. See `BatchOrderSampler` for epochs and for continuing after a stop.

    Args:
        lengths: one int per sample: a list, array or tensor. See `sample_lengths` if you have none.
        batch_size: the most samples in a batch.
        max_tokens: the most tokens in a batch when padded: samples in it times its longest length. Either this or
            `batch_size` must be given; if both are, both hold.
        window: how many samples are sorted at a time: more waste less padding, fewer mix better. About 100 batches if
            None; rounded up to whole batches.
        shuffle: else samples keep their order except within a window, where the longest come first, in every epoch.
        drop_last: leave out a last batch that is not full, of samples that are others in every epoch.
        oversized: "raise", or "alone" to make a sample that has more than `max_tokens` a batch of its own.

    Raises:
        TypeError: `lengths` are not ints.
        ValueError: a length is negative, or more than `max_tokens`; another argument is wrong, or excludes another.

    Examples:
        >>> sampler = BucketBatchSampler([2, 9, 3, 8, 2, 9], batch_size=2, shuffle=False)
        >>> list(sampler)
        [[1, 5], [3, 2], [0, 4]]
        >>> list(BucketBatchSampler([2, 9, 3, 8, 2, 9], max_tokens=18, shuffle=False))
        [[1, 5], [3, 2], [0, 4]]
    """

    def __init__(
        self,
        lengths: Any,
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        window: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        oversized: Literal["raise", "alone"] = "raise",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        _check_sizes(batch_size, max_tokens, drop_last)
        self.lengths = _as_lengths(lengths)
        if oversized not in ("raise", "alone"):
            raise ValueError(f"oversized must be 'raise' or 'alone', got {oversized!r}.")
        if max_tokens is not None and oversized == "raise":
            _check_fit(self.lengths, max_tokens)
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._limits = _Limits(_UNLIMITED if batch_size is None else batch_size, max_tokens)
        if window is None:
            mean = self.lengths.mean() if len(self.lengths) else 1
            window = _BATCHES_PER_WINDOW * int(self._limits.fit(np.array([mean], dtype=np.int64))[0])
        whole = 1 if batch_size is None else batch_size
        self.window = -(-checked_int("window", window, at_least=1) // whole) * whole

    def seeded(self, seed: int, epoch: int) -> BucketBatchOrder:
        """The batches of one epoch."""
        n = len(self.lengths)
        if self.drop_last and self.batch_size is not None:
            n -= n % self.batch_size
        return BucketBatchOrder(self.lengths, n, self._limits, self.window, (seed, epoch) if self.shuffle else None)


class BucketBatchOrder:
    """The batches of one epoch of a `BucketBatchSampler`.

    Guarantees: memory for one window at a time, and for the number of batches in each window if that differs.

    Args:
        n: how many samples to use, of those that there are.
        window: in samples; a multiple of the batch size.
        randomness: a seed and an epoch; None for the natural order.
    """

    def __init__(
        self, lengths: Indices, n: int, limits: _Limits, window: int, randomness: tuple[int, int] | None
    ) -> None:
        self._lengths = lengths
        self._n = n
        self._limits = limits
        self._window = window
        self._randomness = randomness
        # All of them are shuffled, and then the first n used, so that it is not always the same ones that are left out.
        self._shuffled = (
            None if randomness is None else Permutation(len(lengths), derive_key(*randomness, "bucket samples"))
        )
        self._ends: Indices | None = None
        self._latest: tuple[int, list[Indices]] | None = None

    def __len__(self) -> int:
        if self._limits.are_even:
            return -(-self._n // self._limits.batch_size)
        ends = self._batch_ends()
        return int(ends[-1]) if len(ends) else 0

    def batch(self, number: int) -> Indices:
        if self._limits.are_even:
            window, place = divmod(number, self._window // self._limits.batch_size)
        else:
            ends = self._batch_ends()
            window = int(np.searchsorted(ends, number, side="right"))
            place = number - (int(ends[window - 1]) if window else 0)
        return self._batches_of(window)[place]

    def _batches_of(self, window: int) -> list[Indices]:
        if self._latest is None or self._latest[0] != window:
            self._latest = (window, self._cut(window))
        return self._latest[1]

    def _cut(self, window: int) -> list[Indices]:
        """The batches of a window, in their order."""
        start = window * self._window
        samples, lengths = self._by_length(start, 1, min(self._window, self._n - start))
        steps = self._limits.fit(lengths[0]).tolist()
        borders = [0]
        while borders[-1] < len(steps):
            borders.append(borders[-1] + steps[borders[-1]])
        batches = [samples[0, a:b] for a, b in pairwise(borders)]
        if self._randomness is None:
            return batches
        # A last batch that is not full stays the last one of the epoch.
        n_shuffled = len(steps) // self._limits.batch_size if self._limits.are_even else len(batches)
        key = derive_key(*self._randomness, f"bucket window {window}")
        order = Permutation(n_shuffled, key).at(np.arange(n_shuffled))
        return [batches[i] for i in order.tolist()] + batches[n_shuffled:]

    def _by_length(self, start: int, windows: int, size: int) -> tuple[Indices, Indices]:
        """The samples of windows of one size that begin at position `start`, longest first, and their lengths."""
        positions = np.arange(start, start + windows * size)
        samples = (positions if self._shuffled is None else self._shuffled.at(positions)).reshape(windows, size)
        lengths = self._lengths[samples].astype(np.int64, copy=False)
        order = np.argsort(-lengths, axis=1, kind="stable")
        return np.take_along_axis(samples, order, axis=1), np.take_along_axis(lengths, order, axis=1)

    def _batch_ends(self) -> Indices:
        """The number of batches up to the end of each window."""
        if self._ends is None:
            whole, rest = divmod(self._n, self._window)
            at_once = max(1, _COUNTED_AT_ONCE // self._window)
            parts = [(first, min(at_once, whole - first), self._window) for first in range(0, whole, at_once)]
            parts += [(whole, 1, rest)] if rest else []
            counts = [self._count(first * self._window, windows, size) for first, windows, size in parts]
            self._ends = np.cumsum(np.concatenate([np.empty(0, np.int64), *counts]))
        return self._ends

    def _count(self, start: int, windows: int, size: int) -> Indices:
        """How many batches each of these windows is cut into: `_cut`, in all of them at the same time."""
        steps = self._limits.fit(self._by_length(start, windows, size)[1])
        counts = np.zeros(windows, dtype=np.int64)
        borders = np.zeros(windows, dtype=np.int64)
        unfinished = np.arange(windows)
        while len(unfinished):
            borders[unfinished] += steps[unfinished, borders[unfinished]]
            counts[unfinished] += 1
            unfinished = unfinished[borders[unfinished] < size]
        return counts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ends": None, "_latest": None}


def sample_lengths(dataset: Iterable[Any], length: Callable[[Any], int] = len) -> Indices:
    """The length of every sample, for `BucketBatchSampler`. Fetches the whole dataset once: keep the result.

    Args:
        dataset: samples by index with a `__len__`, or any iterable of samples.
        length: how long a sample is.

    Examples:
        >>> sample_lengths([{"tokens": [1, 2, 3]}, {"tokens": [4]}], lambda sample: len(sample["tokens"]))
        array([3, 1])
    """
    by_index: Any = dataset
    is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    samples = (by_index[i] for i in range(len(by_index))) if is_indexed else dataset
    return np.fromiter(map(length, samples), dtype=np.int64)


class _Limits(NamedTuple):
    """How large a batch may be."""

    batch_size: int
    max_tokens: int | None

    @property
    def are_even(self) -> bool:
        """Whether every batch has the same number of samples."""
        return self.max_tokens is None

    def fit(self, longest: Indices) -> Indices:
        """How many samples go into a batch, for each length that its longest one may have. At least one."""
        if self.max_tokens is None:
            return np.full(longest.shape, self.batch_size, dtype=np.int64)
        fitting: Indices = min(self.max_tokens, _UNLIMITED) // np.maximum(longest, 1)
        return fitting.clip(1, self.batch_size)


def _check_sizes(batch_size: Any, max_tokens: Any, drop_last: Any) -> None:
    if batch_size is None and max_tokens is None:
        raise ValueError("batch_size or max_tokens must be given: one of them says how large a batch is.")
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0):
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size!r}.")
    if max_tokens is not None:
        checked_int("max_tokens", max_tokens, at_least=1)
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last!r}.")
    if drop_last and max_tokens is not None:
        raise ValueError("drop_last is mutually exclusive with max_tokens: no batch is full or not. Leave it out.")


def _as_lengths(lengths: Any) -> Indices:
    try:
        array = np.asarray(lengths)
    except ValueError:  # lists of different lengths
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise TypeError(
            f"lengths must be one int per sample, got {type(lengths).__name__}: {lengths!r:.100}. For the lengths "
            "of the samples of a dataset pass sample_lengths(dataset); for seconds, count milliseconds."
        )
    if len(array) and array.min() < 0:
        i = int(array.argmin())
        raise ValueError(f"lengths must not be negative, got {array[i]} for sample {i}.")
    return array if len(array) else np.empty(0, dtype=np.int64)


def _check_fit(lengths: Indices, max_tokens: int) -> None:
    n_oversized = int((lengths > max_tokens).sum())
    if n_oversized:
        i = int(lengths.argmax())
        raise ValueError(
            f"max_tokens must be at least the longest length, got max_tokens={max_tokens}, and {n_oversized} longer "
            f"samples: sample {i} has {lengths[i]}. Pass oversized='alone' to give each of them a batch of its own, or "
            "leave them out of the dataset."
        )

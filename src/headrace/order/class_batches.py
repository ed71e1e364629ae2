"""Batches of a few classes with several samples each, for losses that compare samples with each other."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any, Literal

import numpy as np

from headrace.base.generators import derive_key
from headrace.base.indices import Indices
from headrace.order.batch_order_sampler import BatchOrderSampler, checked_int
from headrace.order.counter_rng import key_words


class ClassBatchSampler(BatchOrderSampler):
    """Batches of `classes_per_batch` different classes with `samples_per_class` samples each, class by class.

    Guarantees: in an epoch, all classes come equally often, give or take one time, and a sample comes again only when
    all others of its class have come. The samples of a batch are all different, except those that fill up a small
    class. See `BatchOrderSampler` for epochs and for continuing after a stop.

    Args:
        labels: one label per sample: a list, an array or a tensor, of numbers, strings or anything else NumPy can sort.
        batches_per_epoch: if None, as many as have room for all samples. Classes are drawn equally often however large
            they are, so an epoch repeats samples of small classes, and has a part of the large ones, each time another.
        small_classes: what to do with classes of fewer than `samples_per_class` samples: "repeat" some of them in the
            same batch, or "drop" the class.

    Raises:
        TypeError: a number is not an int.
        ValueError: `labels` is not one-dimensional, there are fewer classes than `classes_per_batch`, or another
            argument is wrong.

    Examples:
        >>> labels = ["ann", "bob", "cy", "ann", "bob", "cy", "ann", "bob"]
        >>> sampler = ClassBatchSampler(labels, classes_per_batch=2, samples_per_class=2)
        >>> first, second = ([labels[i] for i in batch] for batch in sampler)
        >>> first[0] == first[1] != first[2] == first[3]
        True
    """

    def __init__(
        self,
        labels: Iterable[Any],
        classes_per_batch: int,
        samples_per_class: int,
        *,
        batches_per_epoch: int | None = None,
        small_classes: Literal["repeat", "drop"] = "repeat",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.classes_per_batch = checked_int("classes_per_batch", classes_per_batch, at_least=1)
        self.samples_per_class = checked_int("samples_per_class", samples_per_class, at_least=1)
        self.batch_size = classes_per_batch * samples_per_class
        self.drop_last = False  # every batch is full; some trainers ask
        if small_classes not in ("repeat", "drop"):
            raise ValueError(f"small_classes must be 'repeat' or 'drop', got {small_classes!r}.")
        classes = _samples_by_class(labels)
        self._classes = [c for c in classes if small_classes == "repeat" or len(c) >= samples_per_class]
        if len(self._classes) < classes_per_batch:
            dropped = f", {len(classes) - len(self._classes)} smaller ones dropped" if small_classes == "drop" else ""
            raise ValueError(
                f"classes_per_batch must be at most the number of classes, got classes_per_batch={classes_per_batch} "
                f"and {len(self._classes)} classes{dropped}."
            )
        if batches_per_epoch is None:
            batches_per_epoch = -(-sum(map(len, self._classes)) // self.batch_size)
        self.batches_per_epoch = checked_int("batches_per_epoch", batches_per_epoch, at_least=1)

    def seeded(self, seed: int, epoch: int) -> ClassBatchOrder:
        """The batches of one epoch."""
        shape = (self.classes_per_batch, self.samples_per_class)
        return ClassBatchOrder(self._classes, shape, self.batches_per_epoch, seed, epoch)


class ClassBatchOrder:
    """The batches of one epoch of a `ClassBatchSampler`.

    Args:
        classes: the samples of each class.
        shape: classes per batch, and samples per class.
    """

    def __init__(self, classes: list[Indices], shape: tuple[int, int], n_batches: int, seed: int, epoch: int) -> None:
        self._classes = classes
        self._shape = shape
        self._n_batches = n_batches
        self._randomness = (seed, epoch)
        self._class_groups = EvenGroups(len(classes), shape[0], derive_key(seed, epoch, "classes"))
        self._sample_groups: dict[int, EvenGroups] = {}

    def __len__(self) -> int:
        return self._n_batches

    def batch(self, number: int) -> Indices:
        chosen = self._class_groups.group(number)
        # Each class comes once per round of all classes, so the round tells how often it has come before.
        rounds = (number * self._shape[0] + np.arange(self._shape[0])) // len(self._classes)
        return np.concatenate([self._samples(c, r) for c, r in zip(chosen.tolist(), rounds.tolist(), strict=True)])

    def _samples(self, class_: int, appearance: int) -> Indices:
        samples = self._classes[class_]
        groups = self._sample_groups.get(class_)
        if groups is None:
            key = derive_key(*self._randomness, f"samples of class {class_}")
            groups = self._sample_groups[class_] = EvenGroups(len(samples), self._shape[1], key)
        return samples[groups.group(appearance)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sample_groups": {}}


class EvenGroups:
    """An endless sequence of random groups of `size` items out of `n`, readable at any place.

    Guarantees: of the groups one after the other, every `n` items are a round, in which each item comes once. The items
    of a group are different, even where a round ends within it. If `n` is less than `size`, each group has every item
    `size // n` times, and only the rest of it is drawn like this.

    Within a cycle of `size / gcd(n, size)` rounds, which ends where a group ends too, each round depends on the one
    before it. So reading at any place makes the rounds of one cycle at most; reading on makes each of them once.
    """

    def __init__(self, n: int, size: int, key: int) -> None:
        self._n = n
        self._all = np.tile(np.arange(n), size // n if size > n else 0)
        self._size = size - len(self._all)
        self._key = key
        self._latest = (-1, 0, self._all)  # cycle, round in it, items of that round

    def group(self, number: int) -> Indices:
        if self._size == 0:
            return self._all
        cycle, place = divmod(number, self._n // gcd(self._n, self._size))
        round_, start = divmod(place * self._size, self._n)
        group = self._items(cycle, round_)[start : start + self._size]
        missing = self._size - len(group)
        if missing:
            group = np.concatenate([group, self._items(cycle, round_ + 1)[:missing]])
        return np.concatenate([self._all, group]) if len(self._all) else group

    def _items(self, cycle: int, round_: int) -> Indices:
        """The items of a round, in their order."""
        latest_cycle, latest, items = self._latest
        if latest_cycle != cycle or latest > round_:
            latest, items = 0, self._shuffled(cycle, 0)
        for following in range(latest + 1, round_ + 1):
            begun = following * self._n % self._size
            items = _continue_group(items[self._n - begun :], self._size, self._shuffled(cycle, following))
        self._latest = (cycle, round_, items)
        return items

    def _shuffled(self, cycle: int, round_: int) -> Indices:
        # All of it is needed at once, and there the order of random words is had sooner than a `Permutation`.
        words = key_words(derive_key(self._key, cycle, f"round {round_}"), self._n)
        return np.argsort(words, kind="stable")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": (-1, 0, self._all)}


def _continue_group(begun: Indices, size: int, items: Indices) -> Indices:
    """The items, so that the first of them complete a group of `size` that begins with `begun`, all different."""
    if len(begun) == 0:
        return items
    new = np.flatnonzero(~np.isin(items, begun))[: size - len(begun)]
    return np.concatenate([items[new], np.delete(items, new)])


def _samples_by_class(labels: Iterable[Any]) -> list[Indices]:
    """The indices of the samples of each class, classes in the order of their labels."""
    array = np.asarray(labels if hasattr(labels, "__array__") else list(labels))
    if array.ndim != 1:
        raise ValueError(f"labels must be one label per sample, got an array of shape {array.shape}.")
    _, class_of, counts = np.unique(array, return_inverse=True, return_counts=True)
    by_class = np.argsort(class_of, kind="stable")
    return np.split(by_class, np.cumsum(counts)[:-1]) if len(counts) else []

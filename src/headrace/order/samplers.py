"""torch's samplers: the same names, arguments and draws; indices come as arrays where headrace itself reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from headrace.base.generators import derive_key
from headrace.base.indices import Indices, as_index_array
from headrace.base.user_classes import Adoptable, adopted
from headrace.frameworks.framework import random_source
from headrace.frameworks.numpy_arrays import as_array
from headrace.order.draws import NaturalOrder, PickedOrder, UniformDraws, draw_by_weight, pick_by_weight
from headrace.order.order import Order
from headrace.order.permutation import Permutation, RepeatedPermutation

T_co = TypeVar("T_co", covariant=True)

# torch draws with replacement this many at a time; the state it leaves its generator in depends on it.
_DRAWS_AT_ONCE = 32
_SEQUENTIAL_CHUNK = 2**16


@adopted("torch.utils.data.sampler")
class Sampler(Adoptable[T_co]):
    """Yields the keys of samples in the order they are to be fetched. Subclasses write `__iter__`, mostly `__len__`."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__.")


class ChunkedSampler(Sampler[int]):
    """A sampler of integer indices that come as arrays, so that loading need not handle single ones.

    Subclasses write `chunks`: int64 arrays of any lengths, which one after the other are the order.
    """

    def chunks(self) -> Iterator[Indices]:
        raise NotImplementedError(f"{type(self).__name__} must implement chunks.")

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(chunk.tolist() for chunk in self.chunks())


def length_of(data_source: Any) -> int:
    """The length of the data, and if there is none, what to do about it."""
    try:
        return len(data_source)
    except TypeError as error:
        raise TypeError(
            f"{error}. A dataset by key needs `__len__`, or a sampler that knows the keys; a stream must be an "
            "IterableDataset."
        ) from error


@adopted("torch.utils.data.sampler")
class SequentialSampler(ChunkedSampler):
    """0, 1, 2, … up to the length of the data."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def chunks(self) -> Iterator[Indices]:
        n = length_of(self.data_source)
        for start in range(0, n, _SEQUENTIAL_CHUNK):
            yield np.arange(start, min(start + _SEQUENTIAL_CHUNK, n), dtype=np.int64)

    def __iter__(self) -> Iterator[int]:
        return iter(range(length_of(self.data_source)))

    def seeded(self, seed: int, epoch: int) -> Order:
        """The order of an epoch as a function of the position; here, of nothing else."""
        return NaturalOrder(length_of(self.data_source))

    def __len__(self) -> int:
        return length_of(self.data_source)


@adopted("torch.utils.data.sampler")
class RandomSampler(ChunkedSampler):
    """A shuffle of the data, or draws with replacement.

    Args:
        num_samples: how many to draw; the length of the data if None. May exceed it: then several shuffles follow.
        generator: a torch or NumPy generator to draw from. If None, each epoch is seeded from the global one.
        library: whose global generator that is: "torch", "numpy", or "auto" for torch if it is installed.

    Raises:
        TypeError: `replacement` is not a bool.
        ValueError: `num_samples` is not a positive int.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
        *,
        library: str = "auto",
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        self.library = library
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement!r}.")
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={self.num_samples!r}. "
                "(It is the length of the data if not given: is the dataset empty?)"
            )

    @property
    def num_samples(self) -> int:
        return length_of(self.data_source) if self._num_samples is None else self._num_samples

    def chunks(self) -> Iterator[Indices]:
        n = length_of(self.data_source)
        source = random_source(self.generator, self.library)
        if self.generator is None:
            source = source.fresh()
        if self.replacement:
            for _ in range(self.num_samples // _DRAWS_AT_ONCE):
                yield source.integers(n, _DRAWS_AT_ONCE)
            yield source.integers(n, self.num_samples % _DRAWS_AT_ONCE)
        else:
            for _ in range(self.num_samples // n):
                yield source.permutation(n)
            rest = self.num_samples % n
            # A user's own generator is drawn from even if nothing of it is needed: torch leaves it in that state.
            if rest or self.generator is not None:
                yield source.permutation(n)[:rest]

    def seeded(self, seed: int, epoch: int) -> Order | None:
        """The order of an epoch as a function of the position; None if a generator was given, for that one decides."""
        if self.generator is not None:
            return None
        n = length_of(self.data_source)
        if self.replacement:
            return UniformDraws(n, self.num_samples, derive_key(seed, epoch, "draws with replacement"))
        return RepeatedPermutation(n, self.num_samples, derive_key(seed, epoch, "shuffle"))

    def __len__(self) -> int:
        return self.num_samples


@adopted("torch.utils.data.sampler")
class SubsetRandomSampler(Sampler[Any]):
    """The given indices, shuffled.

    Args:
        generator: a torch or NumPy generator to draw from; the global one if None.
        library: whose global generator that is: "torch", "numpy", or "auto" for torch if it is installed.
    """

    def __init__(self, indices: Sequence[Any], generator: Any = None, *, library: str = "auto") -> None:
        self.indices = indices
        self.generator = generator
        self.library = library

    def __iter__(self) -> Iterator[Any]:
        for i in random_source(self.generator, self.library).permutation(len(self.indices)).tolist():
            yield self.indices[i]

    def seeded(self, seed: int, epoch: int) -> Order | None:
        """The order of an epoch as a function of the position; None if keys are no ints, or a generator was given."""
        if self.generator is not None:
            return None
        indices = as_index_array(as_array(self.indices) if hasattr(self.indices, "detach") else self.indices)
        if indices is None:
            return None
        shuffle = Permutation(len(indices), derive_key(seed, epoch, "shuffle of given indices"))
        return PickedOrder(indices.copy(), shuffle)  # what becomes of the user's list must not change a running epoch

    def __len__(self) -> int:
        return len(self.indices)


@adopted("torch.utils.data.sampler")
class WeightedRandomSampler(ChunkedSampler):
    """Indices drawn in proportion to their weights, of which there may be any number (torch stops at 2**24).

    Args:
        weights: one weight per sample, of any sum: a list, an array or a tensor; `class_weights(labels)` makes them.
        generator: a torch or NumPy generator to draw from; the global one if None.
        library: whose global generator that is: "torch", "numpy", or "auto" for torch if it is installed.

    Raises:
        ValueError: `num_samples` is not a positive int, `replacement` not a bool, or `weights` not one-dimensional.
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
        *,
        library: str = "auto",
    ) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples!r}.")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement!r}.")
        self.weights = random_source(generator, library).as_weights(weights)
        if len(self.weights.shape) != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}."
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator
        self.library = library

    def chunks(self) -> Iterator[Indices]:
        source = random_source(self.generator, self.library)
        yield source.weighted(self.weights, self.num_samples, self.replacement)

    def seeded(self, seed: int, epoch: int) -> Order | None:
        """The order of an epoch as a function of the position; None if a generator was given, for that one decides.

        Raises:
            ValueError: a weight is negative or not finite, all are zero, or there are too few to draw from.
        """
        if self.generator is not None:
            return None
        order_by_weight = draw_by_weight if self.replacement else pick_by_weight
        return order_by_weight(as_array(self.weights), self.num_samples, derive_key(seed, epoch, "draws by weight"))

    def __len__(self) -> int:
        return self.num_samples


class EpochChoice:
    """A sampler at which trainers choose the epoch of the loader that it belongs to.

    Attributes:
        epoch: the one that `set_epoch` chose.
        chosen: that one, if the loader has not begun it yet.
    """

    epoch = 0
    chosen: int | None = None
    _is_running: Callable[[int], bool] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, of the loader that this sampler belongs to as well.

        Some trainers say so when the epoch has already begun: then it goes on, and the next one is its successor.
        """
        if self._is_running is None or not self._is_running(epoch):
            self.chosen = epoch
        self.epoch = epoch

    def follow(self, epoch: int, is_running: Callable[[int], bool]) -> None:
        """The loader begins an epoch."""
        self.epoch, self.chosen, self._is_running = epoch, None, is_running

    def take_choice(self) -> int | None:
        """The epoch that was chosen since the loader began one; asked once."""
        chosen, self.chosen = self.chosen, None
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_running": None}


class EndlessSampler(EpochChoice, Sampler[None]):
    """None for ever: the sampler of iterable datasets, which choose their samples themselves."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None

"""One rank's share of a dataset, as torch's DistributedSampler deals it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from itertools import islice

import numpy as np

from headrace.base.indices import Indices
from headrace.base.optional import is_installed
from headrace.base.user_classes import adopted
from headrace.order.samplers import ChunkedSampler


@adopted("torch.utils.data.distributed")
class DistributedSampler(ChunkedSampler):
    """Every `num_replicas`-th index of a shuffle that all ranks make alike.

    Call `set_epoch` before each epoch, or every epoch has the same order.

    Args:
        num_replicas: the number of ranks; asked of `torch.distributed` if None, and so is `rank`.
        drop_last: cut the tail that does not divide by the ranks, instead of repeating the first indices to fill it.

    Raises:
        ValueError: `rank` does not lie in [0, num_replicas).
        RuntimeError: neither given nor to be learned from `torch.distributed`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            world_size, own_rank = _process_group()
            num_replicas = world_size if num_replicas is None else num_replicas
            rank = own_rank if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}].")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        n = len(dataset)
        self.num_samples = n // num_replicas if drop_last else -(-n // num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def chunks(self) -> Iterator[Indices]:
        n = len(self.dataset)
        order = self._shuffled(n) if self.shuffle else np.arange(n, dtype=np.int64)
        if len(order) < self.total_size and not self.drop_last:
            order = np.resize(order, self.total_size)  # repeats from the start, as often as needed
        if len(order) < self.total_size or (not self.drop_last and len(order) > self.total_size):
            raise AssertionError(
                f"The dataset must keep the length it had when the sampler was made: {self.total_size} indices are "
                f"to be dealt to {self.num_replicas} ranks, but it has {n} samples now."
            )
        yield order[self.rank : self.total_size : self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter([i for chunk in self.chunks() for i in chunk.tolist()])

    def _shuffled(self, n: int) -> Indices:
        if is_installed("torch"):
            from headrace.frameworks.torch_sampling import seeded

            return seeded(self.seed + self.epoch).permutation(n)
        return np.random.default_rng([self.seed, self.epoch]).permutation(n)

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle of the next iteration; all ranks must pass the same number."""
        self.epoch = epoch


class StatefulDistributedSampler(DistributedSampler):
    """A `DistributedSampler` that knows how far it is, as torchdata's.

    headrace's loaders resume without it: it is for scripts that use torchdata's, and for other loaders.

    Attributes:
        yielded: how many indices the latest iteration has given.
        next_yielded: how many the next one leaves out; None for none.

    Examples:
        >>> sampler = StatefulDistributedSampler(range(8), num_replicas=2, rank=0, shuffle=False)
        >>> sampler.load_state_dict({"yielded": 2})
        >>> list(sampler)
        [4, 6]
    """

    yielded = 0
    next_yielded: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        if self.yielded >= self.num_samples:  # a state after the last index means the next epoch
            self.yielded = 0
        for index in islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        """How many indices the latest iteration has given; or, before the next one, how many that is to leave out."""
        return {"yielded": self.yielded if self.next_yielded is None else self.next_yielded}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Let the next iteration leave out as many indices as the state says.

        Raises:
            ValueError: it is no such state.
        """
        yielded = state_dict.get("yielded")
        if not isinstance(yielded, int) or yielded < 0:
            raise ValueError(f"The state must be {{'yielded': n}} with n of at least 0, got {state_dict!r}.")
        self.next_yielded = yielded


def _process_group() -> tuple[int, int]:
    if not is_installed("torch"):
        raise RuntimeError("num_replicas and rank must be given: torch.distributed is not installed to ask.")
    from headrace.frameworks.torch_sampling import world_and_rank

    return world_and_rank()

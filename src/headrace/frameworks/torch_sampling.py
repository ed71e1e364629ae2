"""What samplers need of torch: random indices in the sequence that torch's own samplers draw them, and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.indices import Indices
from headrace.base.optional import import_extra
from headrace.frameworks.numpy_arrays import draw_weighted

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "Drawing indices with torch")

# torch.multinomial refuses more categories than a float32 can count.
_MULTINOMIAL_LIMIT = 2**24


class TorchRandom:
    """Draws from the given generator, or from torch's global one."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator = generator

    def draw_seed(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._generator).item())

    def fresh(self) -> TorchRandom:
        return TorchRandom(torch.Generator().manual_seed(self.draw_seed()))

    def permutation(self, n: int) -> Indices:
        return _to_numpy(torch.randperm(n, generator=self._generator))

    def integers(self, high: int, size: int) -> Indices:
        return _to_numpy(torch.randint(high, (size,), dtype=torch.int64, generator=self._generator))

    def as_weights(self, weights: Any) -> torch.Tensor:
        return torch.as_tensor(weights, dtype=torch.double)

    def weighted(self, weights: torch.Tensor, size: int, replacement: bool) -> Indices:
        if len(weights) <= _MULTINOMIAL_LIMIT:
            return _to_numpy(torch.multinomial(weights, size, replacement, generator=self._generator))
        return draw_weighted(np.random.default_rng(self.draw_seed()), weights.cpu().numpy(), size, replacement)


def seeded(seed: int) -> TorchRandom:
    """A source of its own that starts from `seed`."""
    return TorchRandom(torch.Generator().manual_seed(seed))


def _to_numpy(indices: torch.Tensor) -> Indices:
    array: Indices = indices.cpu().numpy()
    return array


def world_and_rank() -> tuple[int, int]:
    """The number of ranks and this process's own, in the default process group.

    Raises:
        RuntimeError: this build of torch has no distributed package.
        ValueError: the process group was not initialised.
    """
    distributed = torch.distributed
    if not distributed.is_available():
        raise RuntimeError("num_replicas and rank must be given: this torch has no distributed package.")
    return distributed.get_world_size(), distributed.get_rank()

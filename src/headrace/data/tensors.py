"""A dataset over arrays that lie in memory."""

from __future__ import annotations

from typing import Any

from headrace.data.dataset import Dataset


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Rows of torch tensors or NumPy arrays that share their first dimension; sample i is the tuple of the i-th rows.

    Raises:
        AssertionError: the first dimensions differ.

    Examples:
        >>> import numpy as np
        >>> TensorDataset(np.arange(3), np.array([1.0, 2.0, 3.0]))[1]
        (np.int64(1), np.float64(2.0))
    """

    def __init__(self, *tensors: Any) -> None:
        sizes = [tensor.shape[0] for tensor in tensors]
        if any(size != sizes[0] for size in sizes):
            raise AssertionError(f"Size mismatch between tensors: their first dimensions are {sizes}.")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

"""Sample weights that even out unequal classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def class_weights(labels: Iterable[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One weight per sample, 1 / (size of its class), so that every class is drawn equally often.

    Args:
        labels: one label per sample: a list, an array or a tensor, of numbers, strings or anything else NumPy can sort.

    Raises:
        ValueError: `labels` is not one-dimensional.

    Examples:
        >>> class_weights([0, 0, 0, 0, 1])
        array([0.25, 0.25, 0.25, 0.25, 1.  ])
    """
    array = np.asarray(labels if hasattr(labels, "__array__") else list(labels))
    if array.ndim != 1:
        raise ValueError(f"labels must be one label per sample, got an array of shape {array.shape}.")
    _, class_of, counts = np.unique(array, return_inverse=True, return_counts=True)
    weights: np.ndarray[Any, np.dtype[np.float64]] = 1.0 / counts[class_of]
    return weights

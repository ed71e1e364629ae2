"""Rows of tokens by their numbers: a dataset for samplers, and for a full shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.indices import Indices
from headrace.data.dataset import Dataset
from headrace.streams.readers import read_tokens

if TYPE_CHECKING:
    from headrace.sources.files import Paths
    from headrace.sources.token_source import TokenSource


class TokenDataset(Dataset[Any]):
    """The rows that `read_tokens` reads, by number: `dataset[i]` is a dict of arrays.

    Whole batches are gathered in one step, from local files that are mapped into memory. In a `DataLoader` with
    `shuffle=True` and a `seed`, all rows of all files are shuffled, in constant memory.

    Args:
        options: see `read_tokens`.

    Raises:
        TypeError, ValueError: see `read_tokens`; `length` must be a number.

    Examples:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "train.npy")
        >>> np.save(path, np.arange(100))
        >>> dataset = TokenDataset(path, 4, stride=1)
        >>> len(dataset), dataset[95]["targets"].tolist()
        (96, [96, 97, 98, 99])
        >>> dataset.take(np.array([0, 50]))["tokens"].tolist()
        [[0, 1, 2, 3], [50, 51, 52, 53]]
    """

    def __init__(self, paths: Paths, length: int, **options: Any) -> None:
        if length is None:
            raise ValueError("A TokenDataset needs rows of one length, got None. read_tokens reads whole documents.")
        self._source: TokenSource = read_tokens(paths, length, **options).recipe.source

    def __len__(self) -> int:
        return self._source.n_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"The dataset has {n:,} rows, got {index}.")
        return {name: column[0] for name, column in self.take(np.array([index % n])).items()}

    def take(self, indices: Indices) -> dict[str, Any]:
        """The batch of the rows at these indices, as arrays."""
        rows = self._source.take(np.asarray(indices, np.int64))
        return {name: rows.column(name) for name in rows.layout.columns}

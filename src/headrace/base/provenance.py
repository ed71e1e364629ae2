"""Where the samples of a batch come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

_MOST_SHOWN = 12


class SampleOrigin(NamedTuple):
    """Where one sample comes from.

    Attributes:
        key: what the dataset is asked for; of sequences side by side, the number of the sequence; None for a stream.
        source: the file, or the query, of a stream.
        row: its number, from 0: in the sequence, in the file, or in `block`. None where rows of the source do not
            become samples one by one, after `filter`, `flat_map`, `map_batches` or `pack`: it is one of `block`.
        block: the part of the source that rows are counted in, if not from its beginning.
    """

    key: Any = None
    source: str | None = None
    row: int | None = None
    block: str | None = None

    def __str__(self) -> str:
        place = self.block or self.source
        if place is None:
            return f"{self.key}" if self.row is None else f"item {self.row} of sequence {self.key}"
        return f"rows of {place}" if self.row is None else f"row {self.row} of {place}"


@dataclass(frozen=True)
class Provenance:
    """What `loader.provenance(step)` gives: where the samples of a batch come from. Its text is a line per sample.

    Attributes:
        epoch: its number, and `batch` that of the batch in it.
        rank: whose batch it is, of `world` ranks.
        samples: their origins, in the order of the batch. Where rows do not become samples one by one, there is one for
            each part of the source that the batch is made of.
    """

    epoch: int
    batch: int
    rank: int
    world: int
    samples: tuple[SampleOrigin, ...]

    @property
    def keys(self) -> list[Any]:
        """The keys of the samples, for a dataset by key."""
        return [sample.key for sample in self.samples]

    @property
    def sources(self) -> list[str]:
        """The files, or queries, each once."""
        return list(dict.fromkeys(sample.source for sample in self.samples if sample.source is not None))

    def __str__(self) -> str:
        rank = f" on rank {self.rank} of {self.world}" if self.world > 1 else ""
        lines = [f"batch {self.batch} of epoch {self.epoch}{rank}:", *(f"  {one}" for one in self.samples)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(f"<li>{escape(str(one))}</li>" for one in self.samples[:_MOST_SHOWN])
        more = len(self.samples) - _MOST_SHOWN
        rest = f"<p>… and {more:,} more</p>" if more > 0 else ""
        title = escape(str(self).partition("\n")[0].rstrip(":"))
        return f"<b>{title}</b><ul>{rows}</ul>{rest}"


def origins_of_keys(keys: Iterable[Any]) -> list[SampleOrigin]:
    """Of a dataset by key."""
    return [SampleOrigin(key) for key in keys]

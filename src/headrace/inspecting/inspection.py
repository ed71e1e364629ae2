"""What was found in data, as text and as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

_MOST_CHARACTERS = 200  # of a text
_MOST_ITEMS = 20  # of a list or dict
_MOST_FILES_SHOWN = 10


@dataclass(frozen=True)
class Inspection:
    """What is known of some data. `print` it, or take it apart.

    Attributes:
        format: "text", "csv", "tsv", "jsonl", "parquet", "arrow", "tar", "sqlite" or "postgresql".
        columns: the type of each column, or of each field that was seen.
        files: the path and the size of each file; None where the size is not known.
        n_bytes: of all files together, as they are stored; None if not known.
        n_blocks: the parts that can be read alone; None if they are others in each epoch.
        n_rows: how many rows there are; None if nobody knows.
        rows_are: whether that number is exact, was reckoned from the part that was read, or is the least possible.
        n_bad: records among those read that cannot be read as what they should be.
        first_bad: the first of them, and what is wrong with it.
        details: what else the format has to say: encoding, compression, row groups, the query.
        samples: the first rows, as plain values; long ones are shortened.
    """

    format: str
    columns: Mapping[str, str]
    files: Sequence[tuple[str, int | None]]
    n_bytes: int | None
    n_blocks: int | None
    n_rows: int | None
    rows_are: Literal["exact", "about", "at least"]
    n_bad: int
    first_bad: str | None
    details: Mapping[str, Any]
    samples: Sequence[Any]

    @property
    def is_readable(self) -> bool:
        """Whether any record can be read; where there are none, nothing is wrong."""
        return not self.n_bad or bool(self.n_rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, that `json.dumps` takes."""
        return {**asdict(self), "files": [{"path": path, "bytes": size} for path, size in self.files]}

    def __str__(self) -> str:
        parts = [self._headline(), *self._facts(), *self._columns(), *self._files()]
        if self.samples:
            parts += ["", "samples:", *(f"  {sample!r}" for sample in self.samples)]
        return "\n".join(map(printable, parts))

    def _headline(self) -> str:
        facts = [show_count(len(self.files), "file"), show_size(self.n_bytes)] if self.files else []
        if self.n_blocks is not None:
            facts.append(show_count(self.n_blocks, "block"))
        return f"{self.format}: {', '.join([*facts, self._rows()])}"

    def _rows(self) -> str:
        if self.n_rows is None:
            return "an unknown number of rows"
        rows = show_count(self.n_rows, "row")
        return rows if self.rows_are == "exact" else f"{self.rows_are} {rows}"

    def _facts(self) -> list[str]:
        facts = [f"{name.replace('_', ' ')}: {_show(value)}" for name, value in self.details.items()]
        if self.n_bad:
            how_many = "of which the first is" if self.is_readable else "which are all; the first is"
            facts.append(f"bad records: {self.n_bad:,}, {how_many} {self.first_bad}")
        return facts

    def _columns(self) -> list[str]:
        names = list(map(printable, self.columns))
        width = max(map(len, names), default=0)
        kinds = zip(names, self.columns.values(), strict=True)
        return ["", "columns:", *(f"  {name:{width}}  {kind}" for name, kind in kinds)]

    def _files(self) -> list[str]:
        if not self.files:
            return []
        shown = [f"  {path}  {show_size(size)}" for path, size in self.files[:_MOST_FILES_SHOWN]]
        more = len(self.files) - len(shown)
        return ["", "files:", *shown, *([f"  … and {more:,} more"] if more else [])]


def show_size(n_bytes: int | None) -> str:
    """A size for people: "12.3 MB"."""
    if n_bytes is None:
        return "unknown size"
    size, units = float(n_bytes), iter(("bytes", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while size >= 1000 and unit != "PB":
        size, unit = size / 1000, next(units)
    return f"{n_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def printable(text: str) -> str:
    r"""The text on one line, with whatever a terminal would obey instead of showing it as an escape sequence.

    Examples:
        >>> print(printable("a\nb"))
        a\nb
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def show_count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def type_name(value: Any) -> str:
    """The type of a value of a row, for people."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of {value.ndim} dimension{'' if value.ndim == 1 else 's'}"
    return "null" if value is None else type(value).__name__


def as_plain(value: Any) -> Any:
    """A value as JSON knows it; what is long is shortened, and says so."""
    match value:
        case None | bool() | int() | float():
            return value
        case str() if len(value) <= _MOST_CHARACTERS:
            return value
        case str():
            return f"{value[:_MOST_CHARACTERS]}… ({len(value):,} characters)"
        case bytes() | bytearray() | memoryview():
            return f"<{len(value):,} bytes: {bytes(value[:8]).hex(' ')}…>"
        case np.ndarray() if value.ndim == 1 and value.size <= _MOST_ITEMS:
            return value.tolist()
        case np.ndarray():
            return f"<{value.dtype} array of shape {value.shape}>"
        case np.generic():
            return value.item() if isinstance(value.item(), (bool, int, float, str)) else str(value)
        case Mapping():
            kept = {str(key): as_plain(item) for key, item in list(value.items())[:_MOST_ITEMS]}
            return kept if len(kept) == len(value) else {**kept, "…": f"{len(value) - len(kept):,} more"}
        case list() | tuple():
            kept_items = [as_plain(item) for item in value[:_MOST_ITEMS]]
            more = len(value) - len(kept_items)
            return [*kept_items, f"… {more:,} more"] if more else kept_items
        case _:
            return str(value)


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return repr(value) if isinstance(value, str) and not value.strip() else str(value)

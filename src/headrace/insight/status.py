"""A line in the terminal that tells how a loop is going, while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any, Generic, TextIO, TypeVar

from headrace.insight.words import as_batches, as_count, as_percent

T_co = TypeVar("T_co", covariant=True)

_EVERY_S = 0.1
_CLEAR = "\r\x1b[K"


class ProgressLine(Generic[T_co]):
    """The batches of a loader, while one line tells how quickly they come and how long the loop waits for them.

    Nothing is written unless the file is a terminal.
    """

    def __init__(self, batches: Iterable[T_co], file: TextIO | None = None) -> None:
        self._batches = batches
        self._file = sys.stderr if file is None else file

    def __len__(self) -> int:
        """The number of batches.

        Raises:
            TypeError: it is not known.
        """
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T_co]:
        if not self._file.isatty():
            return iter(self._batches)
        return self._told()

    def _told(self) -> Iterator[T_co]:
        total: int | None = None
        with suppress(TypeError):
            total = len(self)
        n, waited, begun = 0, 0.0, perf_counter()
        told = begun
        batches = iter(self._batches)
        try:
            while True:
                asked = perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                now = perf_counter()
                waited += now - asked
                n += 1
                if now - told >= _EVERY_S:
                    told = now
                    self._write(_CLEAR + describe_progress(n, total, now - begun, waited))
                yield batch
                del batch
        finally:
            if n:
                self._write(_CLEAR + describe_progress(n, total, perf_counter() - begun, waited) + "\n")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def describe_progress(n: int, total: int | None, seconds: float, waited: float) -> str:
    """How far a loop is, in a line.

    Examples:
        >>> describe_progress(250, 1000, 10.0, 0.3)
        'headrace: 25 %, 250 of 1,000 batches, 25 batches/s, waiting 3 %, 30 s left'
        >>> describe_progress(250, None, 10.0, 0.3)
        'headrace: 250 batches, 25 batches/s, waiting 3 %'
    """
    seconds = max(seconds, 1e-9)
    parts = [as_batches(n), f"{as_count(n / seconds)} batches/s", f"waiting {as_percent(waited / seconds)}"]
    if total:
        parts[:1] = [as_percent(n / total), f"{as_count(n)} of {as_batches(total)}"]
        parts.append(f"{_as_clock(max(total - n, 0) * seconds / n)} left")
    return "headrace: " + ", ".join(parts)


def _as_clock(seconds: float) -> str:
    whole: Any = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"

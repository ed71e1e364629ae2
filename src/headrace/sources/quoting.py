"""Which bytes of a table stand in quotes, so that newlines among them end no record."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class QuotedRecordEnds:
    """Finds where the records of a table end: at newlines that are not in quotes.

    A field is quoted if a quote is its first character; it ends at the next quote that is not doubled. Quotes anywhere
    else mean nothing. So Python's csv and pyarrow read tables too.

    Args:
        separator: one byte.
        quote: one byte.
    """

    separator: bytes
    quote: bytes
    unit_bytes: int = 1

    def last(self, buffer: bytes) -> int:
        newline = buffer.rfind(b"\n")
        if newline < 0 or self.quote not in buffer:
            return newline + 1
        opens, closes = self.find_quoted(buffer)
        while newline >= 0 and (opening := _opening_around(opens, closes, newline)) is not None:
            newline = buffer.rfind(b"\n", 0, opening)
        return newline + 1

    def first_after(self, buffer: bytes, place: int) -> int:
        if self.quote not in buffer:
            return buffer.find(b"\n", place) + 1
        opens, closes = self.find_quoted(buffer)
        newline = buffer.find(b"\n", place)
        while newline >= 0 and _opening_around(opens, closes, newline) is not None:
            closing = int(np.searchsorted(closes, newline))
            newline = buffer.find(b"\n", int(closes[closing])) if closing < len(closes) else -1
        return newline + 1

    def ends_in_quotes(self, buffer: bytes) -> bool:
        """Whether a quoted field has not ended at the end of the buffer."""
        opens, closes = self.find_quoted(buffer)
        return len(opens) > len(closes)

    def find_quoted(self, buffer: bytes) -> tuple[_Places, _Places]:
        """Where quoted parts open and close, in order; the last one may not close. A doubled quote closes and opens.

        Where all quotes stand where they should, every second one opens, which NumPy can see at once.
        """
        content = np.frombuffer(buffer, np.uint8)
        quotes = np.flatnonzero(content == self.quote[0])
        opens, closes = quotes[::2], quotes[1::2]
        if self._open_fields(content, opens, closes) and self._close_fields(content, opens, closes):
            return opens, closes
        return self._walk(buffer)

    def _open_fields(self, content: npt.NDArray[np.uint8], opens: _Places, closes: _Places) -> bool:
        """Whether these quotes stand at the beginning of a field, or just behind one that closes."""
        before = content[opens - 1]  # for the first byte, that is the last one: it is let through below
        starts = _is_any(before, self.separator + b"\r\n") | (opens == 0)
        starts[1:] |= opens[1:] == closes[: len(opens) - 1] + 1
        return bool(starts.all())

    def _close_fields(self, content: npt.NDArray[np.uint8], opens: _Places, closes: _Places) -> bool:
        """Whether these quotes stand at the end of a field, or just before one that opens."""
        behind = np.minimum(closes + 1, len(content) - 1)
        ends = _is_any(content[behind], self.separator + b"\r\n") | (closes == len(content) - 1)
        ends[: len(opens) - 1] |= opens[1:] == closes[: len(opens) - 1] + 1
        return bool(ends.all())

    def _walk(self, buffer: bytes) -> tuple[_Places, _Places]:
        """The same, one quoted field after the other."""
        opening = re.compile(b"(?:^|[" + re.escape(self.separator) + b"\r\n])" + re.escape(self.quote))
        opens: list[int] = []
        closes: list[int] = []
        place = 0
        while found := opening.search(buffer, place):
            opens.append(found.end() - 1)
            end = self._find_closing(buffer, found.end())
            if end < 0:
                break
            closes.append(end)
            place = end + 1
        return np.array(opens, np.intp), np.array(closes, np.intp)

    def _find_closing(self, buffer: bytes, place: int) -> int:
        while (place := buffer.find(self.quote, place)) >= 0 and buffer[place + 1 : place + 2] == self.quote:
            place += 2
        return place


def _is_any(content: npt.NDArray[np.uint8], characters: bytes) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = content == characters[0]
    for character in characters[1:]:
        found |= content == character
    return found


def _opening_around(opens: _Places, closes: _Places, place: int) -> int | None:
    """Where the quoted part begins that `place` lies in, if it lies in one."""
    i = int(np.searchsorted(opens, place)) - 1
    if i < 0 or (i < len(closes) and closes[i] < place):
        return None
    return int(opens[i])

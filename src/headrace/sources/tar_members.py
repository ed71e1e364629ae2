"""Walks the headers of a tar archive. Nothing is ever extracted, and nothing but regular files is ever looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.sources.tar_headers import EXTENDED, HEADER_BYTES, Member, read_member
from headrace.sources.tar_window import ArchiveWindow

# The fields of a header in each block of an archive; only some of the blocks are headers.
_BLOCK = np.dtype(
    {
        "names": ["name", "size", "after_size", "kind", "magic", "magic_start", "prefix"],
        "formats": ["S100", ("u1", 11), "S1", "S1", "S5", "S1", "S1"],
        "offsets": [0, 124, 135, 156, 257, 257, 345],
        "itemsize": HEADER_BYTES,
    }
)
_OCTAL = 8 ** np.arange(10, -1, -1)
_NOTES_THAT_MATTER = b" path=", b" size=", b" GNU.sparse"


class _Headers(NamedTuple):
    """Headers that follow each other, as arrays: places, counted in blocks, the fields, and the sizes of contents."""

    places: npt.NDArray[np.int64]
    fields: npt.NDArray[Any]
    sizes: npt.NDArray[np.int64]

    def first(self, n: int) -> _Headers:
        return _Headers(self.places[:n], self.fields[:n], self.sizes[:n])


def walk(window: ArchiveWindow, start: int = 0, stop: int | None = None) -> Iterator[Member]:
    """The regular files whose headers lie in [start, stop), in order: plain tuples, with the fields of a `Member`.

    Raises:
        DamagedArchiveError: there is no header where one should be; what came before is good.
    """
    return itertools.chain.from_iterable(_walk_in_runs(window, start, stop))


def _walk_in_runs(window: ArchiveWindow, place: int, stop: int | None) -> Iterator[Iterable[Member]]:
    while stop is None or place < stop:
        headers = _ordinary_headers(window, place, stop)
        if len(headers.places):
            yield _members(headers, place)
            place += HEADER_BYTES * int(_behind(headers.places, headers.sizes)[-1])
            continue
        step = read_member(window, place)
        if step is None:
            return
        if step.member is not None:
            yield (step.member,)
        place = step.next_place


def _ordinary_headers(window: ArchiveWindow, place: int, stop: int | None) -> _Headers:
    """The headers from `place` on that are in memory, and tell all there is to know; the last one is a member's."""
    memory, offset = window.hold(place, HEADER_BYTES)
    length = len(memory) - offset if stop is None else min(len(memory) - offset, stop - place)
    headers = _find_headers(np.frombuffer(memory, _BLOCK, length // HEADER_BYTES, offset))
    notes = np.flatnonzero(headers.fields["kind"] == EXTENDED).tolist()
    for i in notes:  # most are times and owners, which do not matter here
        start, size = offset + HEADER_BYTES * (int(headers.places[i]) + 1), int(headers.sizes[i])
        note = memory[start : start + size]
        if len(note) < size or any(key in note for key in _NOTES_THAT_MATTER):
            return headers.first(i)
    n = len(headers.places)
    return headers.first(n - 1) if notes and notes[-1] == n - 1 else headers


def _find_headers(blocks: npt.NDArray[Any]) -> _Headers:
    """The ordinary headers from the first block on.

    What looks like a header may be content. So each must be where the one before says that the next one is.
    """
    places = np.flatnonzero(blocks["magic_start"] == b"u")  # one byte of each block: most are told apart by it
    places = places[blocks["magic"][places] == b"ustar"]
    fields = blocks[places]
    sizes = (fields["size"] - ord("0")) @ _OCTAL
    expected = np.append(0, _behind(places, sizes))[:-1]
    wrong = np.flatnonzero((places != expected) | ~_is_ordinary(fields))
    headers = _Headers(places, fields, sizes)
    return headers.first(int(wrong[0])) if len(wrong) else headers


def _behind(places: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places behind the contents of headers."""
    return places + 1 + -(-sizes // HEADER_BYTES)


def _is_ordinary(fields: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which headers are written as nearly all are: a regular file or a note, a short name, a size of eleven digits."""
    kinds, ends = fields["kind"], fields["after_size"]
    is_kind = (kinds == b"0") | (kinds == b"") | (kinds == EXTENDED)
    is_size = (fields["size"] - ord("0") < 8).all(axis=1) & ((ends == b"") | (ends == b" "))
    ordinary: npt.NDArray[np.bool_] = is_kind & is_size & (fields["prefix"] == b"")
    return ordinary


def _members(headers: _Headers, place: int) -> Iterable[Any]:
    """The regular files among headers, as tuples; a file begins with the note before it."""
    places, fields, sizes = headers
    is_note = fields["kind"] == EXTENDED
    starts = np.where(np.append(False, is_note[:-1]), np.append(0, places[:-1]), places)
    is_member = ~is_note
    names = fields["name"][is_member].tolist()
    if b"\0" in b"".join(names):
        names = [name.partition(b"\0")[0] for name in names]
    columns = place + HEADER_BYTES * starts, place + HEADER_BYTES * (places + 1), sizes
    return zip(names, *(column[is_member].tolist() for column in columns), itertools.repeat(False))

"""The sequences of a loader, as numbered pieces that workers open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from headrace.base.indices import Indices
from headrace.data.dataset import is_iterable_dataset
from headrace.multistream.draws import KeyedDraws
from headrace.multistream.sequence_reader import (
    SequenceReader,
    StreamRowReader,
    check_repeatable,
    length_of,
    made,
    open_sequence,
    plain_values,
    reader_of,
)
from headrace.streams.stream import Stream

_IN_MEMORY = (list, tuple, range)


class Sequences(Protocol):
    """Pieces of sequences by number; all workers have the same."""

    lengths: Indices | None
    """Of all pieces; None if they are not known before they are read."""
    runs_code: bool
    """Whether opening or reading a piece calls the user's code."""

    def __len__(self) -> int: ...

    def open(self, number: int) -> SequenceReader:
        """The piece, whose `begin` is to be called first."""

    def begins(self, number: int) -> bool:
        """Whether a piece is the beginning of a sequence, and not the rest of the piece before it."""

    def first_item(self, number: int) -> int | None:
        """Where a piece begins in the one sequence that is cut into pieces; None where each is a sequence."""


class SequenceSet:
    """Whole sequences.

    Args:
        sequences: anything with a length that gives a sequence for a number.
        read: makes a sequence of what that gives; None if it is one.
        lengths: of the sequences, if the user tells them.

    Raises:
        TypeError: there is no such thing.
        ValueError: there is no sequence, or there are not as many lengths as sequences.
    """

    def __init__(
        self, sequences: Any, read: Callable[[Any], Any] | None = None, lengths: Iterable[int] | None = None
    ) -> None:
        if is_iterable_dataset(sequences) or not (hasattr(sequences, "__len__") and hasattr(sequences, "__getitem__")):
            raise TypeError(
                f"sequences must be a list or a dataset of sequences, got {type(sequences).__name__}. For one long "
                "sequence pass assign='offset'."
            )
        if isinstance(sequences, Mapping):
            raise TypeError("A dict is one sequence, made of columns. Pass it in a list, or with assign='offset'.")
        if len(sequences) == 0:
            raise ValueError("sequences must have at least one sequence, got none.")
        self._sequences = sequences
        self._read = read
        is_list = isinstance(sequences, (list, tuple))
        if is_list and read is None:
            for sequence in sequences:
                check_repeatable(sequence)
        rows = plain_values(sequences)
        if rows is not None and rows.ndim < 2 and read is None:
            raise TypeError("sequences must be an array of several rows, got one row. Pass assign='offset' to read it.")
        is_in_memory = rows is not None or (is_list and all(map(_is_in_memory, sequences)))
        self.runs_code = read is not None or not is_in_memory
        self.lengths: Indices | None = None
        if lengths is not None:
            self.lengths = _checked_lengths(lengths, len(sequences))
        elif read is None and rows is not None:
            self.lengths = np.full(len(rows), rows.shape[1])
        elif read is None and is_list:
            found = [length_of(sequence) for sequence in sequences]
            self.lengths = None if None in found else np.array(found, np.int64)

    def __len__(self) -> int:
        return len(self._sequences)

    def open(self, number: int) -> SequenceReader:
        sequence = self._sequences[number]
        return open_sequence(sequence if self._read is None else self._read(sequence))

    def begins(self, number: int) -> bool:
        return True

    def first_item(self, number: int) -> int | None:
        return None


class SegmentSet:
    """One long sequence, cut into as many segments as there are positions.

    Args:
        length: if the user tells it; else it is known, or counted once.

    Raises:
        ValueError: the sequence is empty.
        TypeError: there are several.
    """

    def __init__(
        self, sequence: Any, segments: int, read: Callable[[Any], Any] | None = None, length: int | None = None
    ) -> None:
        check_repeatable(sequence)
        if read is None:
            _refuse_several(sequence)
        self._sequence = sequence
        self._read = read
        self._whole: Any = None
        self.runs_code = read is not None or not _is_in_memory(sequence)
        n = self._count() if length is None else length
        if n < 1:
            raise ValueError("The sequence must have at least one item, got none.")
        self._borders = [-(-i * n // segments) for i in range(segments + 1)]
        borders = np.array(self._borders, np.int64)
        self.lengths: Indices | None = borders[1:] - borders[:-1]

    def _count(self) -> int:
        with KeyedDraws(0, shares_generators=False, gives_back=True).watch():
            whole = made(self._load())
            n = length_of(whole)
            return sum(1 for _ in whole) if n is None else n

    def _load(self) -> Any:
        """The sequence; what can be read at any place is kept, for the other segments."""
        if self._whole is not None:
            return self._whole
        whole = self._sequence if self._read is None else self._read(self._sequence)
        if reader_of(whole) is not None:
            self._whole = whole
        return whole

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whole": None}

    def __len__(self) -> int:
        return len(self._borders) - 1

    def open(self, number: int) -> SequenceReader:
        return open_sequence(self._load(), self._borders[number], self._borders[number + 1])

    def first_item(self, number: int) -> int | None:
        return self._borders[number]

    def begins(self, number: int) -> bool:
        return number == 0


class WindowSet:
    """One stream, cut at the borders of its windows: none is read before it is needed.

    Raises:
        ValueError: the stream has no windows.
    """

    lengths: Indices | None = None
    runs_code = True

    def __init__(self, stream: Stream) -> None:
        self._recipe = stream.recipe
        self._n_windows = self._recipe.plan(None, 0).n_windows or 0
        if not self._n_windows:
            raise ValueError("The stream must have at least one row, got none.")

    def __len__(self) -> int:
        return self._n_windows

    def open(self, number: int) -> SequenceReader:
        return StreamRowReader(self._recipe, number, number + 1)

    def first_item(self, number: int) -> int | None:
        return None

    def begins(self, number: int) -> bool:
        return number == 0


def _is_in_memory(sequence: Any) -> bool:
    """Whether reading a sequence runs no code of the user's."""
    if isinstance(sequence, Mapping):
        return all(map(_is_in_memory, sequence.values()))
    return type(sequence) in _IN_MEMORY or plain_values(sequence) is not None


def _refuse_several(sequence: Any) -> None:
    """See that this is a sequence, and no list of sequences; items that are lists have one length.

    Raises:
        TypeError: it is one.
    """
    if not isinstance(sequence, (list, tuple)) or not all(map(_has_items, sequence)):
        return
    lengths = {len(item) for item in sequence}
    if len(lengths) > 1 or len(sequence) == 1:
        raise TypeError(
            f"assign='offset' reads one long sequence, got a list of {len(sequence)} of them. Pass assign='shuffle' or "
            "'partition' to read several; or the one alone, without a list around it."
        )


def _has_items(item: Any) -> bool:
    return isinstance(item, _IN_MEMORY) or plain_values(item) is not None


def _checked_lengths(lengths: Iterable[int], n: int) -> Indices:
    found = np.asarray(list(lengths), dtype=np.int64)
    if len(found) != n or found.min() < 0:
        raise ValueError(f"lengths must have the number of items of each of the {n} sequences, got {found!r:.80}.")
    return found

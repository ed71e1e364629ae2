"""Rows of one length, cut from sequences of tokens that follow each other, whatever windows they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from headrace.sources.chunks import JoinedChunk, ObjectChunk
from headrace.sources.source import Chunk


@dataclass(frozen=True)
class Packing:
    """Tokens are loaded in place of rows: as many as make a batch of rows, and are cut into rows at last.

    So rows go on from one window to the next, and nothing is lost. Only the last row of all may be shorter.

    Attributes:
        length: of a row.
        drops_rest: whether a shorter last row is left out.
    """

    length: int
    drops_rest: bool = False

    def rows(self, tokens: Chunk) -> list[Any]:
        """The tokens as rows."""
        sequence = _sequence(tokens)
        return [sequence[start : start + self.length] for start in range(0, len(sequence), self.length)]

    def split(self, rest: Chunk, tokens: Chunk) -> tuple[list[Any], Chunk]:
        """The whole rows of what was left over and of more tokens, and what is left over now."""
        both = _sequence(JoinedChunk([rest, tokens]))
        end = len(both) - len(both) % self.length
        return self.rows(ObjectChunk(both[:end])), ObjectChunk(both[end:])


def join_tokens(sequences: Sequence[Any]) -> ObjectChunk:
    """The tokens of all sequences, one after the other; as an array, if all of them are arrays.

    Raises:
        TypeError: one of them is no sequence.
    """
    if sequences and all(isinstance(one, np.ndarray) and one.ndim == 1 for one in sequences):
        return ObjectChunk(np.concatenate(sequences))
    _refuse_others(sequences)
    return ObjectChunk(list(chain.from_iterable(sequences)))


def _refuse_others(rows: Sequence[Any]) -> None:
    for row in {type(row): row for row in rows}.values():  # one of each type: a look at each row would take long
        if isinstance(row, Mapping) or not _can_be_iterated(row):
            raise TypeError(
                f"pack() needs rows that are sequences of tokens, got {type(row).__name__}: {row!r:.80}. Make them so "
                "by map() before."
            )


def _can_be_iterated(row: Any) -> bool:
    try:
        iter(row)
    except TypeError:
        return False
    return True


def _sequence(tokens: Chunk) -> Any:
    """All tokens as one list or array."""
    parts = tokens.parts()
    return parts[0].rows() if len(parts) == 1 else join_tokens([part.rows() for part in parts]).rows()

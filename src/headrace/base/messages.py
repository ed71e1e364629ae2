"""What crosses the border between the loader and its workers. Frozen, and small enough to pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.base.indices import Indices


@dataclass(frozen=True, slots=True)
class PackedIndices:
    """Indices that headrace drew itself, as one array. User code sees them as a list of Python ints."""

    array: Indices


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask an iterable dataset for its next samples: `count` of them as a batch, or a single one if None."""

    count: int | None


@dataclass(frozen=True, slots=True)
class Task:
    """One batch to make.

    Attributes:
        number: the batch's place in the epoch.
        keys: what to fetch: `PackedIndices`, a `Pull`, or whatever the user's sampler gave.
    """

    number: int
    keys: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """The batch of task `number`."""

    number: int
    batch: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Task `number` raised; the others are not affected."""

    number: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The iterable dataset had nothing left for task `number`."""

    number: int


Outcome: TypeAlias = Finished | Failed | Exhausted

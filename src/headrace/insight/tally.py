"""Counts keys without keeping them: whether two sides saw the same ones, in any order, is known for sure enough."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np

from headrace.base.indices import as_index_array

_MODULUS = 2**64
# One row per sum: with odd steps from places of their own, the words go into the finalizer of SplitMix64.
_STEPS = np.array([[0x9E3779B97F4A7C15], [0xD1342543DE82EF95]], dtype=np.uint64)
_STARTS = np.array([[0x6A09E667F3BCC908], [0xBB67AE8584CAA73B]], dtype=np.uint64)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_AT_ONCE = 2**14

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Tally:
    """A collection of keys, of which some may come several times: how many they are, and two sums of their hashes.

    Guarantees: constant size; equal for the same keys in any order, and on every machine (if keys of other types than
    ints, strings, bytes, floats and tuples of these are pickled alike); for others, equal by a chance of 2**-128.

    Attributes:
        ids: how often each key comes, if it is to be known; keys that JSON does not know are told as text.
    """

    count: int = 0
    sums: tuple[int, int] = (0, 0)
    ids: Counter[Any] | None = None

    @classmethod
    def of(cls, keys: Any, *, full: bool = False) -> Tally:
        """The tally of an array or another iterable of keys."""
        indices = as_index_array(keys)
        if indices is not None:
            ids = Counter(indices.tolist()) if full else None
            return cls(len(indices), _hash_sums(indices.view(np.uint64)), ids)
        keys = list(keys)
        first, second = zip(*map(_hash, keys), strict=True) if keys else ((), ())
        sums = sum(first) % _MODULUS, sum(second) % _MODULUS
        return cls(len(keys), sums, Counter(map(_plain, keys)) if full else None)

    @classmethod
    def sum(cls, tallies: Iterable[Tally], *, full: bool = False) -> Tally:
        total = cls(ids=Counter() if full else None)
        for tally in tallies:
            total += tally
        return total

    def __add__(self, other: Tally) -> Tally:
        return self._combined(other, 1)

    def __sub__(self, other: Tally) -> Tally:
        """What is left; counts may be below zero."""
        return self._combined(other, -1)

    def _combined(self, other: Tally, sign: int) -> Tally:
        ids = None
        if self.ids is not None and other.ids is not None:
            ids = self.ids.copy()
            (ids.update if sign > 0 else ids.subtract)(other.ids)
        first, second = ((mine + sign * theirs) % _MODULUS for mine, theirs in zip(self.sums, other.sums, strict=True))
        return Tally(self.count + sign * other.count, (first, second), ids)

    def has_same_keys(self, other: Tally) -> bool:
        return (self.count, self.sums) == (other.count, other.sums)

    def save(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        ids = None if self.ids is None else [[key, count] for key, count in self.ids.items() if count]
        return {"count": self.count, "sums": list(self.sums), "ids": ids}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> Tally:
        """What `save` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        first, second = saved["sums"]
        ids = None if saved["ids"] is None else Counter(dict(saved["ids"]))
        return cls(int(saved["count"]), (int(first), int(second)), ids)


def _hash_sums(words: Words) -> tuple[int, int]:
    """The sums of two hashes of 64-bit words."""
    totals = [0, 0]
    for start in range(0, len(words), _AT_ONCE):
        mixed = words[start : start + _AT_ONCE] * _STEPS
        mixed += _STARTS
        for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
            mixed ^= mixed >> shift
            mixed *= factor
        mixed ^= mixed >> _SHIFTS[2]
        totals = [total + part for total, part in zip(totals, mixed.sum(axis=1).tolist(), strict=True)]
    return totals[0] % _MODULUS, totals[1] % _MODULUS


def _hash(key: Any) -> tuple[int, int]:
    index = _as_int(key)
    if index is not None:
        return _hash_sums(np.array([index % _MODULUS], dtype=np.uint64))
    digest = blake2b(_encode(key), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _as_int(key: Any) -> int | None:
    """The key as an int, if it is one, of whatever library."""
    try:
        return int(key.__index__())
    except (AttributeError, TypeError, ValueError):
        return None


def _encode(key: Any) -> bytes:
    if isinstance(key, tuple):
        return b"(%b)" % b",".join(map(_encode, key))
    index = _as_int(key)
    if index is not None or isinstance(key, (str, bytes, float)):
        return repr(key if index is None else index).encode("utf-8", "surrogatepass")
    try:
        return pickle.dumps(key, protocol=4)
    except Exception:  # noqa: BLE001 (whatever it is, it is the same object when it comes again)
        return repr(key).encode("utf-8", "surrogatepass")


def _plain(key: Any) -> Any:
    index = _as_int(key)
    if index is not None:
        return index
    return key if isinstance(key, str) else repr(key)

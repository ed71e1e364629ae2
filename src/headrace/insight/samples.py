"""The samples of a batch, as they are shown."""

from __future__ import annotations

from array import array
from typing import Any

from headrace.insight.recorder import Work


def samples_of(work: Work) -> list[tuple[int | str | None, int]]:
    """The samples of a batch that were timed: the key, if it is known, and when the sample was there."""
    ends = array("q", work.span.ends)
    keys = () if isinstance(work.keys, str) else work.keys
    if len(keys) != len(ends):
        return [(None, end) for end in ends]
    return [(plain_key(key), end) for key, end in zip(keys, ends, strict=True)]


def plain_key(key: Any) -> int | str | None:
    """A key of a sample as JSON knows it."""
    if key is None:
        return None
    try:
        return int(key.__index__())
    except Exception:  # noqa: BLE001 (no integer, whatever it is)
        return key if isinstance(key, str) else repr(key)

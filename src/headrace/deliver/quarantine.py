"""A file of the samples that were left out, for somebody to look at: a JSON object per line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.base.messages import BadSample

_MOST_CHARACTERS = 4096  # of a key or a record


class Quarantine:
    """Writes samples that were left out under `on_error="skip"` to a file, in the loader's own process.

    Guarantees: a sample that is in the file already is not written again: not in the next epoch, nor after a resume.
    Whole lines only, so that several ranks may write to files of their own names, or append to one.

    Args:
        path: appended to; made when the first sample is left out.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._known: set[tuple[Any, ...]] | None = None

    def note(self, bad: Sequence[BadSample]) -> None:
        """Write down some more."""
        if self._known is None:
            self._known = _read_known(self._path)
        import json  # slow to import, and hardly ever needed

        lines = []
        for sample in bad:
            record = _record_of(sample)
            if _identity(record) not in self._known:
                self._known.add(_identity(record))
                lines.append(json.dumps(record, ensure_ascii=False) + "\n")
        if lines:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))


def _record_of(sample: BadSample) -> dict[str, Any]:
    """What is written: where the sample is, the beginning of what it is, and what is wrong with it."""
    key = sample.key
    where, raw = (key.where, key.raw) if hasattr(key, "where") else (repr(key), "")
    return {
        "where": where[:_MOST_CHARACTERS],
        "error": sample.error,
        "raw": raw[:_MOST_CHARACTERS],
        "batch": sample.batch,
        "worker": sample.worker,
    }


def _identity(record: dict[str, Any]) -> tuple[Any, ...]:
    return record.get("where"), record.get("error"), record.get("raw")


def _read_known(path: Path) -> set[tuple[Any, ...]]:
    if not path.exists():
        return set()
    with path.open(encoding="utf-8") as file:
        return {_identity(record) for line in file if (record := _parsed(line)) is not None}


def _parsed(line: str) -> dict[str, Any] | None:
    """A line of the file; None if it is no record: the last one may have been cut off."""
    import json

    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None

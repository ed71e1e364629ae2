"""Errors of reading: records that are bad, files that changed, stores that do not answer."""

from __future__ import annotations

from headrace.base.errors import HeadraceError
from headrace.sources.source import BadRecord, OnBad


class RecordError(HeadraceError, ValueError):
    """A record, or the file around it, cannot be read as what it should be."""

    def __init__(self, problem: BadRecord | str) -> None:
        super().__init__(problem)

    def __str__(self) -> str:
        problem = self.args[0]
        if isinstance(problem, str):
            return problem
        return f"{problem.where}: {problem.error}. The record is {_excerpt(problem.raw)}."


class ChangedFileError(HeadraceError, RuntimeError):
    """A file is not the one that was listed: it was changed, replaced or cut short."""


class RetriesExhaustedError(HeadraceError, OSError):
    """A store failed again and again."""


def leave_out(record: BadRecord, on_bad: OnBad | None) -> None:
    """Tell of a bad record that is then left out.

    Raises:
        RecordError: nobody listens.
    """
    if on_bad is None:
        raise RecordError(record)
    on_bad(record)


def _excerpt(raw: bytes, n: int = 80) -> str:
    return repr(raw[:n]) + ("…" if len(raw) > n else "")

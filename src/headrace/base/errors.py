"""The errors that headrace raises by itself, and how it warns and checks arguments.

    Exception
    └── HeadraceError
        ├── InternalError                      a broken invariant: please report it
        ├── MissingExtraError (ImportError)    an optional dependency is not installed
        ├── CollateError (RuntimeError)        samples that cannot become one batch
        ├── CollateTypeError (TypeError)       a sample of a type that no collate function knows
        ├── TooManyBadSamplesError (RuntimeError)   more samples were left out than `max_errors` allows, or all
        ├── StateError (ValueError)            a saved state that does not fit the loader it is loaded into
        ├── RankError (RuntimeError)           another rank has failed, or is gone
        ├── AuditError (RuntimeError)          samples of an epoch did not come, or came more often than they should
        ├── RecordError (ValueError)           a record, or the file around it, cannot be read as what it should be
        ├── ChangedFileError (RuntimeError)    a file is not the one that was listed
        ├── RetriesExhaustedError (OSError)    a store failed again and again
        ├── InspectError (ValueError)          data that cannot be looked at: of unknown format, or damaged
        ├── RemoteTraceback                    the cause of an error that was raised in a worker: where it was
        └── WorkerError (RuntimeError)         an error in a worker that is of a type unknown here
            ├── WorkerDiedError                a worker is gone, without a word
            ├── WorkerStartError               a worker could not be started
            └── WorkerTimeoutError             no batch came within `timeout` seconds

Wrong arguments raise plain `ValueError`, `TypeError` or `AssertionError`, whichever torch raises for the same mistake.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any


class HeadraceError(Exception):
    """The root of all errors that are headrace's own."""


class InternalError(HeadraceError):
    """An invariant of headrace does not hold; never the user's fault."""


class MissingExtraError(HeadraceError, ImportError):
    """A feature needs an optional dependency that is not installed."""


class _FieldError(HeadraceError):
    """An error about one field of the samples; containers on the way out prepend their key to `path`."""

    def __init__(self, reason: str, path: tuple[Any, ...] = ()) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def within(self, key: Any) -> _FieldError:
        """The same error, seen from the container that holds the field under `key`."""
        return type(self)(self.reason, (key, *self.path))

    def __str__(self) -> str:
        if not self.path:
            return self.reason
        field = "sample" + "".join(f"[{key!r}]" for key in self.path)
        return f"In the field {field}: {self.reason}"


class StateError(HeadraceError, ValueError):
    """A saved state does not fit the loader that it is loaded into, or is none."""


class RankError(HeadraceError, RuntimeError):
    """With `even="agree"`: another rank has an error in place of a batch, or is gone."""


class AuditError(HeadraceError, RuntimeError):
    """An audit found that samples of an epoch did not come, or came more often than they should."""


class RecordError(HeadraceError, ValueError):
    """A record, or the file around it, cannot be read as what it should be."""


class ChangedFileError(HeadraceError, RuntimeError):
    """A file is not the one that was listed: it was changed, replaced or cut short."""


class RetriesExhaustedError(HeadraceError, OSError):
    """A store failed again and again."""


class InspectError(HeadraceError, ValueError):
    """Data cannot be looked at: nobody knows its format, or it is not of the format that it should be."""


class CollateError(_FieldError, RuntimeError):
    """Samples cannot become one batch: their shapes or lengths differ."""


class CollateTypeError(_FieldError, TypeError):
    """No collate function is known for the type of a sample."""


class TooManyBadSamplesError(HeadraceError, RuntimeError):
    """More samples were left out under `on_error="skip"` than `max_errors` allows, or all batches of an epoch."""


class RemoteTraceback(HeadraceError):  # noqa: N818 (a cause, as concurrent.futures has one)
    """Where in a worker an error was raised: the cause of the error that the loop sees."""

    def __init__(self, where: str, traceback: str) -> None:
        super().__init__(where, traceback)
        self.where = where
        self.traceback = traceback

    def __str__(self) -> str:
        return f"raised {self.where}.\nOriginal {self.traceback}"


class WorkerError(HeadraceError, RuntimeError):
    """Something went wrong in a worker, and the original exception cannot be rebuilt here."""


class WorkerDiedError(WorkerError):
    """A worker process is gone without a word: killed, crashed, or left by `os._exit`."""


class WorkerStartError(WorkerError):
    """A worker process could not be started."""


class WorkerTimeoutError(WorkerError):
    """No batch came within `timeout` seconds."""


def add_note(error: BaseException, note: str) -> None:
    """Add a line to what is printed of an error. Python 3.10 prints no notes: there it is the cause as well."""
    notes: list[str] = getattr(error, "__notes__", [])
    error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]
    if sys.version_info < (3, 11) and error.__cause__ is None:
        error.__cause__ = HeadraceError(note)


_PACKAGE = __name__.partition(".")[0]


def warn_user(text: str) -> None:
    """Warn, with the nearest line as its place that is not headrace's own."""
    warnings.warn(text, stacklevel=_levels_to_the_user())


def _levels_to_the_user() -> int:
    """The `stacklevel` that `warn_user` needs; in a thread of headrace's own, that of the thread's beginning."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


class WarnOnce:
    """Warns the first time only: what would be said again in each epoch is said once."""

    def __init__(self) -> None:
        self._has_warned = False

    def __call__(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(text)


def check_count(name: str, value: Any, least: int) -> None:
    """Raise a TypeError if a number is not an int, a ValueError if it is too small."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r:.200}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")

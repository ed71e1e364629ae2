"""Every error headrace raises by itself.

    Exception
    └── HeadraceError
        ├── InternalError                      a broken invariant: please report it
        ├── MissingExtraError (ImportError)    an optional dependency is not installed
        ├── CollateError (RuntimeError)        samples that cannot become one batch
        ├── CollateTypeError (TypeError)       a sample of a type that no collate function knows
        ├── TooManyBadSamplesError (RuntimeError)   more samples were left out than `max_errors` allows, or all
        ├── StateError (ValueError)            a saved state that does not fit the loader it is loaded into
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
    """Add a line to what is printed of an error; as its own `add_note` does, which Python 3.10 has not."""
    notes: list[str] = getattr(error, "__notes__", [])
    error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]

"""Exceptions across processes: the same type, with the traceback of the worker as its cause."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import RemoteTraceback, WorkerError


@dataclass(frozen=True)
class PackedError:
    """An exception on its way to the loader.

    Attributes:
        whole: the exception, pickled, if it can be rebuilt from that.
        parts: its type, arguments and attributes, pickled, if only these can.
        kind: the name of its type.
        text: what it says.
        where: which worker, batch and sample raised it.
        traceback: as text.
    """

    whole: bytes | None
    parts: bytes | None
    kind: str
    text: str
    where: str
    traceback: str

    def rebuild(self) -> BaseException:
        """The exception: as it was, or of the same type with the same text, or a `WorkerError` that tells of it."""
        error = _load_whole(self.whole) or _load_parts(self.parts)
        if error is None:
            error = WorkerError(f"Caught {self.kind} {self.where}: {self.text}")
        error.__cause__ = RemoteTraceback(self.where, self.traceback)
        return error


def pack_error(error: BaseException, where: str) -> PackedError:
    """Make an exception ready to travel."""
    whole = _dump(error)
    copy = _load_whole(whole)
    if copy is None or _text(copy) != _text(error):  # a constructor that makes its text anew would make it twice
        whole = None
    parts = None if whole is not None else _dump((type(error), error.args, error.__dict__))
    if whole is None and _load_parts(parts) is None:
        parts = _dump((type(error), (_text(error),), {}))
        if _load_parts(parts) is None:
            parts = None
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return PackedError(whole, parts, kind, _text(error), where, text)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (a broken __str__ must not hide the error)
        return "(its text cannot be shown)"


def _dump(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001
        import cloudpickle

        try:
            dumped: bytes = cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001
            return None
        return dumped


def _load_whole(whole: bytes | None) -> BaseException | None:
    try:
        error = None if whole is None else pickle.loads(whole)
        if not isinstance(error, BaseException):
            return None
        str(error)
    except Exception:  # noqa: BLE001 (its constructor takes other arguments)
        return None
    return error


def _load_parts(parts: bytes | None) -> BaseException | None:
    try:
        kind, args, attributes = (None, (), {}) if parts is None else pickle.loads(parts)
        if kind is None:
            return None
        error = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(attributes)
        str(error)
    except Exception:  # noqa: BLE001
        return None
    return error if isinstance(error, BaseException) else None

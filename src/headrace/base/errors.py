"""Every error headrace raises by itself.

    Exception
    └── HeadraceError
        ├── InternalError                      a broken invariant: please report it
        ├── MissingExtraError (ImportError)    an optional dependency is not installed
        ├── CollateError (RuntimeError)        samples that cannot become one batch
        └── CollateTypeError (TypeError)       a sample of a type that no collate function knows

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


class CollateError(_FieldError, RuntimeError):
    """Samples cannot become one batch: their shapes or lengths differ."""


class CollateTypeError(_FieldError, TypeError):
    """No collate function is known for the type of a sample."""

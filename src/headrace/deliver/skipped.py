"""Keeps account of the samples that are left out under `on_error="skip"`, so that none is lost without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.base.errors import TooManyBadSamplesError
from headrace.base.messages import BadSample

_MOST_SHOWN = 200  # characters of a key


class SkippedSamples:
    """The samples that one epoch leaves out.

    Guarantees: the first one is told to `warn`; an epoch that gives nothing but errors ends with one.

    Args:
        errors: where they are listed, over all epochs of a loader.
        most: how many may be listed; None for any number.
        warn: called with a text; it may be called more than once.
    """

    def __init__(self, errors: list[BadSample], most: int | None, warn: Callable[[str], None]) -> None:
        self._errors = errors
        self._most = most
        self._warn = warn
        self._untold = 0  # samples of this epoch that no error has told of yet

    def note(self, bad: tuple[BadSample, ...]) -> None:
        """List some more.

        Raises:
            TooManyBadSamplesError: there are more than `most` now.
        """
        self._errors.extend(bad)
        if self._most is not None and len(self._errors) > self._most:
            self._untold = 0
            raise TooManyBadSamplesError(
                f"{len(self._errors)} samples were left out, and max_errors={self._most}. {_last(bad[-1])}"
            )
        self._untold += len(bad)
        self._warn(
            f"on_error='skip' leaves out what raises, here {_place(bad[0])}: {bad[0].error.rstrip('.')}. "
            "This is said once; loader.errors lists all that is left out, with tracebacks."
        )

    def check_epoch(self, delivered: int) -> None:
        """The epoch is over, and has given so many batches.

        Raises:
            TooManyBadSamplesError: it gave none, because everything was left out; raised once.
        """
        left_out, self._untold = self._untold, 0
        if left_out and not delivered:
            raise TooManyBadSamplesError(
                f"The epoch gave no batch: on_error='skip' has left out {left_out} times what raised. "
                f"{_last(self._errors[-1])}"
            ) from None


def _last(bad: BadSample) -> str:
    return f"The last one, {_place(bad)}: {bad.error}. All of them are in loader.errors.\n{bad.traceback}"


def _place(bad: BadSample) -> str:
    return f"batch {bad.batch}" if bad.key is None else f"{_shortened(bad.key)} in batch {bad.batch}"


def _shortened(key: Any) -> str:
    shown = repr(key)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
    return f"samples {shown}" if isinstance(key, list) else f"sample {shown}"

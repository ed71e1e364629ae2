"""Warnings that point at the user's own line, whoever in headrace gives them."""

from __future__ import annotations

import sys
import warnings

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

"""What decides the batches of every epoch of a loader, and can go on in the middle of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from headrace.base.progress import Progress


class Course(Protocol):
    """The keys of the batches, epoch by epoch."""

    def begin(self, progress: Progress) -> Iterable[Any]:
        """The keys of an epoch, from where its `start` was saved; from its beginning if that is empty."""
        ...

    def restore(self, start: Mapping[str, Any]) -> None:
        """Put what lasts longer than an epoch to where it was at the beginning of one."""
        ...

    def save(self, progress: Progress) -> dict[str, Any]:
        """Where an epoch is, as plain values: what `begin` goes on from, and what `check` compares."""
        ...

    def check(self, start: Mapping[str, Any], *, is_edge: bool) -> None:
        """See that a saved place can be gone on from.

        Args:
            is_edge: whether it is the beginning of an epoch.

        Raises:
            StateError: it was saved by another course, or is damaged.
        """
        ...

    def seek(self, batch: int) -> dict[str, Any]:
        """The place before batch number `batch`, as if it were saved."""
        ...

    def n_batches(self, epoch: int) -> int:
        """How many batches an epoch has.

        Raises:
            TypeError: nobody knows.
        """
        ...

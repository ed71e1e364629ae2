"""How long workers are waited for before it is told that they are stuck."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.errors import WorkerTimeoutError, warn_user

_STALL_S = 60.0


class Timeouts:
    """How long a loop waits for a batch.

    Args:
        timeout: seconds after which it gives up; 0 waits for ever, and warns once.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._has_warned = False

    @property
    def seconds(self) -> float:
        """Without any batch, until `complain` is to be called."""
        return self._timeout or _STALL_S

    def complain(self, describe_wait: Callable[[], str]) -> None:
        """Nothing has come for long: raise, or warn.

        Args:
            describe_wait: tells what is waited for.

        Raises:
            WorkerTimeoutError: there is a time-out.
        """
        if self._timeout:
            raise WorkerTimeoutError(f"DataLoader timed out after {self._timeout} seconds. {describe_wait()}")
        if not self._has_warned:
            self._has_warned = True
            warn_user(f"No batch has come for {self.seconds:.0f} seconds. {describe_wait()}")

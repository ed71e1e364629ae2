"""Retries: which errors are temporary, how long to wait, when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headrace.base.errors import InternalError, RetriesExhaustedError

T = TypeVar("T")

_TOO_MUCH_OR_TOO_SLOW = {408, 425, 429}
_NEVER_PASS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, RetriesExhaustedError)
# Errors of clients that are not OSErrors, by name, so that the clients need not be imported.
_CLIENTS_LOST_CONNECTION = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "IncompleteRead"}
_random = random.SystemRandom()  # jitter must not draw from generators that users seed


@dataclass(frozen=True, slots=True)
class Retries:
    """How long to keep trying: with the defaults, about two minutes.

    Attributes:
        attempts: how often an action is tried in all. Reading on after some bytes have come is a new action.
        first_delay_s: the longest wait after the first failure; each next one may be twice as long.
        longest_delay_s: no wait is longer than this.
    """

    attempts: int = 9
    first_delay_s: float = 0.5
    longest_delay_s: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}.")

    def call(self, action: Callable[[], T], what: str) -> T:
        """What `action` returns, retried while its errors are temporary.

        Args:
            what: for the error: "reading s3://bucket/key".

        Raises:
            RetriesExhaustedError: the last attempt has failed too; its cause is that failure.
        """
        for delay_s in self.delays():
            try:
                return action()
            except Exception as error:
                if not is_temporary(error):
                    raise
                if delay_s is None:
                    raise self._give_up(what, error) from error
                time.sleep(delay_s)
        raise InternalError("The delays must end with None.")

    def delays(self) -> Iterator[float | None]:
        """The wait after each failed attempt; None after the last."""
        longest = self.first_delay_s
        for _ in range(self.attempts - 1):
            yield _random.uniform(longest / 2, longest)
            longest = min(longest * 2, self.longest_delay_s)
        yield None

    def _give_up(self, what: str, error: Exception) -> RetriesExhaustedError:
        return RetriesExhaustedError(
            f"Gave up {what} after {self.attempts} attempts; the last error was {type(error).__name__}: {error}."
        )


def is_temporary(error: BaseException) -> bool:
    """Whether the same request may succeed later: timeouts, lost connections, status 5xx and 429, but no 404 or 403."""
    chain = list(_causes(error))
    if any(map(_lost_connection, chain)):
        return True  # whatever status an answer had that broke off
    statuses = [status for each in chain if (status := http_status(each)) is not None]
    if statuses:
        return statuses[-1] >= 500 or statuses[-1] in _TOO_MUCH_OR_TOO_SLOW
    if any(isinstance(each, _NEVER_PASS) for each in chain):
        return False
    return any(isinstance(each, (OSError, asyncio.TimeoutError)) for each in chain)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it: clients wrap a status 503 in a FileNotFoundError."""
    while error is not None:
        yield error
        error = error.__cause__


def http_status(error: BaseException) -> int | None:
    """The HTTP status in an error of aiohttp, botocore or gcsfs."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = error.status if hasattr(error, "status") else getattr(error, "code", None)
    return status if isinstance(status, int) and 100 <= status < 600 else None


def _lost_connection(error: BaseException) -> bool:
    return any(kind.__name__ in _CLIENTS_LOST_CONNECTION for kind in type(error).__mro__)

"""Trying again: what passes, how long is waited, and what is said at the end."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.base.errors import RetriesExhaustedError
from headrace.sources import retry
from headrace.sources.retry import Retries, is_temporary


class AnswerError(Exception):
    """Like the errors of aiohttp."""

    def __init__(self, status):
        self.status = status


class RefusalError(Exception):
    """Like the errors of botocore."""

    def __init__(self, status):
        self.response = {"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}


class ClientPayloadError(Exception):
    """Named like aiohttp's."""


def caused(error, cause):
    error.__cause__ = cause
    return error


TEMPORARY = [
    ConnectionResetError(),
    TimeoutError(),
    asyncio.TimeoutError(),
    OSError(5, "Input/output error"),
    ClientPayloadError(),
    caused(ClientPayloadError(), AnswerError(400)),
    *map(AnswerError, (500, 502, 503, 429, 408)),
    *map(RefusalError, (500, 503, 429)),
    caused(FileNotFoundError(), AnswerError(503)),  # as fsspec tells it
]
LASTING = [
    FileNotFoundError(),
    PermissionError(),
    IsADirectoryError(),
    ValueError(),
    KeyError("x"),
    *map(AnswerError, (400, 401, 403, 404, 416)),
    *map(RefusalError, (403, 404)),
    caused(FileNotFoundError(), AnswerError(404)),
]


@pytest.mark.parametrize("error", TEMPORARY, ids=repr)
def test_what_may_pass(error):
    assert is_temporary(error)


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_will_not(error):
    assert not is_temporary(error)


@pytest.fixture
def waits(monkeypatch):
    waits = []
    monkeypatch.setattr(retry.time, "sleep", waits.append)
    return waits


def failing(n, error):
    """An action that fails n times."""
    failures = iter([error] * n)

    def action():
        for failure in failures:
            raise failure
        return "done"

    return action


def test_waits_get_longer_up_to_a_limit(waits):
    assert Retries(7, first_delay_s=1, longest_delay_s=8).call(failing(6, ConnectionError()), "x") == "done"
    for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert longest / 2 <= wait <= longest
    assert len(set(waits)) > 3  # they are drawn


def test_gives_up(waits):
    with pytest.raises(
        RetriesExhaustedError, match=r"Gave up reading x after 4 attempts; .*ConnectionError: no"
    ) as raised:
        Retries(4).call(failing(4, ConnectionError("no")), "reading x")
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert len(waits) == 3


def test_what_will_not_pass_is_raised_at_once(waits):
    with pytest.raises(PermissionError):
        Retries(4).call(failing(1, PermissionError()), "x")
    assert waits == []


def test_the_users_random_numbers_are_left_alone(waits):
    random.seed(1)
    before = random.getstate()
    Retries(4).call(failing(3, ConnectionError()), "x")
    assert random.getstate() == before


def test_at_least_one_attempt():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Retries(0)

"""The line in the terminal."""

from __future__ import annotations

import io
import itertools

import pytest

from headrace import DataLoader
from headrace.insight import status
from headrace.insight.status import ProgressLine, describe_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def slow_clock(monkeypatch):
    """Every look at the clock takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(status, "perf_counter", lambda: float(next(ticks)))


def test_batches_come_as_they_are(slow_clock):
    terminal = Terminal()
    assert list(ProgressLine([1, 2, 3], terminal)) == [1, 2, 3]
    lines = terminal.getvalue().split("\r\x1b[K")
    assert lines[1].startswith("headrace: 33 %, 1 of 3 batches, 0.5 batches/s, waiting 50 %")
    assert lines[-1].startswith("headrace: 100 %, 3 of 3 batches")
    assert terminal.getvalue().endswith("\n")


def test_without_a_terminal_nothing_is_written():
    file = io.StringIO()
    assert list(ProgressLine(range(3), file)) == [0, 1, 2]
    assert file.getvalue() == ""


def test_without_a_length_there_is_no_percentage(slow_clock):
    terminal = Terminal()
    assert len(list(ProgressLine(iter(range(3)), terminal))) == 3
    assert "%" in terminal.getvalue()
    assert "left" not in terminal.getvalue()


def test_a_loop_that_is_left_ends_the_line(slow_clock):
    terminal = Terminal()
    batches = iter(ProgressLine(range(100), terminal))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert terminal.getvalue().endswith("\n")


def test_it_has_the_length_of_the_loader():
    line = DataLoader(range(10), batch_size=4).progress()
    assert len(line) == 3
    with pytest.raises(TypeError):
        len(ProgressLine(iter(range(3))))


def test_one_is_no_plural():
    assert describe_progress(1, None, 1.0, 0.0).startswith("headrace: 1 batch, ")
    assert describe_progress(1, 1, 1.0, 0.0).startswith("headrace: 100 %, 1 of 1 batch, ")


@pytest.mark.parametrize(("left", "text"), [(59, "59 s left"), (61, "1 min 01 s left"), (3700, "1 h 01 min left")])
def test_the_rest_is_told_as_people_say_it(left, text):
    assert describe_progress(1, 1 + left, 1.0, 0.0).endswith(text)

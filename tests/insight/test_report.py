"""The report says what the numbers say; so does the line in the terminal."""

from __future__ import annotations

import io
import itertools

import pytest

from headrace import DataLoader
from headrace.insight import report
from headrace.insight.figures import Setup
from headrace.insight.report import ProgressLine, Report, describe_progress, stats_of
from tests.insight.recorded import ends_of, recorded, span_of


def report_of(monkeypatch, setup: Setup) -> Report:
    def make_span(number):
        return span_of(
            10 * number, 12, 2, 1, cpu=1_500_000, n_samples=1, slowest=0, slowest_ns=12_000_000, ends=ends_of(9)
        )

    recorder = recorded(monkeypatch, [(3, 7)] * 21, make_span)
    return Report(stats_of(recorder, setup))


def test_a_report_has_a_verdict_and_tables(monkeypatch):
    lines = str(report_of(monkeypatch, Setup("processes", 2, cores=4))).splitlines()
    assert lines[0].startswith("The model waited 30 % of the time. Fetching samples is the bottleneck (12 ms of 15 ms")
    assert lines[2].startswith("21 batches of 1 epoch in 210 ms; 100 samples/s")
    table = [line.split() for line in lines]
    assert ["fetch", "12", "ms", "80", "%", "of", "a", "worker's", "work"] in table
    assert ["wait", "3", "ms", "30", "%", "of", "the", "loop's", "time"] in table
    assert ["step", "7", "ms", "70", "%", "of", "the", "loop's", "time"] in table
    assert ["0", "11", "79", "%", "11", "%"] in table  # worker 0: 11 batches, busy for 165 of 210 ms
    assert ["0", "12", "ms", "0", "0"] in table  # the slowest sample


def test_without_workers_there_is_no_table_of_them(monkeypatch):
    text = str(report_of(monkeypatch, Setup(cores=4)))
    assert "worker  batches" not in text
    assert "ready" not in text


def test_without_workers_no_table_speaks_of_them(monkeypatch):
    _, _, *tables = str(report_of(monkeypatch, Setup(cores=4))).split("\n\n")
    assert "worker" not in "".join(tables)
    table = [line.split() for line in "\n".join(tables).splitlines()]
    assert ["fetch", "12", "ms", "80", "%", "of", "the", "loading"] in table
    assert ["0", "12", "ms", "0"] in table  # the slowest sample, and its batch


def test_one_is_no_plural(monkeypatch):
    stats = report_of(monkeypatch, Setup("processes", 1, cores=4)).stats
    assert "; 1 worker replaced." in str(Report({**stats, "restarts": 1}))
    assert "; 2 workers replaced." in str(Report({**stats, "restarts": 2}))
    assert "\n1 batch of 1 epoch in " in str(Report({**stats, "batches": 1}))


def test_a_report_is_shown_as_it_prints(monkeypatch):
    shown = report_of(monkeypatch, Setup(cores=4))
    assert repr(shown) == str(shown)
    assert shown.bottleneck == shown.stats["bottleneck"] == "fetch"
    assert str(shown).startswith(shown.verdict)


def test_nothing_yet_is_no_error():
    from headrace.insight.recorder import Recorder

    assert str(Report(stats_of(Recorder(), Setup()))).startswith("Too few batches to tell: 0")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def slow_clock(monkeypatch):
    """Every look at the clock takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(report, "perf_counter", lambda: float(next(ticks)))


def test_batches_come_as_they_are(slow_clock):
    terminal = Terminal()
    assert list(ProgressLine([1, 2, 3], terminal)) == [1, 2, 3]
    lines = terminal.getvalue().split("\r\x1b[K")
    assert lines[1].startswith("headrace: 33 %, 1 of 3 batches, 0.33 batches/s, waiting 67 %")
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


def test_one_batch_is_no_plural():
    assert describe_progress(1, None, 1.0, 0.0).startswith("headrace: 1 batch, ")
    assert describe_progress(1, 1, 1.0, 0.0).startswith("headrace: 100 %, 1 of 1 batch, ")


@pytest.mark.parametrize(("left", "text"), [(59, "59 s left"), (61, "1 min 01 s left"), (3700, "1 h 01 min left")])
def test_the_rest_is_told_as_people_say_it(left, text):
    assert describe_progress(1, 1 + left, 1.0, 0.0).endswith(text)

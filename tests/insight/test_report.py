"""The report says what the numbers say."""

from __future__ import annotations

from headrace.insight.figures import Setup
from headrace.insight.report import Report
from headrace.insight.stats import stats_of
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
    report = report_of(monkeypatch, Setup(cores=4))
    assert repr(report) == str(report)
    assert report.bottleneck == report.stats["bottleneck"] == "fetch"
    assert str(report).startswith(report.verdict)


def test_nothing_yet_is_no_error():
    from headrace.insight.recorder import Recorder

    assert str(Report(stats_of(Recorder(), Setup()))).startswith("Too few batches to tell: 0")

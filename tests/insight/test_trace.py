"""The trace has what Perfetto and Chrome want of it."""

from __future__ import annotations

import json

from headrace import DataLoader
from headrace.insight.figures import Setup
from headrace.insight.trace import trace_of
from tests.insight.recorded import ends_of, recorded, span_of


def test_a_trace_has_a_row_for_the_loop_and_each_worker(monkeypatch):
    def make_span(number):
        return span_of(10 * number, 4, 2, 1, n_samples=1, slowest=0, slowest_ns=4, ends=ends_of(10 * number + 4))

    events = trace_of(recorded(monkeypatch, [(3, 7)] * 4, make_span), Setup("threads", 2))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "training loop", 2: "worker 0", 3: "worker 1"}
    assert all(set(event) >= {"name", "ph", "ts", "dur", "pid", "tid"} for event in events if event["ph"] == "X")
    batch = [event for event in events if event["ph"] == "X" and event["args"]["batch"] == 1]
    times = {event["name"]: (event["ts"], event["dur"]) for event in batch}
    assert times == {
        "wait": (10_000, 3_000),
        "step": (13_000, 7_000),
        "batch": (10_000, 7_000),
        "fetch": (10_000, 4_000),
        "collate": (14_000, 2_000),
        "pack": (16_000, 1_000),
        "sample 1": (10_000, 4_000),
    }


def test_a_trace_is_written_as_json(tmp_path):
    loader = DataLoader(["a", "b", "c"], batch_size=1)
    assert len(list(loader)) == 3
    loader.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["training loop", "loading"]

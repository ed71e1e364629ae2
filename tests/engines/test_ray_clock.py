"""Clocks of other machines, and how many workers the loop has need of; neither needs Ray."""

from __future__ import annotations

import time
from array import array

from headrace.base.messages import Span
from headrace.engines.ray_clock import Clock, WorkerPace


def test_spans_of_another_machine_are_translated():
    clock = Clock()
    ahead = 10**12
    clock.note(1000, ahead + 1500, ahead + 3000, 3400)
    clock.note(5000, ahead + 5100, ahead + 6000, 6100)  # the quickest on its way
    ends = array("q", [ahead + 150, ahead + 180]).tobytes()
    span = clock.translated(Span(ahead + 100, ahead + 200, ahead + 210, -1, (), ends=ends))
    assert abs(span.begun - 100) <= 100
    assert span.made - span.begun == 100
    assert array("q", span.ends)[1] - array("q", span.ends)[0] == 30


def look(pace, workers, waits, busy):
    pace._looked_at = time.monotonic() - 1.0
    pace._waited_s = 0.0
    pace.busy_ns = int(busy * 1e9)
    return pace.wanted(workers, waits)


def test_more_workers_while_the_loop_waits_for_busy_ones():
    pace = WorkerPace(1, 8)
    assert look(pace, 1, 0.5, 0.9) == 2
    assert look(pace, 4, 0.5, 3.9) == 6
    assert look(pace, 8, 0.5, 7.9) == 8
    assert look(pace, 4, 0.5, 0.5) == 4  # they are idle: others would not help


def test_fewer_workers_once_several_looks_in_a_row_found_too_many():
    pace = WorkerPace(2, 8)
    assert [look(pace, 4, 0.0, 1.0) for _ in range(4)] == [4, 4, 3, 4]
    assert [look(pace, 2, 0.0, 0.1) for _ in range(4)] == [2, 2, 2, 2]

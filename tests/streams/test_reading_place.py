"""Who reads the windows of a stream: the way by which the loop waits least."""

from __future__ import annotations

import pytest

from headrace.streams.reading_place import ReadingPlace


class Loop:
    """Takes windows, in four parts, and waits for each row so many nanoseconds, by who reads: all before the first."""

    def __init__(self, here_ns, workers_ns, step_ns=0):
        self.place = ReadingPlace()
        self.per_row = {True: here_ns, False: workers_ns}
        self.step_ns = step_ns
        self.now_ns = 1
        self.number = 0
        self.n_here = 0

    def run(self, n_windows, n_rows=1000, noise=lambda i: 1.0):
        self.n_here = 0
        for i in range(n_windows):
            is_here = self.place.is_here
            for part in range(4):
                self.place.take(self.number, n_rows, is_here=is_here, now_ns=self.now_ns)
                waited = round(n_rows * self.per_row[is_here] * noise(i)) * (4 if part == 0 else 0)
                self.place.waited_ns += waited
                self.now_ns += waited + n_rows * self.step_ns
            self.number += 1
            self.n_here += is_here
        return self.n_here


def test_workers_read_first():
    assert Loop(1, 100).run(6) == 0


@pytest.mark.parametrize(("here_ns", "workers_ns"), [(100, 130), (10, 11)])
def test_the_loop_reads_where_workers_take_longer(here_ns, workers_ns):
    loop = Loop(here_ns, workers_ns)
    loop.run(40)
    assert loop.run(1000) > 900


@pytest.mark.parametrize(("here_ns", "workers_ns"), [(130, 100), (100, 100), (100, 101)])
def test_workers_read_where_they_are_not_slower(here_ns, workers_ns):
    loop = Loop(here_ns, workers_ns)
    loop.run(40)
    assert loop.run(1000) < 50


def test_a_loop_that_hardly_waits_tries_nothing():
    assert Loop(here_ns=10, workers_ns=40, step_ns=1000).run(3000) == 0


def test_single_disturbances_decide_nothing():
    loop = Loop(100, 130)
    loop.run(40, noise=lambda i: 50.0 if i % 4 == 0 else 1.0)
    assert loop.run(200) > 190


def test_it_changes_when_the_loop_does():
    loop = Loop(here_ns=100, workers_ns=130)
    loop.run(100)
    loop.per_row[False] = 5  # the model takes its time now, and workers are ahead of it
    loop.step_ns = 500
    loop.run(1100)
    assert loop.run(500) == 0


def test_short_epochs_add_up():
    loop = Loop(here_ns=100, workers_ns=130)
    for _ in range(100):
        loop.place.begin_epoch()
        loop.run(5)
    assert loop.n_here == 5


def test_what_workers_had_ready_when_they_took_over_says_nothing():
    loop = Loop(here_ns=100, workers_ns=130)
    loop.run(300)
    loop.per_row[False] = 5
    while loop.place.is_here:
        loop.run(1)
    loop.run(10)  # was ready
    loop.per_row[False] = 130
    loop.run(40)
    assert loop.run(200) == 200

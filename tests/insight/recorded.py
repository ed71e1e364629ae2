"""Recorders filled by hand, with times in milliseconds that a test decides."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.base.messages import PackedIndices, Span, Task
from headrace.insight import recorder as recorder_module
from headrace.insight.recorder import Recorder, Run

MS = 1_000_000


class Clock:
    """Stands in for `perf_counter_ns`: stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def span_of(begun: float, fetch: float, collate: float = 0, send: float = 0, **rest: Any) -> Span:
    """A span that begins at `begun`, and whose stages take so long."""
    made = begun + fetch + collate
    stages = (("fetch", round(fetch * MS)), ("collate", round(collate * MS)))
    rest = {"cpu": -1, "stages": stages, **rest}
    return Span(*(round(at * MS) for at in (begun, made, made + send)), **rest)


def ends_of(*ends: float) -> bytes:
    return array("q", [round(end * MS) for end in ends]).tobytes()


def indices(*keys: int) -> PackedIndices:
    return PackedIndices(np.array(keys))


class Loop:
    """Runs an epoch by hand.

    Args:
        clock: what `recorder` reads.
        start: how long it takes to start the workers.
    """

    def __init__(self, recorder: Recorder, clock: Clock, epoch: int = 0, start: float = 0) -> None:
        run = recorder.begin(epoch)
        assert run is not None
        self.run: Run = run
        self._clock = clock
        clock.now += round(start * MS)
        self.run.ready()

    def make(self, number: int, worker: int, span: Span, keys: Any = None) -> None:
        keys = indices(number) if keys is None else keys
        self.run.n_tasks += 1
        self.run.made(Task(number, keys, worker), span)

    def turn(self, number: int, wait: float, step: float, batch: Any = None) -> None:
        """The loop waits for a batch, gets it, and works on it."""
        self.run.ask()
        self._clock.now += round(wait * MS)
        self.run.batches += 1
        self.run.samples += 1
        self.run.give(number, batch)
        self._clock.now += round(step * MS)

    def end(self, wait: float = 0) -> None:
        self.run.ask()
        self._clock.now += round(wait * MS)
        self.run.end()


def use_clock(monkeypatch: Any) -> Clock:
    clock = Clock()
    monkeypatch.setattr(recorder_module, "perf_counter_ns", clock)
    return clock


def recorded(
    monkeypatch: Any, turns: Sequence[tuple[float, float]], make_span: Callable[[int], Span] | None = None
) -> Recorder:
    """A recorder of one epoch with these turns (wait and step), whose batches two workers made."""
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for number, (wait, step) in enumerate(turns):
        if make_span is not None:
            loop.make(number, number % 2, make_span(number))
        loop.turn(number, wait, step)
    loop.end()
    return recorder

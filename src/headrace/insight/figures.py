"""From recorded times to the averages that everything else is told from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.insight.recorder import Recorder, Turn, Work
from headrace.insight.totals import Totals

_S = 1e-9  # a nanosecond
_WORST = 10  # one in so many turns of the loop


@dataclass(frozen=True)
class Setup:
    """How a loader is set up.

    Attributes:
        engine: "inline", "threads", "processes", or the name of another one.
        workers: 0 if the loop itself loads.
        cores: that this process may use.
    """

    engine: str = "inline"
    workers: int = 0
    in_order: bool = True
    persistent: bool = False
    cores: int = 1


@dataclass(frozen=True)
class Figures:
    """What came of some epochs. Times are in seconds, and of one batch on average unless it says otherwise.

    Attributes:
        ended: epochs that came to their end.
        seconds: that the epochs took.
        start: until the first batch of an epoch, on average.
        turns: of the loop that the averages are about.
        wait: that the loop waited; `pin` that it pinned or moved the batch itself; `step` that it worked on it.
        fetch: that a worker got the samples; `collate` that it made them a batch; `pack` that it packed it up.
        prepare: that a batch was pinned or moved in a thread of its own.
        receive: of the waiting, what came after the batch had been packed and asked for.
        cpu: the share of a worker's time in which it computed.
        ready: the share of batches that were there when they were asked for.
        ahead: how many batches were.
        stalls: the share of all waiting that the worst tenth of the turns have.
        n_bytes: of a batch.
    """

    epochs: int = 0
    ended: int = 0
    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    start: float = 0.0
    turns: int = 0
    wait: float = 0.0
    pin: float = 0.0
    step: float = 0.0
    fetch: float = 0.0
    collate: float = 0.0
    pack: float = 0.0
    prepare: float = 0.0
    receive: float = 0.0
    cpu: float = 0.0
    ready: float | None = None
    ahead: float | None = None
    stalls: float = 0.0
    n_bytes: float = 0.0

    @property
    def waited(self) -> float:
        """The share of the loop's time in which it did not work on a batch."""
        return _ratio(self.wait + self.pin, self.wait + self.pin + self.step)

    @property
    def work(self) -> float:
        """What a worker needs for a batch."""
        return self.fetch + self.collate + self.pack

    @property
    def started(self) -> float:
        """The share of all time that went by until the first batches came."""
        return _ratio(self.start * self.epochs, self.seconds)


def figures_of(recorder: Recorder, epoch: int | None = None) -> Figures:
    """The figures of all epochs, or of one.

    Raises:
        KeyError: nothing is known of that epoch.
    """
    totals = recorder.totals(epoch)
    workers = totals.all_workers
    turns = [turn for turn in recorder.turns if epoch in (None, turn.epoch) and not turn.is_first]
    work = [work for work in recorder.work if epoch in (None, work.epoch)]
    ready, ahead, receive = _readiness(turns, work)
    return Figures(
        epochs=totals.runs,
        ended=totals.ended,
        batches=totals.batches,
        samples=totals.samples,
        seconds=totals.elapsed_ns * _S,
        start=_ratio(totals.start_ns * _S, totals.starts),
        turns=totals.turns,
        **_per_turn(totals),
        fetch=_ratio(workers.fetch_ns * _S, totals.made),
        collate=_ratio(workers.collate_ns * _S, totals.made),
        pack=_ratio(workers.pack_ns * _S, totals.made),
        prepare=_ratio(totals.prepare_ns * _S, totals.prepared),
        receive=receive,
        cpu=min(_ratio(workers.cpu_ns, workers.cpu_of_ns), 1.0),
        ready=ready,
        ahead=ahead,
        stalls=_stalls(turns),
        n_bytes=_ratio(totals.weighed_bytes, totals.weighed),
    )


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _per_turn(totals: Totals) -> dict[str, float]:
    sums = {"wait": totals.wait_ns, "pin": totals.pin_ns, "step": totals.step_ns}
    return {name: _ratio(ns * _S, totals.turns) for name, ns in sums.items()}


def _readiness(turns: Sequence[Turn], work: Sequence[Work]) -> tuple[float | None, float | None, float]:
    """The share of batches that were ready, how many were, and the seconds until a ready one was there.

    Of streams it is not known: what workers make there are windows.
    """
    packed = {(made.epoch, made.number): made.span.packed for made in work}
    known = [turn for turn in turns if (turn.epoch, turn.number) in packed]
    ahead = [_ahead(turn, packed) for turn in known]
    receive = [turn.arrived - max(turn.asked, packed[turn.epoch, turn.number]) for turn in known]
    n = len(known)
    if not n:
        return None, None, 0.0
    return _ratio(sum(map(bool, ahead)), n), _ratio(sum(ahead), n), _ratio(sum(receive) * _S, n)


def _ahead(turn: Turn, packed: dict[tuple[int, int], int]) -> int:
    number = turn.number
    while packed.get((turn.epoch, number), turn.asked + 1) <= turn.asked:
        number += 1
    return number - turn.number


def _stalls(turns: Sequence[Turn]) -> float:
    waits = sorted((turn.given - turn.asked for turn in turns), reverse=True)
    return _ratio(sum(waits[: -(-len(waits) // _WORST)]), sum(waits))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

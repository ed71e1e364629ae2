"""From recorded times to the averages that all reports are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace.insight.recorder import Recorder, Turn, Work

_S = 1e-9  # a nanosecond
_WORST = 10  # one in so many turns of the loop
_LAST = ("collate", "send")  # of the stages, in every worker

LoaderKind: TypeAlias = Literal["map", "iterable", "stream", "multistream"]


@dataclass(frozen=True)
class Setup:
    """How a loader is set up.

    Attributes:
        engine: "inline", "threads", "processes", or the name of another one.
        workers: 0 if the loop itself loads.
        cores: that this process may use.
        kind: of the data: by index, a user's iterable, a `Stream`, or several sequences side by side.
        rank: of this process, of `world`; and `node`, the name of its machine.
    """

    engine: str = "inline"
    workers: int = 0
    in_order: bool = True
    persistent: bool = False
    cores: int = 1
    kind: LoaderKind = "map"
    rank: int = 0
    world: int = 1
    node: str = ""


@dataclass(frozen=True)
class Figures:
    """What came of some epochs. Times are in seconds, and of one batch on average unless it says otherwise.

    Attributes:
        ended: epochs that came to their end.
        seconds: that the epochs took.
        waited: the share of these in which the loop waited for a batch, the first one and the end included.
        start: until the first batch of an epoch, and `starting` until a worker began with it, on average; `stopping`
            what it took to stop the workers at its end.
        turns: of the loop that were timed, without the first of each epoch.
        late: that the loop waited in these turns, and pinned or moved the batch.
        wait: that the loop waited, for the first batches too; `pin` that it pinned or moved the batch itself; `step`
            that it worked on it.
        stages: that a worker needed for each stage, in their order.
        prepare: that a batch was pinned or moved in a thread of its own.
        receive: of the waiting, what came after the batch had been sent and asked for.
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
    waited: float = 0.0
    start: float = 0.0
    starting: float = 0.0
    stopping: float = 0.0
    turns: int = 0
    late: float = 0.0
    wait: float = 0.0
    pin: float = 0.0
    step: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    prepare: float = 0.0
    receive: float = 0.0
    cpu: float = 0.0
    ready: float | None = None
    ahead: float | None = None
    stalls: float = 0.0
    n_bytes: float = 0.0

    @property
    def waited_later(self) -> float:
        """The share of the time after the first batch of an epoch in which the loop waited."""
        return ratio(self.late, self.late + self.step)

    @property
    def work(self) -> float:
        """What a worker needs for a batch."""
        return sum(self.stages.values())

    @property
    def fetch(self) -> float:
        """What it needs before it can collate."""
        return sum(seconds for name, seconds in self.stages.items() if name not in _LAST)

    @property
    def collate(self) -> float:
        return self.stages.get("collate", 0.0)

    @property
    def pack(self) -> float:
        """What it needs to send the batch."""
        return self.stages.get("send", 0.0)

    @property
    def started(self) -> float:
        """The share of all time that it took to start and stop workers."""
        return ratio(self.starting * self.epochs + self.stopping * self.ended, self.seconds)


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
    pin = ratio(totals.pin_ns * _S, totals.turns)
    stages = sorted(workers.stages.items(), key=lambda stage: stage[0] in _LAST and 1 + _LAST.index(stage[0]))
    return Figures(
        epochs=totals.runs,
        ended=totals.ended,
        batches=totals.batches,
        samples=totals.samples,
        seconds=totals.elapsed_ns * _S,
        waited=ratio(totals.waited_ns, totals.elapsed_ns),
        start=ratio(totals.start_ns * _S, totals.starts),
        starting=ratio(totals.starting_ns * _S, totals.starts),
        stopping=ratio(totals.stopping_ns * _S, totals.ended),
        turns=totals.turns,
        late=ratio((totals.wait_ns + totals.pin_ns) * _S, totals.turns),
        wait=max(ratio(totals.waited_ns * _S, totals.batches) - pin, 0.0),
        pin=pin,
        step=ratio(totals.step_ns * _S, totals.steps),
        stages={name: ratio(ns * _S, totals.made) for name, ns in stages},
        prepare=ratio(totals.prepare_ns * _S, totals.prepared),
        receive=receive,
        cpu=min(ratio(workers.cpu_ns, workers.cpu_of_ns), 1.0),
        ready=ready,
        ahead=ahead,
        stalls=_stalls(turns),
        n_bytes=ratio(totals.weighed_bytes, totals.weighed),
    )


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _readiness(turns: Sequence[Turn], work: Sequence[Work]) -> tuple[float | None, float | None, float]:
    """The share of batches that were ready, how many were, and the seconds until a ready one was there.

    It is not known where the tasks of workers are something else than batches.
    """
    sent = {(made.epoch, made.number): made.span.sent for made in work}
    known = [turn for turn in turns if (turn.epoch, turn.number) in sent]
    ahead = [_ahead(turn, sent) for turn in known]
    receive = [turn.arrived - max(turn.asked, sent[turn.epoch, turn.number]) for turn in known]
    n = len(known)
    if not n:
        return None, None, 0.0
    return ratio(sum(map(bool, ahead)), n), ratio(sum(ahead), n), ratio(sum(receive) * _S, n)


def _ahead(turn: Turn, sent: dict[tuple[int, int], int]) -> int:
    number = turn.number
    while sent.get((turn.epoch, number), turn.asked + 1) <= turn.asked:
        number += 1
    return number - turn.number


def _stalls(turns: Sequence[Turn]) -> float:
    waits = sorted((turn.given - turn.asked for turn in turns), reverse=True)
    return ratio(sum(waits[: -(-len(waits) // _WORST)]), sum(waits))

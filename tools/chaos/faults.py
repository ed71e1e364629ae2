"""Faults: workers die, stop and fail at random moments; the batches are those of an undisturbed run."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from headrace import WorkerDiedError, WorkerStartError
from headrace.engines import launch
from tools.chaos.loaders import (
    CONFIGURATION,
    DEATHS,
    INLINE,
    Configuration,
    Traps,
    Way,
    draw_configuration,
    draw_way,
    plain,
)
from tools.chaos.trials import Part, WrongError, seed_generators

SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGTERM", "SIGSTOP")
_STOPPED_S = 0.01


@dataclass(frozen=True)
class Blow:
    """A signal that a worker gets from outside.

    Attributes:
        at: when so many batches have been given; 0 is right after the start.
        after_ms: then.
        worker: which one; None for all at once.
        again: how often it is repeated, mostly on the worker that has just taken the place.
    """

    signal: str = "SIGKILL"
    at: int = 0
    after_ms: float = 0
    worker: int | None = 0
    again: int = 0


@dataclass
class _Run:
    """What a loader gave.

    Attributes:
        samples: of each epoch, if bad ones are skipped.
        error: with which it gave up.
        n_left_out: samples at which workers died too often.
    """

    batches: list[str] = field(default_factory=list)
    samples: list[list[Any]] = field(default_factory=list)
    error: BaseException | None = None
    n_left_out: int = 0


@dataclass(frozen=True)
class Faults:
    """A loader, and all that happens to it.

    Attributes:
        deaths: how a worker dies that makes a certain sample, for the first time.
        failures: samples that raise a MemoryError, and are skipped.
        descriptors: how many more there may be.
        leave_after: how many batches the first epoch is given up after.
    """

    configuration: Configuration = CONFIGURATION
    way: Way = INLINE
    epochs: int = 1
    blows: tuple[Blow, ...] = ()
    deaths: tuple[tuple[int, str], ...] = ()
    failures: tuple[int, ...] = ()
    descriptors: int | None = None
    leave_after: int | None = None

    def run(self, folder: Path) -> Counter[str]:
        seed_generators(5)
        with tempfile.TemporaryDirectory(dir=folder) as marks:
            policy: dict[str, Any] = {"on_error": "skip"} if self.failures else {}
            failing = Traps(failures=frozenset(self.failures))
            expected = self._load(self._reference, folder, failing, policy)
            seed_generators(5)
            traps = Traps(marks, dict(self.deaths), failing.failures)
            if self.way.engine == "processes":
                policy["on_worker_death"] = "restart"
            fist = _Fist(self.blows)
            try:
                given = self._load(self.way, folder, traps, policy, fist)
            finally:
                fist.stop()
            counts = Counter(faults=fist.n_blows + len(os.listdir(marks)) + len(self.failures) * self.epochs)
        counts["batches"] = len(given.batches)
        if given.error is not None or given.n_left_out:
            counts["gave up"] = 1
        self._compare(given, expected)
        return counts

    def _compare(self, given: _Run, expected: _Run) -> None:
        in_order, is_whole = self.configuration.in_order, given.error is None
        if not given.n_left_out:
            (compare if in_order else compare_unordered)(given.batches, expected.batches, is_whole=is_whole)
            return
        # Batches without a sample are others, and those of a stream are filled up with the next ones. Where an epoch is
        # left after some of them, samples come instead that were not due.
        most = given.n_left_out * (self.configuration.batch_size or 3)
        if self.configuration.kind == "stream":
            most = self.configuration.n  # what is left out may be a window
        for epoch, (mine, theirs) in enumerate(zip(given.samples, expected.samples, strict=False)):
            n_batches = sum(batch.startswith(f"{epoch}: ") for batch in expected.batches)
            beyond = most if n_batches == self._most(epoch) else 0
            compare_samples(mine, theirs, in_order=in_order, beyond=beyond)

    @property
    def _reference(self) -> Way:
        """The undisturbed way; where it matters how batches are made, the same."""
        configuration = self.configuration
        # Workers read a sampler ahead of the loop, as torch's do; one that goes on where it was left has moved as far.
        is_left = self.leave_after is not None or configuration.most < configuration.n
        reads_on = configuration.form == "with a state" and self.epochs > 1 and is_left
        return self.way if reads_on or configuration.depends_on(self.way) else Way()

    def _load(self, way: Way, folder: Path, traps: Traps, policy: dict[str, Any], fist: _Fist | None = None) -> _Run:
        run = _Run()
        loader = self.configuration.make(way, folder, traps, **policy)
        try:
            with loader, self._limits(fist is not None):
                for epoch in range(self.epochs):
                    batches = iter(loader)
                    batches.begin_now()  # also if no batch is taken from it
                    run.samples.append([])
                    if fist is not None:
                        fist.aim(batches)
                    for batch in islice(batches, self._most(epoch)):
                        run.batches.append(f"{epoch}: {plain(batch)!r}")
                        if policy.get("on_error") == "skip":
                            run.samples[-1] += self.configuration.samples(batch)
                        if fist is not None:
                            fist.tell(len(run.batches))
        except (WorkerDiedError, WorkerStartError) as error:
            if fist is None:
                raise
            run.error = error
        # A sample at which workers die again and again is left out like one that raises, and listed.
        run.n_left_out = sum("WorkerDiedError" in bad.error for bad in loader.errors)
        return run

    def _most(self, epoch: int) -> int:
        """After how many batches an epoch is left."""
        return self.configuration.most if epoch or self.leave_after is None else self.leave_after

    def _limits(self, is_limited: bool) -> Any:
        return _Descriptors(self.descriptors if is_limited else None)


class _Descriptors:
    """Inside, there are only so many more descriptors."""

    def __init__(self, more: int | None) -> None:
        self._more = more

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._more is not None:
            n = max(map(int, os.listdir("/proc/self/fd"))) + self._more
            resource.setrlimit(resource.RLIMIT_NOFILE, (n, self._before[1]))

    def __exit__(self, *error: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)


class _Fist:
    """Strikes workers: from the loop, or some time later from a thread of its own."""

    def __init__(self, blows: tuple[Blow, ...]) -> None:
        self.n_blows = 0
        self._blows = sorted((blow for blow in blows if blow.after_ms), key=lambda blow: blow.at)
        self._own_blows = [blow for blow in blows if not blow.after_ms]
        self._engine: Any = None
        self._given = 0
        self._is_over = False
        self._turn = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="fist", daemon=True)
        if self._blows:
            self._thread.start()

    def aim(self, iterator: Any) -> None:
        with self._turn:
            self._engine = iterator._batches._engine
            self._turn.notify()
        self._strike_now()

    def tell(self, given: int) -> None:
        """So many batches have been given; strikes at once where there is no time to wait."""
        with self._turn:
            self._given = given
            self._turn.notify()
        self._strike_now()

    def _strike_now(self) -> None:
        for blow in [blow for blow in self._own_blows if blow.at <= self._given]:
            self._own_blows.remove(blow)
            for _ in range(blow.again + 1):
                for pid in self._pids(blow.worker):
                    self._strike(pid, blow.signal)

    def stop(self) -> None:
        with self._turn:
            self._is_over = True
            self._turn.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        for blow in self._blows:
            with self._turn:
                self._turn.wait_for(lambda at=blow.at: self._is_over or (self._engine and self._given >= at))
                if self._is_over:
                    return
            for _ in range(blow.again + 1):
                time.sleep(blow.after_ms / 1000)
                if self._is_over:
                    return
                for pid in self._pids(blow.worker):
                    self._strike(pid, blow.signal)

    def _pids(self, worker: int | None) -> list[int]:
        for _ in range(10):
            with suppress(RuntimeError, AttributeError, ValueError):  # they change just now
                pids = self._engine.pids()
                return [pid for number, pid in pids.items() if pid and worker in (None, number)]
        return []

    def _strike(self, pid: int, name: str) -> None:
        with suppress(ProcessLookupError, OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            os.kill(pid, getattr(signal, name))
            self.n_blows += 1
            if name == "SIGSTOP":
                time.sleep(_STOPPED_S)
                os.kill(pid, signal.SIGCONT)


def compare(given: list[str], expected: list[str], *, is_whole: bool) -> None:
    """See that batches are those expected, or without the last ones if not `is_whole`.

    Raises:
        WrongError: one is missing, comes twice, or is another.
    """
    for number, (one, other) in enumerate(zip(given, expected, strict=False)):
        if one != other:
            kind = "comes again" if one in expected[:number] else "comes too early" if one in expected else "is wrong"
            raise WrongError(f"Batch {number} of {len(expected)} {kind}: {one:.200} instead of {other:.200}")
    if len(given) > len(expected) or (is_whole and len(given) < len(expected)):
        raise WrongError(f"There are {len(given)} batches, and should be {len(expected)}.")


def compare_unordered(given: list[str], expected: list[str], *, is_whole: bool) -> None:
    """See that batches are those expected in any order, or some of them if not `is_whole`.

    Raises:
        WrongError: one is missing, comes twice, or is another.
    """
    for batch, n in (Counter(given) - Counter(expected)).items():
        kind = "comes again" if batch in expected else "is wrong"
        raise WrongError(f"A batch of {len(expected)} {kind}, {n} times: {batch:.200}")
    if is_whole and len(given) < len(expected):
        raise WrongError(f"There are {len(given)} batches, and should be {len(expected)}.")


def compare_samples(given: list[Any], expected: list[Any], *, in_order: bool, beyond: int) -> None:
    """See that the samples of an epoch are among those expected, each once, and up to `beyond` later ones.

    Raises:
        WrongError: too many are others, come twice, or come too late.
    """
    others = list((Counter(given) - Counter(expected)).elements())
    if in_order:
        due = iter(expected)
        others = [sample for sample in given if sample not in due]  # looks for it in what is left
    if len(others) > beyond:
        raise WrongError(f"{len(others)} of {len(given)} samples are wrong or come again: {others[:5]!r:.200}")


def draw(chance: random.Random) -> Faults:
    configuration = draw_configuration(chance)
    way = draw_way(chance, *["processes"] * 6, "threads")
    epochs = chance.randint(1, 2)
    if way.engine == "threads" and configuration.has_own_draws:
        configuration = replace(configuration, draw="rng")
    if configuration.kind in ("map", "iterable") and not configuration.draws_freely and chance.random() < 0.2:
        configuration = replace(configuration, in_order=False, most=1000)
    if way.engine == "processes" and chance.random() < 0.03:
        way = replace(way, method=chance.choice(["forkserver", "spawn"]))
    leave_after = None
    if configuration.is_moved_by_chance(way, configuration.most):
        configuration = replace(configuration, most=1000)
    if epochs > 1 and configuration.in_order and chance.random() < 0.3:
        leave_after = chance.randint(0, 5)
        if configuration.is_moved_by_chance(way, leave_after):
            leave_after = None
    numbers = range(configuration.n)
    failures: tuple[int, ...] = ()
    # What raises ends a generator, and the rest of a sequence: of these kinds, nobody knows what is left.
    if configuration.kind in ("map", "stream") and configuration.n > 8 and chance.random() < 0.5:
        failures = tuple(chance.sample(numbers, chance.randint(1, 3)))
    if way.engine != "processes":
        return Faults(configuration, way, epochs, failures=failures, leave_after=leave_after)
    doomed = chance.sample(numbers, min(len(numbers), chance.choice([0, 0, 1, 2, 4])))
    n_batches = epochs * configuration.n // (configuration.batch_size or 1)
    return Faults(
        configuration,
        way,
        epochs,
        tuple(_draw_blow(chance, n_batches) for _ in range(chance.choice([1, 4, 8, 16]))),
        tuple((number, chance.choice(list(DEATHS))) for number in doomed),
        failures if chance.random() < 0.5 else (),
        chance.randint(3, 40) if chance.random() < 0.04 else None,
        leave_after,
    )


def _draw_blow(chance: random.Random, n_batches: int) -> Blow:
    return Blow(
        chance.choice([*SIGNALS, "SIGKILL", "SIGTERM", "SIGKILL"]),
        at=chance.choice([0, n_batches, chance.randint(0, n_batches), chance.randint(0, n_batches)]),
        after_ms=chance.choice([0, 0, chance.random(), chance.random() * 10]),
        worker=chance.choice([None, 0, 0, 1, 1]),
        again=chance.choice([0, 0, 0, 1, 3]),
    )


def _start_helpers() -> None:
    """What `multiprocessing` keeps for good is there before anybody counts what is left."""
    resource_tracker.ensure_running()
    launch._preload(multiprocessing.get_context("forkserver"))
    forkserver.ensure_running()


PART = Part("faults", draw, per_process=40, prepare=_start_helpers)

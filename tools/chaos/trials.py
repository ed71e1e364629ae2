"""Runs trials in processes of their own, for as long as there is time: counts, progress, and a script per failure."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headrace.base.generators import GENERATORS

LONGEST_S = 60
"""A trial that takes longer hangs."""

_TOLD_EVERY_S = 10
_MOST_SIMPLER = 60  # trials, in search of the simplest that fails
_SIMPLER_S = 15
_TRIES = 3  # of a simpler one: what fails may depend on timing
_MOST_SIMPLIFIED = 5  # failures
_WARM_AFTER = 10  # trials of a process, after which its memory must not grow
_MOST_GROWTH_MB = 100  # hundreds of the largest trials in one process took less than 30, and none imports torch
_NOISE = re.compile(r"0x[0-9a-f]+|\d+")


class WrongError(Exception):
    """Something is not as it should be."""


class Trial(Protocol):
    """Something to try: a frozen dataclass, whose `repr` makes it again."""

    def run(self, folder: Path) -> Counter[str]:
        """Try it, and count what was done.

        Raises:
            WrongError: something is not as it should be. Any other error is none that a user should see, either.
        """
        ...


@dataclass(frozen=True)
class Part:
    """One kind of chaos.

    Attributes:
        draw: the trial of a seed.
        per_process: how many trials one process makes, one after the other.
        prepare: called in each of these processes.
    """

    name: str
    draw: Callable[[random.Random], Trial]
    per_process: int = 1
    prepare: Callable[[], None] = gc.freeze


@dataclass
class Summary:
    """What came of the trials of a part."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        counted = ", ".join(f"{n:,} {what}" for what, n in sorted(self.counts.items()))
        return f"{counted or 'nothing'}; {len(self.failures)} failures in {self.seconds:.0f} s"


# One trial


def seed_generators(seed: int) -> None:
    for generator in GENERATORS:
        generator.seed(seed)


def try_once(trial: Trial, folder: Path) -> tuple[Counter[str], str | None]:
    """What a trial counted, and what is wrong; in this process, of which nothing may be left afterwards."""
    before = _left()
    seed_generators(3)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            counts = trial.run(folder)
    except WrongError as error:
        return Counter(), str(error)
    except BaseException:  # noqa: BLE001 (whatever it is, it should not be)
        return Counter(), traceback.format_exc()
    wrong = None
    for _ in range(20):
        left = _left()
        wrong = next(
            (f"{left[what]} {what} are left, and there were {n}." for what, n in before.items() if left[what] > n), None
        )
        if wrong is None:
            break
        time.sleep(0.05)
    return counts, wrong


def _left() -> dict[str, int]:
    """What a trial must not leave behind."""
    gc.collect()
    return {
        "children": len(multiprocessing.active_children()),
        "threads": sum(thread.name.startswith("headrace") for thread in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": Path("/proc/self/maps").read_text().count("memfd:headrace"),
    }


def _memory_mb() -> float:
    match = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


# Many


class _Child:
    """A process that makes trials, and tells of each after it.

    Args:
        until: when no other one is begun.
    """

    def __init__(
        self,
        trials: Iterator[tuple[int, Trial]],
        folder: Path,
        prepare: Callable[[], None],
        until: float = float("inf"),
    ) -> None:
        self._read, write = os.pipe()
        self._rest = b""
        self.trial: tuple[int, Trial] | None = None
        self.deadline = time.monotonic() + LONGEST_S
        self._trials = list(trials)
        self._next = 0
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            with suppress(BaseException):
                os.close(self._read)
                os.setpgid(0, 0)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                prepare()
                warm_mb = 0.0
                for number, (_, trial) in enumerate(self._trials):
                    if number and time.monotonic() > until:
                        _send(write, None)
                        break
                    counts, wrong = try_once(trial, folder)
                    if number == _WARM_AFTER:
                        warm_mb = _memory_mb()
                    if number > _WARM_AFTER and _memory_mb() > warm_mb + _MOST_GROWTH_MB:
                        wrong = wrong or f"Memory has grown from {warm_mb:.0f} to {_memory_mb():.0f} MB."
                    _send(write, (counts, wrong))
            os._exit(0)
        os.close(write)
        self.trial = self._trials[0]

    def fileno(self) -> int:
        return self._read

    def receive(self) -> Iterator[tuple[tuple[int, Trial], Counter[str], str | None]]:
        """What has come; a child that ended too early tells of the trial that it was at."""
        data = os.read(self._read, 2**16)
        self._rest += data
        while len(self._rest) >= 4 and len(self._rest) >= 4 + (n := struct.unpack("<I", self._rest[:4])[0]):
            message = pickle.loads(self._rest[4 : 4 + n])
            self._rest = self._rest[4 + n :]
            if message is None:  # there is no time for the others
                self.trial = None
            else:
                yield self._done(), *message
        if not data:
            self._end()
            if self.trial is not None:
                yield self._done(), Counter(), "The process of the trial died."
                self.trial = None

    def _done(self) -> tuple[int, Trial]:
        done, self._next = self._trials[self._next], self._next + 1
        self.trial = self._trials[self._next] if self._next < len(self._trials) else None
        self.deadline = time.monotonic() + LONGEST_S
        return done

    def stop(self) -> None:
        """End it, and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._end()
        self.trial = None

    def _end(self) -> None:
        os.close(self._read)
        os.waitpid(self.pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what it left behind


def _send(fd: int, message: Any) -> None:
    data = pickle.dumps(message)
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(fd, data) :]


def run_part(
    part: Part, seed: int, seconds: float, jobs: int, scripts: Path, *, only: int | None = None, quiet: bool = False
) -> Summary:
    """Make trials of a part for so many seconds, or only one of them.

    Args:
        scripts: a folder for the scripts of failures.
    """
    started = told_at = time.monotonic()
    summary, number = Summary(), 0
    children: list[_Child] = []
    known: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as name:
        folder = Path(name)
        try:
            while True:
                has_time = time.monotonic() - started < seconds and (only is None or not number)
                while has_time and len(children) < jobs:
                    numbers = [only] if only is not None else range(number, number + part.per_process)
                    drawn = ((n, part.draw(random.Random(f"{seed}-{part.name}-{n}"))) for n in numbers)
                    children.append(_Child(drawn, folder, part.prepare, started + seconds))
                    number += len(numbers)
                if not children:
                    break
                readable, _, _ = select.select(children, [], [], 0.5)
                for child in list(children):
                    if child in readable:
                        for trial, counts, wrong in child.receive():
                            _note(summary, part, seed, trial, counts, wrong, known, scripts, folder)
                        if child.trial is None:
                            children.remove(child)
                            with suppress(OSError, ChildProcessError):
                                child.stop()
                    elif time.monotonic() > child.deadline and child.trial is not None:
                        trial = child.trial
                        child.stop()
                        children.remove(child)
                        _note(summary, part, seed, trial, Counter(), "It hangs.", known, scripts, folder)
                if not quiet and time.monotonic() - told_at > _TOLD_EVERY_S:
                    told_at = time.monotonic()
                    summary.seconds = told_at - started
                    print(f"{part.name:10} {summary}", flush=True)
        finally:
            for child in children:
                with suppress(OSError, ChildProcessError):
                    child.stop()
    summary.seconds = time.monotonic() - started
    return summary


def _note(
    summary: Summary,
    part: Part,
    seed: int,
    trial: tuple[int, Trial],
    counts: Counter[str],
    wrong: str | None,
    known: Counter[str],
    scripts: Path,
    folder: Path,
) -> None:
    summary.counts += counts
    summary.counts["trials"] += 1
    if wrong is None:
        return
    number, tried = trial
    what = wrong.strip().splitlines()[-1]
    summary.failures.append(f"{part.name} {number}: {what}")
    kind = _NOISE.sub("#", what)[:60]
    known[kind] += 1
    print(f"FAILURE {part.name} {number}: {wrong.strip()[-1500:]}\n  {tried}", flush=True)
    if known[kind] == 1 and len(known) <= _MOST_SIMPLIFIED and wrong != "It hangs.":
        tried = simplify(tried, folder, part.prepare)
    path = write_script(tried, wrong, f"{part.name}-{seed}-{number}", scripts)
    print(f"  {path}\n  again: python -m tools.chaos --only {part.name} --seed {seed} --trial {number}", flush=True)


# The simplest trial that fails


def fails(trial: Trial, folder: Path, prepare: Callable[[], None]) -> bool:
    """Whether a trial fails, in a process of its own, at one of a few tries."""
    for _ in range(_TRIES):
        child = _Child(iter([(0, trial)]), folder, prepare)
        readable, _, _ = select.select([child], [], [], LONGEST_S / 3)
        outcomes = [] if not readable else list(child.receive())
        with suppress(OSError, ChildProcessError):
            child.stop()
        if not outcomes or outcomes[0][2] is not None:
            return True
    return False


def simplify(trial: Trial, folder: Path, prepare: Callable[[], None]) -> Trial:
    """A trial that fails, too, with fewer things that differ from the defaults."""
    deadline, n_left = time.monotonic() + _SIMPLER_S, _MOST_SIMPLER
    found = True
    while found:
        found = False
        for simpler in _simpler(trial):
            n_left -= 1
            if n_left < 0 or time.monotonic() > deadline:
                return trial
            if fails(simpler, folder, prepare):
                trial, found = simpler, True
                break
    return trial


def _simpler(value: Any) -> Iterator[Any]:
    """The same with one thing left out, or as it is by default."""
    for one in fields(value):
        now = getattr(value, one.name)
        if one.default is not MISSING and now != one.default:
            yield replace(value, **{one.name: one.default})
        if isinstance(now, tuple) and now:
            for i in range(len(now)):
                yield replace(value, **{one.name: now[:i] + now[i + 1 :]})
        if is_dataclass(now) and not isinstance(now, type):
            for simpler in _simpler(now):
                yield replace(value, **{one.name: simpler})


def write_script(trial: Trial, wrong: str, name: str, scripts: Path) -> Path:
    """A script that makes a trial again."""
    scripts.mkdir(parents=True, exist_ok=True)
    path = scripts / f"{name}.py"
    told = "".join(f"# {line}\n" for line in wrong.strip().splitlines()[-12:])
    path.write_text(
        f"{told}# Run from the root of the repository: PYTHONPATH=src:. python {path.name}\n"
        f"from {type(trial).__module__} import *\n"
        "from tools.chaos.loaders import *\n"
        "from tools.chaos.trials import replay\n\n"
        f"replay({trial!r})\n"
    )
    return path


def replay(trial: Trial) -> None:
    """Try it until it fails, at most twenty times.

    Raises:
        SystemExit: it fails.
    """
    part: Part | None = getattr(sys.modules[type(trial).__module__], "PART", None)
    if part is not None:
        part.prepare()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as name:
        for i in range(20):
            counts, wrong = try_once(trial, Path(name))
            if wrong is not None:
                sys.exit(f"Fails at try {i + 1}: {wrong}")
    print(f"20 tries, no failure; the last one counted {dict(counts)}")

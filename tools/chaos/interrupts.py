"""Interrupts: small programs get Ctrl-C at random moments, and are judged from outside.

    python -m tools.chaos.interrupts --seed 1 --tries 300
    python -m tools.chaos.interrupts --seconds 600 --jobs 2

Each program loads in a random way, and is interrupted while it starts, in the middle, as it breaks, closes, collects
garbage, replaces a worker, or exits. It must get one KeyboardInterrupt, soon, with one traceback, and nothing may stay
behind. Some programs catch it and go on: then what they opened and started must be gone soon, too.

Exit code 1 means that a program failed; its script is kept in the folder that is printed, and runs by itself.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

KINDS = ("map", "seeded", "iterable", "stream", "shuffled", "multistream")
ENGINES = ("inline", "threads", "fork", "fork", "fork", "forkserver", "spawn")
MOMENTS = ("start", "middle", "middle", "break", "break", "close", "collect", "restart", "exit")
FAILURES = ("swallowed", "slow", "several tracebacks", "hung", "leaked", "failed")

SLOW_S = 1.0
_HANGS_S = 20.0
_LEAVE_S = 8.0

_SCRIPT = '''\
"""{config}"""
import gc, os, signal, sys, threading, time
import numpy as np
from headrace import DataLoader, Dataset, IterableDataset, MultiStreamDataLoader, Stream, get_worker_info

signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background inherit that it is ignored
SLOW, KILLS = {slow!r}, {kills!r}


def sample(number):
    """Some are slow; some kill their worker, if it is one."""
    if number % 17 == 16:
        if KILLS and get_worker_info() is not None and os.urandom(1)[0] < 60:
            os.kill(os.getpid(), signal.SIGKILL)
        if SLOW == "sleep":
            time.sleep(30)
        elif SLOW == "busy":
            end = time.monotonic() + 30
            while time.monotonic() < end:
                pass
    time.sleep(0.002)
    return np.full({width}, number)


class Samples(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return sample(index)


class Iterable(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(0 if info is None else info.id, 100, 1 if info is None else info.num_workers):
            yield sample(number)


def read(block):
    for number in range(block, block + 10):
        yield sample(number)


def make():
    options = dict({options})
    kind = {kind!r}
    if kind == "map":
        return DataLoader(Samples(), batch_size=4, **options)
    if kind == "seeded":
        return DataLoader(Samples(), batch_size=4, shuffle=True, seed=1, **options)
    if kind == "iterable":
        return DataLoader(Iterable(), batch_size=4, **options)
    if kind == "multistream":
        return MultiStreamDataLoader([0, 10, 20, 30], 4, read=read, **options)
    stream = Stream.from_blocks(range(0, 100, 10), read)
    return DataLoader(stream.shuffle(blocks=2) if kind == "shuffled" else stream, batch_size=4, seed=1, **options)


def leave_by(what, loader, iterator):
    """How an epoch is given up."""
    if what == "close":
        iterator.close()
    elif what == "collect":
        holder = [iterator, loader]
        holder.append(holder)
        del iterator, holder
        gc.collect()


def load():
    print("go", flush=True)
    loader = make()
    for epoch in range({epochs}):
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            time.sleep({step})
            if number == {last}:
                print("leaving", flush=True)
                leave_by({leave!r}, loader, iterator)
                break
        if {leave!r} == "collect":
            loader = iterator = None
            loader = make()
    return loader


def children():
    """That run, or wait to be reaped; multiprocessing keeps its own helpers."""
    from multiprocessing import forkserver, resource_tracker

    helpers = [resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid]
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open("/proc/" + pid + "/stat").read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and int(pid) not in helpers:
            found.append((pid, fields[0]))
    return found


def descriptors():
    links = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.exists(link) or os.path.islink(link)]


def leftovers():
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    files = [name for name in descriptors() if "headrace" in name or "pidfd" in name]
    return children(), threads if {engine!r} != "threads" else [], files


def main():
    try:
        load()
    except KeyboardInterrupt:
        os.write(1, b"raised %.3f\\n" % time.monotonic())
        if not {catches!r}:
            raise
        caught = True
    if {catches!r}:
        gc.collect()
        deadline = time.monotonic() + {leave_s}
        while any(leftovers()) and time.monotonic() < deadline:
            time.sleep(0.01)
        print("left behind:", *leftovers(), flush=True) if any(leftovers()) else print("clean", flush=True)


{setup}main()
'''

_PREPARE = """\
import headrace.epochs
from headrace.deliver.device import Delivery

headrace.epochs.plan_delivery = lambda *_: Delivery(prepare=lambda batch: batch)  # as with a device
"""


@dataclass(frozen=True)
class Program:
    """A program, and when it is interrupted.

    Attributes:
        moment: what it is about to do when the interrupt comes, `after_s` seconds after it said so.
        slow: how samples that never come are waited for: "sleep", "busy" or "" for none of them.
        catches: whether it catches the interrupt and goes on for a moment.
        group: whether its workers get the signal too, as in a terminal.
    """

    kind: str
    engine: str
    moment: str
    after_s: float
    slow: str
    persistent: bool
    prepares: bool
    catches: bool
    group: bool
    width: int
    step: float
    last: int

    @classmethod
    def draw(cls, draws: random.Random, *, engines: Sequence[str] = ENGINES) -> Program:
        engine = draws.choice(engines)
        has_workers = engine != "inline"
        has_processes = engine not in ("inline", "threads")
        moment = draws.choice([moment for moment in MOMENTS if has_processes or moment != "restart"])
        longest = {"start": 0.5, "middle": 1.0, "restart": 1.0, "exit": 0.1}.get(moment, 0.03)
        if moment == "start" and engine in ("forkserver", "spawn"):
            longest = 1.5
        return cls(
            kind=draws.choice(KINDS),
            engine=engine,
            moment=moment,
            after_s=draws.random() * longest,
            slow=draws.choice(["", "sleep", "busy" if has_processes else "sleep"]) if has_workers else "",
            persistent=has_workers and draws.random() < 0.4,
            prepares=has_workers and draws.random() < 0.25,
            catches=moment != "exit" and draws.random() < 0.4,
            group=draws.random() < 0.7,
            width=draws.choice([1, 1, 20_000]),
            step=draws.choice([0, 0, 0.005]),
            last=draws.choice([0, 1, 3]),
        )

    def script(self) -> str:
        options = {"output": "'numpy'"}
        if self.engine != "inline":
            options["num_workers"] = "2"
        if self.engine == "threads":
            options["engine"] = "'threads'"
        elif self.engine != "inline":
            options["multiprocessing_context"] = f"'{self.engine}'"
            if self.moment == "restart":
                options["on_worker_death"] = "'restart'"
        if self.persistent:
            options["persistent_workers"] = "True"
        runs_on = self.moment in ("start", "middle", "restart")
        return _SCRIPT.format(
            config=self,
            slow="" if self.moment in ("middle", "restart") and self.slow == "busy" else self.slow,
            kills=self.moment == "restart",
            width=self.width,
            options=", ".join(f"{name}={value}" for name, value in options.items()),
            kind=self.kind,
            engine=self.engine,
            epochs=1 if self.moment == "exit" else 10**6,
            step=self.step,
            last=-1 if runs_on and not (self.slow == "" and self.last) else self.last,
            leave=self.moment if self.moment in ("close", "collect") else "",
            catches=self.catches,
            leave_s=_LEAVE_S,
            setup="import warnings\nwarnings.simplefilter('ignore')\n" + (_PREPARE if self.prepares else ""),
        )

    def run(self, folder: Path) -> Verdict:
        """Run it, interrupt it, and judge what became of it."""
        path = folder / f"program-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}.py"
        path.write_text(self.script())
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=environment,
        )
        try:
            verdict = self._judge(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        verdict.script = path
        if not verdict.failures:
            path.unlink()
        return verdict

    def _judge(self, process: subprocess.Popen[str]) -> Verdict:
        assert process.stdout is not None
        said = "leaving" if self.moment in ("break", "close", "collect", "exit") else "go"
        for line in process.stdout:
            if line.strip() == said:
                break
        time.sleep(self.after_s)
        sent = time.monotonic()
        if process.poll() is not None:
            return Verdict(self, ["void"], *process.communicate(), 0.0)  # it had ended before
        (os.killpg if self.group else os.kill)(process.pid, signal.SIGINT)
        try:
            stdout, stderr = process.communicate(timeout=_HANGS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            how = "swallowed" if "Exception ignored" in stderr or "leaving" in stdout else "hung"
            return Verdict(self, [how], stdout, stderr, _HANGS_S)
        ended = time.monotonic()
        raised = [float(line.split()[1]) for line in stdout.splitlines() if line.startswith("raised")]
        took = (raised[0] if self.catches and raised else ended) - sent
        return Verdict(self, list(self._failures(process, stdout, stderr, raised, took)), stdout, stderr, took)

    def _failures(
        self, process: subprocess.Popen[str], stdout: str, stderr: str, raised: list[float], took: float
    ) -> Iterator[str]:
        tracebacks = stderr.count("Traceback (most recent call last)")
        at_exit = self.moment == "exit"
        is_told = process.returncode == -signal.SIGINT or (self.catches and process.returncode == 0)
        if "Exception ignored in" in stderr and not at_exit:
            yield "swallowed"
        elif not raised and not at_exit:
            yield "failed" if tracebacks and not is_told else "swallowed"
        if not at_exit and raised and not is_told:
            yield "failed"
        if took > SLOW_S:
            yield "slow"
        if tracebacks > (0 if self.catches else 1):
            yield "several tracebacks"
        if (self.catches and "left behind" in stdout) or _left_of_session(process.pid):
            yield "leaked"


@dataclass
class Verdict:
    """What became of a program."""

    program: Program
    failures: list[str]
    stdout: str
    stderr: str
    seconds: float
    script: Path = Path()

    def __str__(self) -> str:
        return (
            f"{', '.join(self.failures)} after {self.seconds:.2f} s: {self.program}\n  {self.script}\n"
            + _indented(self.stdout[-600:])
            + _indented(self.stderr[-2500:])
        )


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _left_of_session(session: int) -> list[int]:
    """Processes of a session that are there a moment after its leader has ended."""
    deadline = time.monotonic() + _LEAVE_S
    while True:
        left = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    left.append(int(pid))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def main(argv: Sequence[str] | None = None) -> int:
    """Interrupt many programs; 1 if any of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the programs and the moments")
    parser.add_argument("--tries", type=int, default=None, help="how many programs; default 300")
    parser.add_argument("--seconds", type=float, default=None, help="run for so long instead")
    parser.add_argument("--jobs", type=int, default=1, help="how many programs run at once")
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=sorted(set(ENGINES)))
    asked = parser.parse_args(argv)
    tries = asked.tries if asked.tries is not None or asked.seconds is not None else 300
    deadline = None if asked.seconds is None else time.monotonic() + asked.seconds
    folder = Path(tempfile.mkdtemp(prefix="headrace-interrupts-"))
    counts: Counter[str] = Counter()
    slowest = 0.0

    numbers = count() if tries is None else iter(range(tries))

    def run_some(_: int) -> None:
        for number in numbers:
            if deadline is not None and time.monotonic() > deadline:
                return
            run_one(number)

    def run_one(number: int) -> None:
        nonlocal slowest
        program = Program.draw(random.Random(f"{asked.seed}/{number}"), engines=asked.engines)
        verdict = program.run(folder)
        counts["tries"] += 1
        counts.update(set(verdict.failures))
        if not verdict.failures:
            slowest = max(slowest, verdict.seconds)
        if verdict.failures and verdict.failures != ["void"]:
            print(f"program {number} of seed {asked.seed}: {verdict}", flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(run_some, range(asked.jobs)))
    figures = ", ".join(f"{counts[name]} {name}" for name in (*FAILURES, "void"))
    # Those that had ended before, mostly because workers died too often, say nothing.
    print(f"interrupts: seed {asked.seed}, {counts['tries']} tries: {figures}; the slowest good one {slowest:.2f} s")
    has_failed = any(counts[name] for name in FAILURES)
    if has_failed:
        print(f"The scripts of the failures: {folder}")
    else:
        shutil.rmtree(folder)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())

"""Loads for a long time: random configurations, workers killed at random, every batch compared, nothing left behind.

    python tools/soak.py --minutes 10
    python tools/soak.py --seed 7 --round 123     # one configuration again

The first deviation ends it with exit code 1, and with the seed and the configuration to see it again.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from headrace import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from headrace.engines import launch

LONGEST_ROUND_S = 180
WARM_UP_ROUNDS = 20
ALLOWED_GROWTH_MB = 150


class DeviationError(Exception):
    """Something is not as it should be."""


@dataclass(frozen=True)
class Configuration:
    """What is drawn for one round.

    Attributes:
        lengths: how many samples each worker has if `streams`; else their sum is the length of the dataset.
        deaths: "none"; "inside": samples that kill their worker once; "outside": workers killed from the loop.
        breaks: after how many batches each epoch is given up; None goes to its end.
    """

    engine: str
    start_method: str
    workers: int
    prefetch: int
    streams: bool
    lengths: tuple[int, ...]
    batch_size: int | None
    drop_last: bool
    persistent: bool
    in_order: bool
    output: str
    sample_bytes: int
    deaths: str
    breaks: tuple[int | None, ...]
    seed: int


def draw(random_: random.Random) -> Configuration:
    processes = random_.random() < 0.9
    workers = random_.randint(1, 3)
    return Configuration(
        engine="processes" if processes else "threads",
        start_method=random_.choices(["fork", "forkserver", "spawn"], [7, 2, 1])[0],
        workers=workers,
        prefetch=random_.randint(1, 4),
        streams=random_.random() < 0.5,
        lengths=tuple(random_.choice([0, random_.randint(0, 20), random_.randint(0, 100)]) for _ in range(workers)),
        batch_size=random_.choice([None, 1, 2, 5, random_.randint(1, 16)]),
        drop_last=random_.random() < 0.3,
        persistent=random_.random() < 0.5,
        in_order=random_.random() < 0.7,
        output=random_.choice(["auto", "numpy"]),
        sample_bytes=random_.choice([8, 800, 40_000, 400_000]),
        deaths=random_.choices(["none", "inside", "outside"], [1, 2, 2])[0] if processes else "none",
        breaks=tuple(random_.choice([None, None, random_.randint(0, 10)]) for _ in range(random_.randint(1, 4))),
        seed=random_.getrandbits(40),
    )


# What is loaded


@dataclass
class Content:
    """Makes samples: their index, an array that follows from it, and a random number.

    Attributes:
        deadly: the indices at which a worker dies, each once: the first to make its file in `folder`.
    """

    sample_bytes: int
    deadly: frozenset[int] = frozenset()
    folder: str = ""

    def make(self, index: int) -> tuple[int, Any, float]:
        drawn = random.random() + float(np.random.rand())
        if index in self.deadly and get_worker_info() is not None:
            try:
                os.close(os.open(f"{self.folder}/{index}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return index, np.full(max(self.sample_bytes // 8, 1), index, np.float64), drawn


class Map(Dataset[Any]):
    def __init__(self, content: Content, n: int) -> None:
        self.content = content
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.content.make(index)


class Streams(IterableDataset[Any]):
    """Worker w yields 1000 w, 1000 w + 1, …"""

    def __init__(self, content: Content, lengths: tuple[int, ...]) -> None:
        self.content = content
        self.lengths = lengths

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        for i in range(self.lengths[info.id]):
            yield self.content.make(1000 * info.id + i)


class Order(Sampler[int]):
    """An order that the soak itself has drawn."""

    def __init__(self) -> None:
        self.indices: list[int] = []

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def cut(indices: list[int], configuration: Configuration) -> list[list[int]]:
    """Into batches."""
    size = configuration.batch_size or 1
    batches = [indices[i : i + size] for i in range(0, len(indices), size)]
    if configuration.batch_size is not None and configuration.drop_last and batches and len(batches[-1]) < size:
        batches.pop()
    return batches


def expected_batches(configuration: Configuration, order: list[int]) -> list[list[int]]:
    """The indices of all batches of an epoch, in order."""
    if not configuration.streams:
        return cut(order, configuration)
    lanes = [cut([1000 * w + i for i in range(n)], configuration) for w, n in enumerate(configuration.lengths)]
    rounds = max(map(len, lanes), default=0)
    return [lane[k] for k in range(rounds) for lane in lanes if k < len(lane)]


# One round


@dataclass
class Told:
    """What one run of a configuration gave: for each epoch, the random number of each sample."""

    draws: list[dict[int, float]] = field(default_factory=list)
    batches: int = 0
    kills: int = 0


def run(configuration: Configuration, *, deaths: str) -> Told:
    """All epochs of a configuration, each batch compared.

    Raises:
        DeviationError: a batch is missing, comes twice, out of its turn, or is not what it should be.
    """
    random_ = random.Random(configuration.seed)
    n = sum(configuration.lengths)
    order = Order()
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        first = expected_batches(configuration, list(range(n)))
        victims = random_.sample(first, min(len(first), random_.randint(1, 3)))
        deadly = frozenset([random_.choice(batch) for batch in victims])
        content = Content(configuration.sample_bytes, deadly if deaths == "inside" else frozenset(), folder)
        dataset = Streams(content, configuration.lengths) if configuration.streams else Map(content, n)
        loader = make_loader(configuration, dataset, order)
        told = Told()
        try:
            for stop_after in configuration.breaks:
                order.indices = random_.sample(range(n), n)
                run_epoch(configuration, loader, order.indices, stop_after, deaths == "outside", told)
        finally:
            loader.close()
        told.kills += len(os.listdir(folder))
    return told


def make_loader(configuration: Configuration, dataset: Any, order: Order) -> DataLoader[Any]:
    processes = configuration.engine == "processes"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return DataLoader(
            dataset,
            batch_size=configuration.batch_size,
            sampler=None if configuration.streams else order,
            num_workers=configuration.workers,
            drop_last=configuration.drop_last and configuration.batch_size is not None,
            prefetch_factor=configuration.prefetch,
            persistent_workers=configuration.persistent,
            in_order=configuration.in_order,
            output=configuration.output,  # type: ignore[arg-type]
            engine=configuration.engine,  # type: ignore[arg-type]
            multiprocessing_context=configuration.start_method if processes else None,
            generator=np.random.default_rng(configuration.seed),
            on_worker_death="restart" if processes else "raise",
        )


def run_epoch(
    configuration: Configuration,
    loader: DataLoader[Any],
    order: list[int],
    stop_after: int | None,
    kills: bool,
    told: Told,
) -> None:
    expected = expected_batches(configuration, order)
    pending = Counter(map(tuple, expected))
    draws: dict[int, float] = {}
    told.draws.append(draws)
    timing = random.Random()  # no two runs are the same; it must not matter
    batches = iter(loader)
    alive = [child for child in multiprocessing.active_children() if kills]
    for number, batch in enumerate(batches):
        indices = check_batch(configuration, batch, draws)
        told.batches += 1
        if configuration.in_order and indices != (expected[number] if number < len(expected) else None):
            raise DeviationError(
                f"Batch {number} has the indices {indices}, not those of {expected[number : number + 1]}."
            )
        if pending[tuple(indices)] == 0:
            raise DeviationError(f"Batch {number} with the indices {indices} is not expected, or came before.")
        pending[tuple(indices)] -= 1
        if alive and timing.random() < 0.2:
            # Each of the workers that the epoch began with dies at most once: two deaths at one sample are a failure.
            victim = alive.pop(timing.randrange(len(alive)))
            time.sleep(timing.random() * 0.003)
            os.kill(victim.pid, signal.SIGKILL)
            told.kills += 1
        if number + 1 == stop_after:
            return
    missing = [batch for batch, count in pending.items() if count]
    if missing:
        raise DeviationError(f"{len(missing)} of {len(expected)} batches did not come: {missing[:5]}")


def check_batch(configuration: Configuration, batch: Any, draws: dict[int, float]) -> list[int]:
    """The indices of a batch whose other parts agree with them."""
    indices, arrays, drawn = (np.asarray(part) for part in batch)
    listed: list[int] = indices.reshape(-1).tolist()
    wide = arrays.reshape(len(listed), -1)
    if wide.shape[1] != max(configuration.sample_bytes // 8, 1) or not (wide == indices.reshape(-1, 1)).all():
        raise DeviationError(f"The arrays of the batch {listed} have other values: {wide}.")
    draws.update(zip(listed, drawn.reshape(-1).tolist(), strict=True))
    return listed


def compare_draws(configuration: Configuration, ours: Told, undisturbed: Told) -> None:
    """Random numbers must not depend on deaths either, where dealing does not depend on timing."""
    if configuration.engine == "threads" or not (configuration.in_order or configuration.streams):
        return
    for epoch, (one, other) in enumerate(zip(ours.draws, undisturbed.draws, strict=True)):
        if configuration.persistent and configuration.breaks[:epoch] != (None,) * epoch:
            return  # how far workers ran ahead in an epoch that was given up depends on timing
        wrong = [index for index in one.keys() & other.keys() if one[index] != other[index]]
        if wrong:
            raise DeviationError(
                f"In epoch {epoch} the random numbers of {len(wrong)} samples differ: {sorted(wrong)[:10]}"
            )


# Nothing is left


@dataclass(frozen=True)
class Resources:
    children: int
    threads: int
    descriptors: int
    segments: int
    memory_mb: float


def resources() -> Resources:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+)", status)
    return Resources(
        children=len(multiprocessing.active_children()),
        threads=sum(thread.name.startswith("headrace") for thread in threading.enumerate()),
        descriptors=len(os.listdir("/proc/self/fd")),
        segments=Path("/proc/self/maps").read_text().count("memfd:headrace"),
        memory_mb=int(match[1]) / 1024 if match else 0.0,
    )


def check_left(before: Resources, warm: Resources | None) -> Resources:
    now = resources()
    for name in ("children", "threads", "descriptors", "segments"):
        if getattr(now, name) > getattr(before, name):
            raise DeviationError(f"There are {getattr(now, name)} {name} left, and there were {getattr(before, name)}.")
    if warm is not None and now.memory_mb > warm.memory_mb + ALLOWED_GROWTH_MB:
        raise DeviationError(f"Memory has grown from {warm.memory_mb:.0f} to {now.memory_mb:.0f} MB.")
    return now


def take_too_long(signum: int, frame: Any) -> None:
    raise DeviationError(f"The round did not end within {LONGEST_ROUND_S} seconds.")


def soak(seed: int, minutes: float, only: int | None) -> int:
    resource_tracker.ensure_running()
    launch._preload(multiprocessing.get_context("forkserver"))
    forkserver.ensure_running()
    signal.signal(signal.SIGALRM, take_too_long)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*Another one takes its place")  # that is what is tried
    warnings.filterwarnings("ignore", message="Workers . and . return the same batches")
    before, warm = resources(), None
    started, told_at = time.monotonic(), time.monotonic()
    rounds = batches = kills = 0
    number = 0 if only is None else only
    print(f"seed {seed}, {minutes:g} minutes", flush=True)
    while time.monotonic() - started < minutes * 60:
        configuration = draw(random.Random(f"{seed}-{number}"))
        signal.alarm(LONGEST_ROUND_S)
        try:
            told = run(configuration, deaths=configuration.deaths)
            if configuration.deaths != "none":
                compare_draws(configuration, told, run(configuration, deaths="none"))
            signal.alarm(0)
            now = check_left(before, warm)
        except Exception:  # noqa: BLE001 (whatever it is, it should not be)
            signal.alarm(0)
            traceback.print_exc()
            print(f"\nDEVIATION in round {number} after {batches} batches and {kills} deaths: {configuration}")
            print(f"Again: python tools/soak.py --seed {seed} --round {number}")
            return 1
        rounds, batches, kills, number = rounds + 1, batches + told.batches, kills + told.kills, number + 1
        if rounds == WARM_UP_ROUNDS:
            warm = now
        if time.monotonic() - told_at > 15 or only is not None:
            told_at = time.monotonic()
            elapsed = (told_at - started) / 60
            print(
                f"{elapsed:5.1f} min  {rounds} rounds  {batches} batches  {kills} deaths  {now.memory_mb:.0f} MB",
                flush=True,
            )
        if only is not None:
            break
    final = resources()
    print(f"{rounds} rounds, {batches} batches, {kills} workers killed: all as expected, nothing left. {final}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=None, help="only this one")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    return soak(seed, arguments.minutes, arguments.round)


if __name__ == "__main__":
    sys.exit(main())

"""`headrace.tune`: measures the stages, tries kinds and numbers of workers, and says which DataLoader to write."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.base.errors import WorkerError
from headrace.base.html import code, paragraph, table
from headrace.data.dataset import is_iterable_dataset
from headrace.frameworks.framework import framework_of, resolve_output
from headrace.loader import DataLoader
from headrace.streams.stream import Stream
from headrace.tuning.auto import StageProbe, Stages, estimate_prefetch, estimate_workers, measure_stages, some_keys
from headrace.tuning.machine import Machine, this_machine

Engine: TypeAlias = Literal["inline", "threads", "processes"]
_SINGULAR = {"threads": "thread", "processes": "process"}
_STAGES_SHARE = 0.2
_ALIKE = 1.1
"""A candidate that is slower by less than that is as good, and better if it takes less."""
_ORDER = ("inline", "threads", "processes")


@dataclass(frozen=True)
class Candidate:
    """Who could load."""

    engine: Engine
    workers: int

    def __str__(self) -> str:
        if self.workers == 0:
            return "in this process"
        return f"1 {_SINGULAR[self.engine]}" if self.workers == 1 else f"{self.workers} {self.engine}"

    def arguments(self) -> dict[str, Any]:
        """The arguments of a DataLoader."""
        if self.workers == 0:
            return {"num_workers": 0}
        return {"num_workers": self.workers} | ({"engine": "threads"} if self.engine == "threads" else {})


@dataclass(frozen=True)
class Trial:
    """What one candidate did.

    Attributes:
        first_s: until the first batch, the start of the workers included.
        samples_per_s: afterwards, without those that were loaded ahead of the first ones.
        sample_s: what a worker took for a sample; 0 if that is not known.
    """

    candidate: Candidate
    first_s: float
    samples_per_s: float
    sample_s: float = 0.0

    def step_s(self, batch_size: int, model_s: float) -> float:
        """How long a step of the training takes: without workers, the model waits for each batch to be made."""
        load_s = batch_size / self.samples_per_s
        return model_s + load_s if self.candidate.workers == 0 else max(model_s, load_s)


@dataclass(frozen=True)
class TrialSetup:
    """What all candidates load: the same samples in the same order."""

    dataset: Any
    batch_size: int | None
    options: dict[str, Any]

    def loader(self, candidate: Candidate) -> DataLoader[Any]:
        arguments = {**self.options, **candidate.arguments(), "persistent_workers": candidate.workers > 0}
        return DataLoader(self.dataset, batch_size=self.batch_size, seed=0, **arguments)


def try_out(candidate: Candidate, setup: TrialSetup, seconds: float) -> Trial:
    """Load for this many seconds, over as many epochs as it takes; at least a batch for each worker.

    Batches that workers finished before the clock started say nothing about their speed: as many as they load ahead are
    discarded first.

    Raises:
        Exception: whatever loading raises.
    """
    started, size = perf_counter(), setup.batch_size or 1
    with setup.loader(candidate) as loader, closing(_endless(loader)) as batches:
        next(batches)
        first_s = perf_counter() - started
        for _ in range(candidate.workers * (loader.prefetch_factor or 0)):
            next(batches)
        n, began = 0, perf_counter()
        while n < max(candidate.workers, 1) or perf_counter() - started < seconds:
            next(batches)
            n += 1
        elapsed = perf_counter() - began
        sample_s = 0.0 if is_iterable_dataset(setup.dataset) else loader.stats()["batch_seconds"]["fetch"] / size
    return Trial(candidate, first_s, n * size / elapsed, sample_s)


def bounded(stages: Stages, trials: list[Trial]) -> tuple[Stages, list[Trial]]:
    """The same, with the shortest time that a sample took anywhere, and no rate beyond workers / that time."""
    fetch_s = min([stages.fetch_s, *(trial.sample_s for trial in trials if trial.sample_s > 0)])
    if fetch_s <= 0:
        return stages, trials
    fastest = [max(trial.candidate.workers, 1) / fetch_s for trial in trials]
    rates = [min(trial.samples_per_s, most) for trial, most in zip(trials, fastest, strict=True)]
    return replace(stages, fetch_s=fetch_s), [
        replace(trial, samples_per_s=rate) for trial, rate in zip(trials, rates, strict=True)
    ]


def _endless(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    """Epoch after epoch."""
    is_empty = True
    while True:
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise ValueError("The dataset is empty: there is nothing to try.")


@dataclass(frozen=True)
class Tuning:
    """What `tune` found. Its text is a table of what was tried, and the line to write.

    Attributes:
        stages: what the stages of a batch take, each alone.
        machine: what the workers may use.
        trials: what was tried, in that order.
        best: the trial to follow.
        batch_size: of the loader; None for single samples.
        prefetch_factor: None where the default is right.
        step_s: of the model, as it was given.
        remarks: what was not tried, and why.
    """

    stages: Stages
    machine: Machine
    trials: tuple[Trial, ...]
    best: Trial
    batch_size: int | None
    prefetch_factor: int | None
    step_s: float
    remarks: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """What to pass to a DataLoader."""
        found = {"batch_size": self.batch_size, **self.best.candidate.arguments()}
        return found if self.prefetch_factor is None else {**found, "prefetch_factor": self.prefetch_factor}

    @property
    def line(self) -> str:
        """The line to write."""
        return f"DataLoader(dataset, {', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"

    def rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """A row per trial: who, first batch, samples per second, batches per second, what the model waits per step."""
        size = self.stages.batch_size
        for trial in self.trials:
            waits = trial.step_s(size, self.step_s) - self.step_s
            yield (
                str(trial.candidate),
                f"{1e3 * trial.first_s:,.0f} ms",
                f"{trial.samples_per_s:,.0f}",
                f"{trial.samples_per_s / size:,.1f}",
                f"{1e3 * waits:,.2f} ms",
            )

    def __str__(self) -> str:
        table = [COLUMNS, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join([describe_stages(self.stages), *(line.rstrip() for line in lines), *self.remarks, self.line])

    def _repr_html_(self) -> str:
        rows, best = [COLUMNS, *self.rows()], self.trials.index(self.best)
        remarks = "".join(map(paragraph, self.remarks))
        return paragraph(describe_stages(self.stages)) + table(rows, marked=best) + remarks + code(self.line)


COLUMNS = ("workers", "first batch", "samples/s", "batches/s", "model waits per step")


def tune(
    data: Any,
    *,
    batch_size: int | None = None,
    step_time: float = 0.0,
    seconds: float = 10.0,
    collate_fn: Callable[[Any], Any] | None = None,
    tell: Callable[[str, float], None] = lambda what, share: None,
) -> Tuning:
    """Find out which workers load a dataset best here: measure its stages, try candidates, compare.

    Guarantees: whatever is recommended gives the same batches in the same order. No more workers than cores are
    tried, nor batches loaded ahead that would not fit into a quarter of the free memory. No rate is reported that the
    workers cannot have: workers / time of a sample.

    Args:
        data: a dataset, or a loader of one, headrace's or torch's, whose batch size and collate function are taken.
        batch_size: samples per batch; by default the loader's, or 32.
        step_time: what the model takes for a step, in seconds: loading need not be quicker than that.
        seconds: to spend, about; a sample that takes long is waited for.
        collate_fn: makes a batch of samples; by default the loader's.
        tell: called with the next trial and the share of the time that has passed, from 0 to 1.

    Raises:
        ValueError, TypeError: an argument is wrong, or the dataset is empty, or has no length.
        Exception: what the dataset or the collate function raises.

    Examples:
        >>> found = tune(list(range(1000)), batch_size=100, seconds=0.5)
        >>> loader = DataLoader(list(range(1000)), **found.arguments)
        >>> loader.batch_size
        100
    """
    if seconds <= 0 or step_time < 0:
        raise ValueError(f"seconds must be positive and step_time not negative, got {seconds} and {step_time}.")
    framework_of(resolve_output("auto"))  # importing it may take seconds, which do not count here
    deadline = perf_counter() + seconds
    dataset, batch_size, collate_fn, options = _taken_apart(data, batch_size, collate_fn)
    tell("the stages alone", 0.0)
    stages, machine = _measure(dataset, batch_size, collate_fn, _STAGES_SHARE * seconds), this_machine()
    candidates, remarks = _candidates(dataset, stages, machine, step_time)
    each = max(deadline - perf_counter(), 0.0) / len(candidates)
    # Slow samples in smaller batches, so that there are enough of them to count.
    size = None if batch_size is None else max(1, min(batch_size, int(each / 8 / max(stages.fetch_s, 1e-9))))
    setup = TrialSetup(dataset, size, {"collate_fn": collate_fn, **options})
    trials: list[Trial] = []
    for candidate in candidates:
        if trials and perf_counter() > deadline:
            remarks.append(f"Not tried, for want of time: {candidate}.")
        else:
            tell(str(candidate), 1 - (deadline - perf_counter()) / seconds)
            trials.append(try_out(candidate, setup, each))
    stages, trials = bounded(stages, trials)
    best = choose(trials, stages.batch_size, step_time)
    prefetch = estimate_prefetch(stages, machine, best.candidate.workers)
    return Tuning(stages, machine, tuple(trials), best, batch_size, prefetch, step_time, tuple(remarks))


def _measure(dataset: Any, batch_size: int | None, collate_fn: Any, seconds: float) -> Stages:
    patience_s = 5 + 10 * seconds  # on a busy machine, a worker may take a while to start
    probe = StageProbe(
        dataset, some_keys(dataset), batch_size, collate_fn, "auto", seconds, patience_s, make_loader=DataLoader
    )
    stages = measure_stages(probe)
    if stages is None:
        raise ValueError(f"A few samples take longer than {patience_s:.0f} s. Give more seconds to measure.")
    return replace(stages, transport_s=_transport_s(stages, seconds / 4))


def choose(trials: list[Trial], batch_size: int, model_s: float) -> Trial:
    """The one that takes least of the machine, among those with which a training step is quickest, or nearly so."""
    quickest = min(trial.step_s(batch_size, model_s) for trial in trials)
    good = [trial for trial in trials if trial.step_s(batch_size, model_s) <= _ALIKE * quickest]
    return min(good, key=lambda trial: (trial.candidate.workers, _ORDER.index(trial.candidate.engine)))


def describe_stages(stages: Stages) -> str:
    """One line for people."""
    transport = "" if stages.transport_s is None else f", from a worker to the loop {1e3 * stages.transport_s:,.2f} ms"
    return (
        f"One sample: {1e3 * stages.fetch_s:,.3f} ms, {100 * stages.cpu_share:.0f} % of it at work. A batch of "
        f"{stages.batch_size}: {1e3 * stages.batch_s:,.2f} ms, {stages.batch_bytes / 1e6:,.2f} MB{transport}."
    )


def _taken_apart(data: Any, batch_size: int | None, collate_fn: Any) -> tuple[Any, int | None, Any, dict[str, Any]]:
    """The dataset, its batch size and collation, and the options that the trials need besides."""
    is_loader = hasattr(data, "dataset") and hasattr(data, "batch_sampler")
    dataset = data.dataset if is_loader else data
    if is_loader and batch_size is None:
        batch_size = getattr(data.batch_sampler, "batch_size", None)
    elif batch_size is None:
        batch_size = 32
    if is_loader and collate_fn is None:
        collate_fn = data.collate_fn
    options: dict[str, Any] = {} if is_iterable_dataset(dataset) else {"shuffle": True}
    if is_loader and data.worker_init_fn is not None:
        options["worker_init_fn"] = data.worker_init_fn
    return dataset, batch_size, collate_fn, options


def _candidates(dataset: Any, stages: Stages, machine: Machine, step_s: float) -> tuple[list[Candidate], list[str]]:
    """Whom to try, the likeliest first, and why others are not."""
    likely, remarks = estimate_workers(stages, machine, step_s), []
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < machine.cores] + [machine.cores]
    if is_iterable_dataset(dataset) and not isinstance(dataset, Stream):
        counts = [1]
        remarks.append("Not more than one worker: each would read the whole stream, unless it is written for several.")
    engines: list[Any] = ["processes", "threads"]
    if stages.draws:
        engines = ["processes"]
        remarks.append("No threads: samples draw from the global random generators, which threads share.")
    rest = [Candidate(engine, n) for engine in engines for n in counts]
    rest.sort(key=lambda candidate: abs(candidate.workers - likely))
    return [Candidate("inline", 0), *rest], remarks


def _transport_s(stages: Stages, seconds: float) -> float | None:
    """What it takes to bring a batch of that size from a worker, that has it ready."""
    ready = _Ready(np.zeros(max(stages.batch_bytes, 8), np.uint8))
    with suppress(WorkerError):
        trial = try_out(Candidate("processes", 1), TrialSetup(ready, None, {"output": "numpy"}), seconds)
        return 1 / trial.samples_per_s
    return None


class _Ready:
    """Gives the same batch again and again."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 2**30

    def __getitem__(self, index: int) -> Any:
        return self._batch

"""Tries a kind and number of workers: how many samples per second they bring, for a moment."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias

from headrace.loader import DataLoader

Engine: TypeAlias = Literal["inline", "threads", "processes"]
_SINGULAR = {"threads": "thread", "processes": "process"}


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
        """What a DataLoader is told."""
        if self.workers == 0:
            return {"num_workers": 0}
        return {"num_workers": self.workers} | ({"engine": "threads"} if self.engine == "threads" else {})


@dataclass(frozen=True)
class Trial:
    """What one candidate did.

    Attributes:
        first_s: until the first batch, the start of the workers included.
        samples_per_s: afterwards.
    """

    candidate: Candidate
    first_s: float
    samples_per_s: float

    def step_s(self, batch_size: int, model_s: float) -> float:
        """How long a step of the training takes: without workers, the model waits for each batch to be made."""
        load_s = batch_size / self.samples_per_s
        return model_s + load_s if self.candidate.workers == 0 else max(model_s, load_s)


@dataclass(frozen=True)
class Course:
    """What all candidates load: the same samples in the same order."""

    dataset: Any
    batch_size: int | None
    options: dict[str, Any]

    def loader(self, candidate: Candidate) -> DataLoader[Any]:
        arguments = {**self.options, **candidate.arguments(), "persistent_workers": candidate.workers > 0}
        return DataLoader(self.dataset, batch_size=self.batch_size, seed=0, **arguments)


def try_out(candidate: Candidate, course: Course, seconds: float) -> Trial:
    """Load for so many seconds, over as many epochs as it takes; at least two batches.

    Raises:
        Exception: whatever loading raises.
    """
    started = perf_counter()
    with course.loader(candidate) as loader, closing(_endless(loader)) as batches:
        next(batches)
        first_s = perf_counter() - started
        n, began = 0, perf_counter()
        while n == 0 or perf_counter() - started < seconds:
            next(batches)
            n += 1
        elapsed = perf_counter() - began
    return Trial(candidate, first_s, n * (course.batch_size or 1) / elapsed)


def _endless(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    """Epoch after epoch."""
    is_empty = True
    while True:
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise ValueError("The dataset is empty: there is nothing to try.")

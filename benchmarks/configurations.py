"""Is headrace slower than torch in any configuration?

A grid of samples, datasets, samplers, collate functions and batch sizes; each a short interleaved run of whole epochs,
with one intra-operation thread of torch; the largest batches, the only ones that torch would share among threads, with
torch's own choice too. Where the ratio is near 1 or below, the comparison is repeated with more rounds before it
counts. Ratios are torch's time / headrace's time, slowest first.

The verdict is "unclear", and left out of the target, where the median is below 1 but more than a quarter of the rounds
say otherwise; its ratio is in the table all the same.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils import data as torch_data

import headrace
from benchmarks.grid import CASES, Case
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import Clock, Run, exhaust, interleave, median_ratio, seconds, spread, torch_threads

THREADS: dict[str, tuple[int | None, Clock]] = {
    "1 thread": (1, time.thread_time),
    "default threads": (None, time.perf_counter),
}
DOUBTFUL = 1.1
CONFIRMING_ROUNDS = 4
NOISE = 0.03
"""Ratios above 1 - NOISE count as equal: two runs of the same code differ by that much."""
SLOWER, UNCLEAR = "SLOWER", "unclear"


@dataclass
class Comparison:
    case: Case
    threads: str
    batch_size: int | None
    shuffle: bool
    torch: list[float] = field(default_factory=list)
    headrace: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return median_ratio(self.torch, self.headrace)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.torch, self.headrace, strict=True)]

    @property
    def verdict(self) -> str:
        """Slower only if three rounds in four were; where the rounds disagree, the machine was too busy to tell."""
        if self.ratio < 1 - NOISE:
            return SLOWER if sum(ratio < 1 for ratio in self.ratios) >= 0.75 * len(self.ratios) else UNCLEAR
        return "equal" if self.ratio < 1 + NOISE else "faster"

    def measure(self, repeats: int, target_seconds: float) -> None:
        threads, clock = THREADS[self.threads]
        runs = {"torch": self.epochs(torch_data, clock), "headrace": self.epochs(headrace, clock)}
        with torch_threads(threads):
            epochs = max(1, round(target_seconds / min(runs["torch"](1), runs["torch"](1))))
            figures = interleave({name: repeated(run, epochs) for name, run in runs.items()}, repeats)
        self.torch, self.headrace = figures["torch"], figures["headrace"]

    def epochs(self, library: Any, clock: Clock) -> Callable[[int], float]:
        loader = self.case.loader(library, self.batch_size, self.shuffle)
        return lambda count: seconds(lambda: [exhaust(loader) for _ in range(count)], clock) / count

    def row(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "batch": str(self.batch_size),
            "order": "shuffled" if self.shuffle else "as given",
            "threads": self.threads,
            "torch ms/epoch": 1e3 * statistics.median(self.torch),
            "headrace ms/epoch": 1e3 * statistics.median(self.headrace),
            "spread": spread(self.ratios),
            "x torch": self.ratio,
            "verdict": self.verdict,
        }


def repeated(run: Callable[[int], float], epochs: int) -> Run:
    return lambda: run(epochs)


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in CASES:
        largest = case.batch_sizes[-1]
        for batch_size in (largest,) if quick else case.batch_sizes:
            for shuffle in case.shuffles:
                yield Comparison(case, "1 thread", batch_size, shuffle)
                if batch_size == largest:
                    yield Comparison(case, "default threads", batch_size, shuffle)


def run(settings: Settings) -> Report:
    target_seconds = 0.003 if settings.quick else 0.01
    done = list(comparisons(settings.quick))
    for i, comparison in enumerate(done):
        comparison.measure(settings.repeats, target_seconds)
        if i % 50 == 0:
            progress(f"[configurations] {i} of {len(done)}")
    doubtful = [comparison for comparison in done if comparison.ratio < DOUBTFUL]
    progress(f"[configurations] confirming {len(doubtful)}")
    for comparison in doubtful:
        comparison.measure(CONFIRMING_ROUNDS * settings.repeats, 2 * target_seconds)
    done.sort(key=lambda comparison: comparison.ratio)
    counts = Counter(comparison.verdict for comparison in done)
    median = statistics.median(comparison.ratio for comparison in done)
    notes = [f"{len(done)} configurations, median ratio {median:.2f}; {dict(counts)}"]
    least = min(comparison.ratio for comparison in done if comparison.verdict != UNCLEAR)
    return Report([c.row() for c in done], [Target("the least ratio to torch that is clear", 1 - NOISE, least)], notes)

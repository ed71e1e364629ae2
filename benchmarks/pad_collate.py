"""Is `pad_collate` faster than the collate function that torch's documents write by hand: sort, then pad_sequence?

Sequences of 5 to 200 steps in batches of 64, each with a label; the hand-written function gets the samples in the form
that suits it best (tensors, or arrays it must convert). One intra-operation thread of torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import headrace
from benchmarks.report import Report, Settings, Target
from benchmarks.timing import Run, interleave, median_ratio, seconds, spread, torch_threads

BATCH = 64
_rng = np.random.default_rng(0)
_lengths = _rng.integers(5, 200, size=BATCH).tolist()

ARRAYS = {
    "tokens, int64": [(_rng.integers(30_000, size=n), i) for i, n in enumerate(_lengths)],
    "frames, 80 x float32": [(_rng.random((n, 80), dtype=np.float32), i) for i, n in enumerate(_lengths)],
}
BATCHES = {
    **{f"arrays of {name}": samples for name, samples in ARRAYS.items()},
    **{f"tensors of {name}": [(torch.from_numpy(x), y) for x, y in samples] for name, samples in ARRAYS.items()},
    "lists of tokens": [(x.tolist(), y) for x, y in ARRAYS["tokens, int64"]],
}


def by_hand(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    samples = sorted(samples, key=lambda sample: len(sample[0]), reverse=True)
    sequences = [torch.as_tensor(x) for x, _ in samples]
    lengths = torch.tensor([len(x) for x in sequences])
    return pad_sequence(sequences, batch_first=True), lengths, torch.tensor([y for _, y in samples])


def run(settings: Settings) -> Report:
    calls = 20 if settings.quick else 300
    ours = headrace.pad_collate(sort=True)
    rows = []
    for name, samples in BATCHES.items():
        with torch_threads(1):
            figures = interleave(
                {key: batches_per_second(fn, samples, calls) for key, fn in (("hand", by_hand), ("ours", ours))},
                settings.repeats,
            )
        rows.append(
            {
                "samples": name,
                "by hand, batches/s": statistics.median(figures["hand"]),
                "pad_collate, batches/s": statistics.median(figures["ours"]),
                "spread": spread(figures["ours"]),
                "x by hand": median_ratio(figures["ours"], figures["hand"]),
            }
        )
    return Report(rows, [Target("the least ratio to the hand-written function", 1, min(r["x by hand"] for r in rows))])


def batches_per_second(fn: Callable[[Any], Any], samples: Any, calls: int) -> Run:
    return lambda: calls / seconds(lambda: [fn(samples) for _ in range(calls)])

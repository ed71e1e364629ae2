"""Are draws by weight, taken by position, as fast as torch's `multinomial`, and do they go beyond its 2**24 weights?

As many draws as there are weights. torch draws all of them at once; headrace's order is read in chunks of 65536, as a
loader reads it, and its running sums are made anew each time. Without replacement both draw half as many. The last rows
draw a million times from more weights than torch allows. One intra-operation thread of torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import interleave, median_ratio, seconds, spread, torch_threads
from headrace.order.draws import draw_by_weight, pick_by_weight
from headrace.order.order import Order

CHUNK = 2**16
BATCH = 256
Make = Callable[[Any, int, int], Order]


def read(order: Order) -> int:
    """Read a whole order in chunks; returns the number of indices."""
    starts = range(0, len(order), CHUNK)
    return sum(len(order.at(np.arange(start, min(start + CHUNK, len(order))))) for start in starts)


def contest(n: int, replacement: bool, repeats: int) -> dict[str, Any]:
    weights = np.random.default_rng(0).random(n)
    tensor = torch.from_numpy(weights)
    make: Make = draw_by_weight if replacement else pick_by_weight
    draws = n if replacement else n // 2
    with torch_threads(1):
        figures = interleave(
            {
                "torch": lambda: draws / seconds(lambda: torch.multinomial(tensor, draws, replacement)),
                "ours": lambda: draws / seconds(lambda: read(make(weights, draws, 1))),
            },
            repeats,
        )
    return {
        "weights": n,
        "replacement": str(replacement),
        "torch, draws/s": statistics.median(figures["torch"]),
        "by position, draws/s": statistics.median(figures["ours"]),
        "spread": spread(figures["ours"]),
        "x torch": median_ratio(figures["ours"], figures["torch"]),
    }


def beyond_torch(n: int, draws: int) -> dict[str, Any]:
    progress(f"[weighted] {n:,} weights")
    weights = np.random.default_rng(0).random(n)
    rate = draws / seconds(lambda: read(draw_by_weight(weights, draws, 1)))
    return {
        "weights": n,
        "replacement": "True",
        "torch, draws/s": float("nan"),
        "by position, draws/s": rate,
        "spread": 0.0,
        "x torch": float("nan"),
    }


def batch_microseconds(n: int) -> float:
    """How long one batch takes once the running sums are there."""
    order = draw_by_weight(np.random.default_rng(0).random(n), n, 1)
    starts = np.random.default_rng(1).integers(n - BATCH, size=200)
    return 1e6 * seconds(lambda: [order.at(np.arange(start, start + BATCH)) for start in starts]) / len(starts)


def run(settings: Settings) -> Report:
    sizes = [10**4, 10**5] if settings.quick else [10**4, 10**6, 10**7]
    rows = [contest(n, replacement, settings.repeats) for n in sizes for replacement in (True, False)]
    rows += [beyond_torch(n, 10**6) for n in ([2**24 + 1] if settings.quick else [2**24 + 1, 10**8])]
    least = min(row["x torch"] for row in rows if row["replacement"] == "True" and row["x torch"] == row["x torch"])
    note = f"One batch of {BATCH} of {sizes[1]:,} weights takes {batch_microseconds(sizes[1]):.0f} µs."
    return Report(rows, [Target("the least ratio to torch's multinomial, with replacement", 1, least)], [note])

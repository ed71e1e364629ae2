"""Draws what the permutation looks like, to see with one's own eyes that there is nothing to see.

    python -m benchmarks.shuffle_picture [shuffle.png]

Rows: where the first positions go, for several lengths; orders of neighbouring seeds and of neighbouring epochs against
each other; the difference of each number to the next, against the number. The last column is NumPy's own shuffle, drawn
alike: the others should look no different.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from headrace.base.generators import derive_key
from headrace.order.permutation import Permutation

LENGTHS = (300, 4096, 10**4, 10**6, 10**9, 10**12)
POINTS = 10_000
Numbers = Any
Panel = tuple[str, Numbers, Numbers]


def ours(n: int, count: int, seed: int = 0, epoch: int = 0) -> Numbers:
    return Permutation(n, derive_key(seed, epoch, "picture")).at(np.arange(count))


def numpys(n: int, count: int, seed: int = 0, epoch: int = 0) -> Numbers:
    generator = np.random.default_rng([seed, epoch])
    return generator.permutation(n)[:count] if n <= 10**6 else generator.integers(n, size=count)


def panels(shuffle: Callable[..., Numbers], n: int) -> Iterator[Panel]:
    count = min(n, POINTS)
    numbers = shuffle(n, count)
    yield "position → number", np.arange(count), numbers
    yield "seed 0 → seed 1", numbers, shuffle(n, count, seed=1)
    yield "epoch 0 → epoch 1", numbers, shuffle(n, count, epoch=1)
    yield "number → next number", numbers[:-1], numbers[1:]
    yield "number → difference to the next", numbers[:-1], np.diff(numbers) % n
    folded = max(2, 2 ** (n.bit_length() // 2))
    jitter = np.random.default_rng(0).random((2, count - 1))  # or the remainders would lie on a lattice
    remainders = numbers % folded
    yield f"remainders of {folded}: number → next", remainders[:-1] + jitter[0], remainders[1:] + jitter[1]


def main(path: str) -> None:
    columns = [(f"n = {n:,}", list(panels(ours, n))) for n in LENGTHS]
    columns.append(("NumPy, n = 1,000,000", list(panels(numpys, 10**6))))
    rows = len(columns[0][1])
    figure, axes = pyplot.subplots(rows, len(columns), figsize=(3 * len(columns), 3 * rows), squeeze=False)
    for x, (title, column) in enumerate(columns):
        for y, (question, horizontal, vertical) in enumerate(column):
            axis = axes[y, x]
            axis.scatter(horizontal, vertical, s=0.4 if len(horizontal) > 5000 else 3, linewidths=0, color="black")
            axis.set(xticks=[], yticks=[], title=title if y == 0 else "", xlabel=question)
            axis.margins(0.01)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "shuffle.png")

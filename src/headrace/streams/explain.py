"""Says in words what a stream reads, in which pieces, and who reads what."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.streams.stream import Recipe

_MOST_SHOWN = 8


def explain(recipe: Recipe, *, workers: int, world: int) -> str:
    """A few lines of text.

    Args:
        workers: how many are supposed; batches do not depend on it.
        world: how many ranks are supposed.
    """
    blocks = recipe.source.blocks()
    plan = recipe.plan(None, 0)
    files = list(dict.fromkeys(block.path for block in blocks))
    n_bytes = sum(block.n_bytes for block in blocks)
    known = recipe.known_rows()
    lines = [
        f"{recipe.source.describe().get('format', 'data')}: {len(files)} files, {n_bytes / 2**20:,.1f} MiB, "
        f"{len(blocks)} blocks, {'an unknown number of' if known is None else f'{known:,}'} rows",
        f"steps: {', '.join(type(step).__name__ for step in recipe.steps) or 'none'}",
        f"epoch: {len(plan)} windows of {_per_window(recipe)}; {_mixing(recipe)}",
    ]
    for rank in range(min(world, _MOST_SHOWN)):
        own = range(rank, len(plan), world)
        lines.append(f"rank {rank}: windows {_shown(own)}, read by {max(1, workers)} workers, whoever is free")
    if world > _MOST_SHOWN:
        lines.append(f"… and {world - _MOST_SHOWN} ranks more, every {world}th window each")
    return "\n".join(lines)


def _per_window(recipe: Recipe) -> str:
    n = 1 if recipe.shuffle is None else recipe.shuffle.blocks
    return "1 block" if n == 1 else f"{n} blocks"


def _shown(numbers: range) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_SHOWN]))
    return f"{shown}, …" if len(numbers) > _MOST_SHOWN else shown or "none"


def _mixing(recipe: Recipe) -> str:
    """How well neighbours in the data are spread: the mean distance of two rows of a window, against a full shuffle.

    Rows of one block stay together; those of different blocks of a window are from anywhere. Of two rows of a window of
    w blocks, 1 / w of the pairs are of the same block.
    """
    if recipe.shuffle is None:
        return "in the natural order"
    n_blocks = len(recipe.source.blocks())
    score = mixing_score(n_blocks, recipe.shuffle.blocks)
    return f"shuffled, mixing {score:.0%} of that of a full shuffle"


def mixing_score(n_blocks: int, per_window: int) -> float:
    """How much of a full shuffle's mixing a window gives: 1 if all blocks are in one window, 0 if each has its own."""
    if n_blocks <= 1:
        return 1.0
    return (1 - 1 / min(per_window, n_blocks)) / (1 - 1 / n_blocks)

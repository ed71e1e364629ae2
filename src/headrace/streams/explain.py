"""Says in words what a stream reads, in which pieces, and who reads what."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from headrace.base.errors import check_count
from headrace.order.shard import Shard
from headrace.streams.counts import RowCounts
from headrace.streams.live import LiveSource
from headrace.streams.mixing import MixSource
from headrace.streams.rank_split import Deal
from headrace.streams.rank_windows import Loading, RankWindows, UnknownCountError, refuse_to_count
from headrace.streams.recipe import PlannedSource, Recipe
from headrace.streams.windows import EpochWindows, Share, Window

_MOST_SHOWN = 8
_SAMPLED = 2**12  # windows, to measure how well rows are mixed


def explain(recipe: Recipe, counts: RowCounts, *, workers: int, world: int) -> str:
    """A few lines of text. Reads no data, unless `take`, `skip` or a mix need numbers of rows.

    Args:
        workers: of each rank, as supposed.
        world: how many ranks are supposed.

    Raises:
        ValueError: `workers` is negative, or `world` not positive.
    """
    check_count("workers", workers, 0)
    check_count("world", world, 1)
    shares = RankWindows(Loading(recipe, 1, False, None, Shard(0, world, "allow")), counts, 0)
    is_live = isinstance(recipe.source, LiveSource)
    epoch = _live_epoch(recipe) if is_live else f"{_epoch(shares)}; {_mixing(shares, recipe)}; {_rows(shares)}"
    lines = [
        *_sources(recipe),
        f"steps: {', '.join(type(step).__name__ for step in recipe.steps) or 'none'}",
        f"epoch: {epoch}",
    ]
    if recipe.packing is not None:
        lines.append(f"packing: rows of {recipe.packing.length} tokens, over all borders of windows")
    return "\n".join(lines if is_live else [*lines, *_ranks(shares, workers, world)])


def _live_epoch(recipe: Recipe) -> str:
    order = "in the order of arrival"
    if recipe.shuffle is not None:
        order = f"shuffled, {recipe.shuffle.rows or 0:,} rows at a time, which are waited for"
    return f"no end; windows of the rows that have arrived, {order}"


def _sources(recipe: Recipe, indent: str = "") -> list[str]:
    source = recipe.source
    kind = source.describe().get("format", "data")
    if isinstance(source, MixSource):
        parts = [line for part in source.recipes for line in _sources(part, indent + "  ")]
        return [f"{indent}{kind}:", *parts]
    if isinstance(source, PlannedSource):
        return [f"{indent}{kind}, read by {_readers(source)}"]
    blocks = source.blocks()
    files = len(source.versions())
    n_bytes = sum(block.n_bytes for block in blocks)
    size = f"{_number(files, 'file')}, {n_bytes / 2**20:,.1f} MiB, " if files else ""
    return [f"{indent}{kind}: {size}{_number(len(blocks), 'block')}"]


def _readers(source: Any) -> str:
    if isinstance(source, LiveSource):
        return f"the loader's process as rows arrive; after a resume, each row comes {source.connector.promise}"
    return "every worker, which leaves out the others' rows" if source.shard == "stride" else "the loader's process"


def _epoch(shares: RankWindows) -> str:
    n = shares.windows.n_windows
    per_window = shares.windows.per_window
    number = "nobody knows how many windows" if n is None else _number(n, "window")
    return f"{number} of {_number(per_window, 'block')}"


def _rows(shares: RankWindows) -> str:
    n = _known_rows(shares)
    return "an unknown number of rows" if n is None else _number(n, "row")


def _known_rows(shares: RankWindows) -> int | None:
    if shares.windows.n_windows is None:
        return None
    ask, shares.ask = shares.ask, refuse_to_count
    try:
        return sum(shares.count(list(map(Share, shares.windows))))
    except UnknownCountError:
        return None
    finally:
        shares.ask = ask


def _ranks(shares: RankWindows, workers: int, world: int) -> list[str]:
    who = f"read by {_number(workers, 'worker')}, whoever is free" if workers > 1 else "read by one worker"
    who = who if workers else "read by the loader itself"
    shown = range(min(world, _MOST_SHOWN))
    lines = [f"rank {rank}: {_dealt(shares.deal(rank), shares.windows, world)}, {who}" for rank in shown]
    if world > _MOST_SHOWN:
        lines.append(f"… and {world - _MOST_SHOWN} ranks more, likewise")
    return lines


def _dealt(deal: Deal, windows: EpochWindows, world: int) -> str:
    """Which windows a rank gets, or of which the rows."""
    items = [item for _, item in islice(deal, _MOST_SHOWN + 1)]
    whole = [windows.window(item.place).number for item in items if item.step == 1]
    shared = [windows.window(item.place).number for item in items if item.step > 1]
    texts = []
    if whole:
        texts.append(f"{'window' if len(whole) == 1 else 'windows'} {_shown(whole)}")
    if shared:
        texts.append(f"one row in {world} of {'window' if len(shared) == 1 else 'windows'} {_shown(shared)}")
    return " and ".join(texts) or "nothing"


def _shown(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_SHOWN]))
    return f"{shown}, …" if len(numbers) > _MOST_SHOWN else shown


def _number(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"


def _mixing(shares: RankWindows, recipe: Recipe) -> str:
    if recipe.shuffle is None:
        return "in the natural order"
    score = mixing_score(list(islice(shares.windows, _SAMPLED)))
    return f"shuffled, neighbours are {score:.0%} as far apart as after a full shuffle"


def mixing_score(windows: list[Window]) -> float:
    """How far apart rows are in the data that follow each other in an epoch, against a full shuffle: 1 is as far.

    Measured in blocks, over the windows of the epoch as they are: two neighbours of a window are rows of any two of its
    blocks.
    """
    numbers = sorted({(block.path, str(block.start)) for window in windows for block in window.blocks})
    if len(numbers) <= 1:
        return 1.0
    order = {key: i for i, key in enumerate(numbers)}
    return float(np.mean([_spread([order[b.path, str(b.start)] for b in w.blocks], len(order)) for w in windows]))


def _spread(places: list[int], n: int) -> float:
    """The mean distance of two rows of these blocks, as a fraction of that of two rows of any of n blocks."""
    spots = np.array(places)
    distance = float(np.abs(spots[:, None] - spots[None, :]).mean())
    return distance / ((n * n - 1) / (3 * n))

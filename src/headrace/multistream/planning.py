"""Makes the plan that a user's arguments ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from headrace.arguments import checked_seed
from headrace.multistream.assign import ASSIGNS, Assign
from headrace.multistream.library import Library, SegmentLibrary, SequenceLibrary, WindowLibrary
from headrace.multistream.plan import Layout, Plan, cut_evenly
from headrace.multistream.steps import check_part
from headrace.order.shard import Shard, resolve_shard
from headrace.streams.stream import Stream


def make_plan(
    sequences: Any,
    batch_size: int | None,
    assign: Assign,
    *,
    read: Callable[[Any], Any] | None,
    lengths: Iterable[int] | int | None,
    layout: Layout,
    seed: int,
    cycle: bool,
    shard: Any,
    num_workers: int,
) -> Plan:
    """See `MultiStreamDataLoader`.

    Raises:
        ValueError, TypeError: an argument is wrong.
    """
    seed = checked_seed(seed, None, None) or 0
    if assign not in ASSIGNS:
        raise ValueError(f"assign must be one of {', '.join(map(repr, ASSIGNS))}, got {assign!r}.")
    if layout.seq_len is not None:
        _check_positive("seq_len", layout.seq_len)
    elif layout.batch_first:
        raise ValueError("batch_first=True needs seq_len: without it, a batch has no dimension of steps.")
    if batch_size is None:
        is_plain = layout.is_plain and layout.seq_len is None and read is None and lengths is None and shard is None
        if not is_plain:
            raise ValueError("Without batch_size, the datasets alone decide what a batch is: pass batch_size.")
        return _plan_of_datasets(sequences, layout, seed, num_workers)
    _check_positive("batch_size", batch_size)
    library = _make_library(sequences, batch_size, assign, read, lengths)
    positions = _positions_of(batch_size, shard)
    parts = cut_evenly(positions, max(1, min(num_workers, len(positions))))
    plan = Plan(library, layout, assign, batch_size, parts, seed, cycle)
    _check_food(plan)
    return plan


def _make_library(
    sequences: Any,
    batch_size: int,
    assign: Assign,
    read: Callable[[Any], Any] | None,
    lengths: Iterable[int] | int | None,
) -> Library:
    if assign != "offset":
        if isinstance(lengths, int):
            raise TypeError(f"lengths must have the number of items of each sequence, got {lengths}.")
        return SequenceLibrary(sequences, read, lengths)
    if lengths is not None and not isinstance(lengths, int):
        raise TypeError(f"With assign='offset', lengths must be that of the one sequence, an int, got {lengths!r:.80}.")
    if isinstance(sequences, Stream) and read is None:
        return WindowLibrary(sequences)
    return SegmentLibrary(sequences, batch_size, read, lengths)


def _plan_of_datasets(datasets: Any, layout: Layout, seed: int, num_workers: int) -> Plan:
    """Each dataset is a position whose items are parts of batches; all end with the first that ends."""
    library = SequenceLibrary(datasets)
    first = datasets[0]
    if isinstance(first, (Sequence, np.ndarray)) and not isinstance(first, str) and len(first):
        check_part(first[0])  # what lies in memory can be looked at before anything is read
    n = len(library)
    parts = cut_evenly(range(n), max(1, min(num_workers, n)))
    return Plan(library, layout, "offset", n, parts, seed, cycle=False, gives_items=True)


def count_datasets(datasets: Any) -> int:
    """How many datasets there are that give parts of batches.

    Raises:
        TypeError: this is no list of them; mostly `batch_size` was forgotten.
    """
    if not hasattr(datasets, "__len__"):
        raise TypeError(
            f"Without batch_size, sequences must be a list of datasets that give parts of batches, got "
            f"{type(datasets).__name__}. Pass batch_size: how many sequences are read side by side."
        )
    return len(datasets)


def _positions_of(batch_size: int, shard: Any) -> range:
    """Those of this rank."""
    own = resolve_shard(shard, "drop") or Shard()
    if own.world > batch_size:
        raise ValueError(
            f"batch_size counts the positions of all ranks, so it must be at least {own.world}, got {batch_size}."
        )
    return cut_evenly(range(batch_size), own.world)[own.rank]


def _check_food(plan: Plan) -> None:
    """See that no position has to go on for ever with nothing to read."""
    if plan.shares is not None and not plan.shares.any():
        raise ValueError("At least one of the sequences must have an item, but all are empty.")
    if not plan.cycle or plan.assign != "partition":
        return
    hungry = plan.batch_size - len(plan.library) if plan.shares is None else int((plan.shares == 0).sum())
    if hungry > 0:
        raise ValueError(
            f"assign='partition' leaves {hungry} of {plan.batch_size} positions without an item, as there are only "
            f"{len(plan.library)} sequences. Pass a smaller batch_size, or assign='shuffle'."
        )


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


def shown(sequences: Any, plan: Plan, num_workers: int, engine: Any) -> str:
    """A loader in one line."""
    kind = type(sequences).__name__
    is_one = plan.assign == "offset" and not plan.gives_items
    parts = [f"<{kind}>" if is_one else f"<{kind} of {len(plan.library)}>"]
    if not plan.gives_items:
        parts.append(f"batch_size={plan.batch_size}")
        if plan.layout.seq_len is not None:
            parts.append(f"seq_len={plan.layout.seq_len}")
        parts += [f"assign={plan.assign!r}", f"cycle={plan.cycle}"]
    parts += [f"seed={plan.seed}", f"num_workers={num_workers}"]
    if num_workers:
        parts.append(f"engine={engine!r}")
    if len(plan.positions) < plan.batch_size:
        parts.append(f"positions {plan.positions.start} to {plan.positions.stop - 1}")
    return f"MultiStreamDataLoader({', '.join(parts)})"

"""`num_workers="auto"`: a number of workers for a loader, from a moment's measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.data.dataset import is_iterable_dataset
from headrace.streams.stream import Stream
from headrace.tuning.choice import reckon_workers
from headrace.tuning.machine import Machine, this_machine
from headrace.tuning.stages import MakeLoader, Question, measure_stages, some_keys

_SECONDS = 0.12
_PATIENCE_S = 0.5


@dataclass(frozen=True)
class Wanted:
    """The arguments of a DataLoader that decide how long a batch takes, and who could make it."""

    dataset: Any
    batch_size: int | None
    collate_fn: Any
    output: str
    engine: Any
    context: Any


def choose_workers(make_loader: MakeLoader, wanted: Wanted, *, needs_workers: bool) -> int:
    """How many workers a loader gets.

    Guarantees: batches come in the order that they would with any other number. The random generators of this process
    and the dataset in it are not touched: what is measured is a copy, in a worker process.

    Args:
        needs_workers: whether it has further arguments that make sense with workers only.
    """
    least = int(needs_workers or wanted.context is not None)
    if not isinstance(wanted.engine, str):
        return least  # it has its own workers
    machine = this_machine()
    if isinstance(wanted.dataset, Stream):
        return max(1, machine.cores - 1)
    if is_iterable_dataset(wanted.dataset):
        return least  # of several workers each would read everything, unless it was written for them
    return max(least, _measured(make_loader, wanted, machine))


def _measured(make_loader: MakeLoader, wanted: Wanted, machine: Machine) -> int:
    try:
        question = Question(
            wanted.dataset,
            some_keys(wanted.dataset),
            wanted.batch_size,
            wanted.collate_fn,
            wanted.output,
            _SECONDS,
            _PATIENCE_S,
            make_loader,
        )
        stages = measure_stages(question, context=wanted.context)
    except Exception:  # noqa: BLE001 (the loop will meet it, and without workers its traceback is plain)
        return 0
    return machine.cores if stages is None else reckon_workers(stages, machine)

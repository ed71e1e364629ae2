"""`headrace tune`: finds the workers for a dataset, and prints the line to write."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from headrace.cli.naming import find_dataset
from headrace.cli.printing import advance, fail, out, progress_bar
from headrace.tuning.tune import COLUMNS, Tuning, describe_stages
from headrace.tuning.tune import tune as find_workers


def tune(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DATASET", help="module:name or path.py:name of a dataset, a loader, or a function that makes one."
        ),
    ],
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples per batch. By default the loader's, or 32.")
    ] = None,
    step_time: Annotated[float, typer.Option(min=0, help="Seconds that the model takes for a step.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure, about.")] = 10.0,
) -> None:
    """Measure a dataset, try workers of all kinds, and print the DataLoader to write.

    The stages (fetch a sample, collate, bring it to the loop) are measured alone, then processes and threads are tried,
    no more than there are cores. The order of batches is the same with all of them.

    Example: `headrace tune train.py:make_dataset --batch-size 64 --step-time 0.05`
    """
    data = find_dataset(target)
    with progress_bar() as progress:
        task = progress.add_task("", total=1.0)
        try:
            found = find_workers(
                data,
                batch_size=batch_size,
                step_time=step_time,
                seconds=seconds,
                tell=lambda what, share: advance(progress, task, f"Trying {what}", share),
            )
        except Exception as error:  # noqa: BLE001 (mostly the dataset's own)
            fail(f"{target} cannot be loaded: {type(error).__name__}: {error}", code=1)
    _print(found)


def _print(found: Tuning) -> None:
    out.print(describe_stages(found.stages), highlight=False)
    table = Table(*COLUMNS, header_style="bold")
    for trial, row in zip(found.trials, found.rows(), strict=True):
        table.add_row(*row, style="green" if trial is found.best else None)
    out.print(table)
    for remark in found.remarks:
        out.print(remark, highlight=False)
    out.print(found.line, style="bold green", highlight=False, markup=False, soft_wrap=True)

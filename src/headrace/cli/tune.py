"""`headrace tune`: finds the workers for a dataset, and prints the line to write."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace.cli.output import advance, fail, out, progress_bar
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


def find_dataset(target: str) -> Any:
    """The object of that name; what it returns, if it is a function or a class.

    Raises:
        Exit: there is none, or making it failed; the reason is printed in one line.
    """
    where, separator, name = target.rpartition(":")
    if not separator or not where or not name:
        fail(f"a dataset is named module:name or path.py:name, got {target!r}.")
    if where.endswith(".py") and not Path(where).is_file():
        fail(f"there is no file {where}.")
    sys.argv = [where]  # a script that parses its arguments must not find ours
    try:
        found: Any = _import(where)
    except SystemExit as error:
        cure = 'Guard that by `if __name__ == "__main__":`.'
        fail(f"{where} cannot be imported: it calls sys.exit({error.code!r}). {cure}")
    except Exception as error:  # noqa: BLE001 (the user sees any error of their own code)
        fail(f"{where} cannot be imported: {type(error).__name__}: {error}")
    for part in name.split("."):
        if not hasattr(found, part):
            fail(f"there is no {name} in {where}.")
        found = getattr(found, part)
    return _made(found, target) if _is_factory(found) else found


def _import(where: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    sys.path.insert(0, str(path.parent))  # so that its own imports work, and worker processes find it by its name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 (it is a .py file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _is_factory(found: Any) -> bool:
    return isinstance(found, type) or (callable(found) and not hasattr(found, "__getitem__"))


def _made(factory: Any, target: str) -> Any:
    try:
        return factory()
    except Exception as error:  # noqa: BLE001 (the user sees any error of their own code)
        fail(f"{target}() raised {type(error).__name__}: {error}")

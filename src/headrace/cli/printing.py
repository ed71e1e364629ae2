"""How commands speak: results on stdout, everything else on stderr, and errors in one line."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

out = Console()
err = Console(stderr=True)

WRONG_INPUT = 2


def fail(reason: str, code: int = WRONG_INPUT) -> NoReturn:
    """End the command with one line on stderr.

    Raises:
        Exit: always.
    """
    err.print(f"headrace: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def progress_bar() -> Progress:
    """A bar on stderr, gone when it is done. Only `advance` draws it, no thread: threads do not survive a fork."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=err, transient=True, auto_refresh=False)


def advance(progress: Progress, task: TaskID, what: str, done: float) -> None:
    """Draw how far a task of a bar has come."""
    progress.update(task, description=what, completed=done, refresh=True)

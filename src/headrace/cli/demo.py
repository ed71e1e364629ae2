"""`headrace demo`: trains, kills a worker, stops, resumes, and shows that the loss is the same to the last bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from headrace.base.optional import is_installed
from headrace.cli.pictures import plot_losses
from headrace.cli.printing import advance, fail, out, progress_bar
from headrace.insight.explained import Explained
from headrace.insight.plot import plot_timings

if TYPE_CHECKING:
    from headrace.cli.torch_demo import Tell


def demo(
    folder: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="Where the pictures and the report go.")
    ] = Path("demo-output"),
    steps: Annotated[int, typer.Option(min=8, help="How many steps to train.")] = 240,
) -> None:
    """Train a small recurrent model on Paradise Lost; kill a worker, stop, resume, and compare every loss.

    The same training runs twice: straight through; and with a worker killed on the way, stopped in the middle, and
    resumed from its checkpoint with another number of workers. Both must give the same losses, to the last bit.
    The report, the timeline and the curves are written to a folder. It takes a minute or so.

    Example: `headrace demo --output /tmp/demo`
    """
    if not is_installed("torch"):
        fail("the demonstration trains with torch, which is not installed. Run: pip install 'headrace[torch]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--output needs a folder that can be written to, got {folder}: {error.strerror}.")
    straight, resumed = _run(folder, steps)
    _print_losses(straight, resumed)
    if straight != resumed:
        fail("the losses differ: this is a bug, please report it.", code=1)
    out.print(f"All {steps} losses are equal, to the last bit. See {folder}/ for what was written.", highlight=False)


def _run(folder: Path, steps: int) -> tuple[list[float], list[float]]:
    """The losses of the straight run, and of the one that was killed and resumed."""
    from headrace.cli.torch_demo import Writer, make_loader, train
    from headrace.cli.torch_threads import one_thread

    checkpoint, half = folder / "checkpoint.pt", steps // 2
    with progress_bar() as progress, _restarts_told(), one_thread():
        writer = Writer.new()
        with make_loader(num_workers=2) as loader:
            straight = train(writer, loader, steps, _teller(progress, "Straight through, 2 workers", steps))
        text = writer.write(300)

        writer = Writer.new()
        with make_loader(num_workers=2) as loader:
            out.print(
                f"After step {half // 4}, a worker is killed on purpose; what headrace says to that:\n", highlight=False
            )
            tell = _teller(progress, "Again, with a worker killed", half)
            resumed = train(writer, loader, half, tell, kill_at=half // 4)
            writer.save(checkpoint, loader)
            _write_report(folder, loader)

        writer = Writer.new()
        with make_loader(num_workers=1) as loader:
            writer.restore(checkpoint, loader)
            tell = _teller(progress, "Resumed from the checkpoint, 1 worker", steps - half)
            resumed += train(writer, loader, steps - half, tell)
        if is_installed("matplotlib"):
            plot_losses(straight, half // 4, half, folder / "loss.png")
            with make_loader(num_workers=2) as loader:
                plot_timings(loader, model=writer.learn, n_batches=12, path=folder / "timeline.png")
    out.print(f"What the model writes after {steps} steps:\n\n{text}\n", highlight=False, markup=False)
    return straight, resumed


def _write_report(folder: Path, loader: Explained) -> None:
    (folder / "report.txt").write_text(f"{loader.report()}\n", encoding="utf-8")
    loader.timeline(folder / "timeline.html")


def _teller(progress: Any, what: str, steps: int) -> Tell:
    task = progress.add_task(what, total=steps)

    def tell(step: int, loss: float) -> None:
        advance(progress, task, f"{what}: loss {loss:.3f}", step + 1)

    return tell


@contextmanager
def _restarts_told() -> Iterator[None]:
    """Print warnings (that a worker was replaced, for one) in between the bars."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: out.print(
            f"{message}\n", style="yellow", highlight=False, markup=False
        )
        yield


def _print_losses(straight: list[float], resumed: list[float]) -> None:
    table = Table("step", "straight through", "killed, stopped, resumed", "", header_style="bold")
    steps = len(straight)
    for step in sorted({0, *(steps * part // 8 for part in range(1, 8)), steps - 1}):
        equal = straight[step] == resumed[step]
        table.add_row(str(step), repr(straight[step]), repr(resumed[step]), "equal" if equal else "[red]differs[/]")
    out.print(table)

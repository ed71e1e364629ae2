"""`headrace demo`: trains, kills a worker, stops, resumes, and shows that the loss is the same to the last bit.

A small recurrent model learns to write verse, letter by letter. It keeps its state from batch to batch, so position i
of every batch must continue where position i of the last one stopped: what `MultiStreamDataLoader` is for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from headrace.base.optional import is_installed
from headrace.cli.output import advance, fail, out, plot_losses, progress_bar
from headrace.cli.torch_bench import one_thread
from headrace.insight.plot import plot_timings
from headrace.multistream.loader import MultiStreamDataLoader

TEXT = Path(__file__).parent / "demo_text"
POSITIONS = 32
LETTERS_AT_ONCE = 64
SEED = 7
_ALPHABET = 128
_WIDTH = 160

Tell = Callable[[int, float], None]
"""Is called with the number of each step, and its loss."""


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
    out.print(f"What the model writes after {steps} steps:\n\n{text}\n", highlight=False, markup=False)
    return straight, resumed


def _write_report(folder: Path, loader: MultiStreamDataLoader) -> None:
    (folder / "report.txt").write_text(f"{loader.report()}\n", encoding="utf-8")
    loader.timeline(folder / "timeline.html")
    if is_installed("matplotlib"):  # of the same run
        plot_timings(loader, n_batches=12, path=folder / "timeline.png", recorded=True)


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


def make_loader(num_workers: int) -> MultiStreamDataLoader:
    """The books as letters: each position of a batch reads all of them, in its own order."""
    return MultiStreamDataLoader(
        sorted(TEXT.glob("book-*.txt")),
        POSITIONS,
        seq_len=LETTERS_AT_ONCE,
        read=read_letters,
        targets=True,
        seed=SEED,
        num_workers=num_workers,
        on_worker_death="restart" if num_workers else "raise",
    )


def read_letters(path: Path) -> Any:
    return np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64)


@dataclass
class Writer:
    """The model, what trains it, and its state between two batches."""

    model: Any
    optimizer: Any
    hidden: Any = None

    @classmethod
    def new(cls) -> Writer:
        import torch

        torch.manual_seed(SEED)
        model = torch.nn.ModuleDict(
            {
                "embed": torch.nn.Embedding(_ALPHABET, 48),
                "recur": torch.nn.GRU(48, _WIDTH),
                "guess": torch.nn.Linear(_WIDTH, _ALPHABET),
            }
        )
        return cls(model, torch.optim.Adam(model.parameters(), lr=4e-3))

    def learn(self, batch: Any) -> float:
        """One step; returns the loss."""
        import torch

        outputs, hidden = self.model["recur"](self.model["embed"](batch.data), self.hidden)
        guesses = self.model["guess"](outputs)
        loss = torch.nn.functional.cross_entropy(guesses.flatten(0, 1), batch.targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.hidden = hidden.detach()
        return float(loss.item())

    def write(self, n_letters: int) -> str:
        """What it would write by itself, at this stage."""
        import torch

        generator = torch.Generator().manual_seed(SEED)
        written, hidden = [ord("\n")], None
        with torch.no_grad():
            for _ in range(n_letters):
                outputs, hidden = self.model["recur"](self.model["embed"](torch.tensor([written[-1:]])), hidden)
                chances = torch.softmax(self.model["guess"](outputs)[0, 0] / 0.6, 0)
                written.append(int(torch.multinomial(chances, 1, generator=generator)))
        return bytes(written).decode("ascii", "replace").strip()

    def save(self, path: Path, loader: MultiStreamDataLoader) -> None:
        """Save all that the training needs to resume: the loader's part is plain JSON."""
        import torch

        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "hidden": self.hidden,
            "loader": loader.state_dict(),
        }
        torch.save(checkpoint, path)

    def restore(self, path: Path, loader: MultiStreamDataLoader) -> None:
        import torch

        checkpoint = torch.load(path, weights_only=True)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.hidden = checkpoint["hidden"]
        loader.load_state_dict(checkpoint["loader"])


def train(writer: Writer, loader: MultiStreamDataLoader, n_steps: int, tell: Tell, kill_at: int = -1) -> list[float]:
    """Train on the next `n_steps` batches of the loader; returns their losses.

    Args:
        kill_at: a worker is killed after this step.
    """
    losses: list[float] = []
    batches = iter(loader)
    for step in range(n_steps):
        losses.append(writer.learn(next(batches)))
        tell(step, losses[-1])
        if step == kill_at:
            os.kill(_a_worker(), signal.SIGKILL)
    return losses


def _a_worker() -> int:
    """The process id of one of the loader's workers."""
    return next(child.pid for child in multiprocessing.active_children() if child.pid is not None)

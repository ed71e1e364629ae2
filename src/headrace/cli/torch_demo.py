"""The training of `headrace demo`: a small recurrent model that learns to write verse, letter by letter.

It keeps its state from batch to batch, so position i of every batch must go on where position i of the last one
stopped: what `MultiStreamDataLoader` is for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.optional import import_extra
from headrace.multistream.loader import MultiStreamDataLoader

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "headrace demo")

TEXT = Path(__file__).parent / "demo_text"
POSITIONS = 32
LETTERS_AT_ONCE = 64
SEED = 7
_ALPHABET = 128
_WIDTH = 160

Tell = Callable[[int, float], None]
"""Is called with the number of each step, and its loss."""


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
        generator = torch.Generator().manual_seed(SEED)
        written, hidden = [ord("\n")], None
        with torch.no_grad():
            for _ in range(n_letters):
                outputs, hidden = self.model["recur"](self.model["embed"](torch.tensor([written[-1:]])), hidden)
                chances = torch.softmax(self.model["guess"](outputs)[0, 0] / 0.6, 0)
                written.append(int(torch.multinomial(chances, 1, generator=generator)))
        return bytes(written).decode("ascii", "replace").strip()

    def save(self, path: Path, loader: MultiStreamDataLoader) -> None:
        """Save all that the training needs to go on: the loader's part is plain JSON."""
        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "hidden": self.hidden,
            "loader": loader.state_dict(),
        }
        torch.save(checkpoint, path)

    def restore(self, path: Path, loader: MultiStreamDataLoader) -> None:
        checkpoint = torch.load(path, weights_only=True)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.hidden = checkpoint["hidden"]
        loader.load_state_dict(checkpoint["loader"])


def train(writer: Writer, loader: MultiStreamDataLoader, n_steps: int, tell: Tell, kill_at: int = -1) -> list[float]:
    """So many steps, with the next batches of the loader; returns their losses.

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

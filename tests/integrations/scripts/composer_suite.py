"""Trains with Composer, with every kind of loader, from the beginning and from checkpoints."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from importlib.machinery import ModuleSpec


class StandIns:
    """Stand for what Composer imports and does not use here: pictures, and the cloud that it was made for."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("torchvision", "mcli") else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {}) if not name.startswith("__") else _missing(name)
        return module

    def exec_module(self, module):
        pass


def _missing(name):
    raise AttributeError(name)


if importlib.util.find_spec("torchvision") is None:
    sys.meta_path.append(StandIns())

import torch  # noqa: E402
from composer import Callback, ComposerModel, DataSpec, Trainer  # noqa: E402
from composer.utils import dist  # noqa: E402
from loaders import DEALT, make, n_batches, rows  # noqa: E402
from recording import case, page  # noqa: E402

from headrace.integrations.composer import LoaderCheckpoint  # noqa: E402
from headrace.integrations.wrapping import LoaderWrapper  # noqa: E402

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, batch):
        self.seen.append(rows(batch))
        return self.layer(batch.float().reshape(-1, 1))

    def loss(self, outputs, batch):
        return outputs.pow(2).mean()


class Saves(Callback):
    def __init__(self, trainer_of, name, n):
        self.trainer_of, self.name, self.n = trainer_of, name, n

    def batch_checkpoint(self, state, logger):
        for place, batch in (("middle", 2), ("last", self.n)):
            if int(state.timestamp.batch) == batch:
                self.trainer_of[0].save_checkpoint(f"{self.name}-{place}.pt")

    def epoch_checkpoint(self, state, logger):
        if int(state.timestamp.epoch) == 1:
            self.trainer_of[0].save_checkpoint(f"{self.name}-epoch.pt")


class DataOnly(LoaderWrapper):
    """Lanes without what stands beside their data."""

    def __iter__(self):
        return (batch.data for batch in self.loader)


def train(kind, workers=0, *, saves=False, resume=None):
    torch.manual_seed(1)
    loader = make(kind, workers)
    loader = DataOnly(loader) if kind == "lanes" else loader
    model, callbacks, trainer_of = Model(), [], []
    if kind != "torch":
        callbacks.append(LoaderCheckpoint(loader))
    if saves:
        callbacks.append(Saves(trainer_of, kind, n_batches(kind, PROCESSES)))
    # Composer counts no epochs of a loader without a length.
    duration = f"{2 * n_batches(kind, PROCESSES)}ba" if kind == "packed" else "2ep"
    trainer = Trainer(
        model=model, train_dataloader=DataSpec(loader, num_samples=24), max_duration=duration, callbacks=callbacks,
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-4), device="cpu", progress_bar=False, loggers=[], seed=1,
        load_path=resume, load_progress_bar=False, run_name="test", dist_timeout=60.0,
    )  # fmt: skip
    trainer_of.append(trainer)
    trainer.fit()
    weight = model.layer.weight.item()
    trainer.close()
    return [model.seen, weight]


def documented():
    """How many batches are trained on, from the beginning, and after a checkpoint."""
    counts = []
    for path in (None, "checkpoints/ep1-ba10-rank0.pt"):
        torch.manual_seed(1)
        model = Model()
        page("composer")["train"](model, torch.optim.SGD(model.parameters(), lr=1e-4), path)
        counts.append(len(model.seen))
    return counts


if PROCESSES > 1:
    dist.initialize_dist("cpu")
else:
    case("torch", train, "torch")
    case("plain, 0", train, "plain")
    case("plain, 2", train, "plain", 2)
    case("documented", documented)
for kind in DEALT:
    case(f"{kind}, 0", lambda kind=kind: train(kind, saves=True))
    case(f"{kind}, 2", train, kind, 2)
    for place in ("middle", "last", "epoch"):
        case(f"{kind}, from {place}", lambda kind=kind, place=place: train(kind, resume=f"{kind}-{place}.pt"))

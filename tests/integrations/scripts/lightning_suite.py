"""Fits with Lightning, with every kind of loader, from the beginning and from checkpoints."""

from __future__ import annotations

import logging
import os

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L  # noqa: E402, N812
import torch  # noqa: E402
from loaders import DEALT, make, rows  # noqa: E402
from recording import case  # noqa: E402

from headrace.integrations.lightning import LoaderCallback, LoaderDataModule  # noqa: E402

DEVICES = int(os.environ.get("WORLD_SIZE", "1"))
PLACES = ("middle", "last", "epoch")
MIDDLE = 2


class Model(L.LightningModule):
    def __init__(self, saves=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen, self.saves = [], saves

    def training_step(self, batch, index):
        self.seen.append([self.current_epoch, rows(batch)])
        values = torch.tensor(self.seen[-1][1], dtype=torch.float32).reshape(-1, 1)
        return self.layer(values).pow(2).mean()

    def on_train_batch_end(self, *args):
        if self.saves and self.current_epoch == 0:
            if len(self.seen) == MIDDLE:
                self.trainer.save_checkpoint(f"{self.saves}-middle.ckpt")
            if self.trainer.is_last_batch:
                self.trainer.save_checkpoint(f"{self.saves}-last.ckpt")

    def on_train_epoch_end(self):
        if self.saves and self.current_epoch == 0:
            self.trainer.save_checkpoint(f"{self.saves}-epoch.ckpt")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def fit(data, *, saves=None, resume=None, epochs=2, callbacks=(), **options):
    L.seed_everything(1)
    model = Model(saves)
    trainer = L.Trainer(
        accelerator="cpu", devices=DEVICES, strategy="ddp" if DEVICES > 1 else "auto", max_epochs=epochs,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=list(callbacks), **options,
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=resume and f"{resume}.ckpt", weights_only=False)
    return [model.seen, model.layer.weight.item()]


def with_callback(kind):
    callback = LoaderCallback()
    fit(make(kind), callbacks=[callback], saves="audited")
    proven = callback.proven
    fit(make(kind, 2), callbacks=[callback := LoaderCallback()], resume="audited-middle")
    return [proven, callback.proven]


def fabric(kind):
    fabric = L.Fabric(accelerator="cpu", devices=DEVICES, strategy="ddp" if DEVICES > 1 else "auto")
    fabric.launch()
    L.seed_everything(1)
    loader = fabric.setup_dataloaders(make(kind))
    return [[epoch, rows(batch)] for epoch in range(2) for batch in loader]


def data(kind, workers=0):
    """Loaders without a length need the module; the others show that they do not."""
    if kind == "unsized":
        return LoaderDataModule(lambda: make(kind, workers))
    return LoaderDataModule(make(kind, workers)) if kind == "packed" else make(kind, workers)


KINDS = ("torch", "plain", "seed", *DEALT, "unsized")
early = {kind: data(kind) for kind in KINDS}  # all of them are made before the process group is
for kind in KINDS:
    case(f"{kind}, 0", lambda kind=kind: fit(early[kind], saves=kind))
for kind in KINDS:
    case(f"{kind}, 2", lambda kind=kind: fit(data(kind, 2)))
if DEVICES > 1:
    case("torch with our sampler", lambda: fit(make("torch with our sampler")))
for kind in KINDS[1:]:
    for place in PLACES:
        case(f"{kind}, from {place}", lambda kind=kind, place=place: fit(data(kind), resume=f"{kind}-{place}"))
case("seed, from middle, 2", lambda: fit(make("seed", 2), resume="seed-middle"))
case("stream, from middle, 2", lambda: fit(make("stream", 2), resume="stream-middle"))
for kind in ("shard", "stream", "mix"):
    case(f"{kind}, audited", with_callback, kind)
for kind in ("torch", "plain", "seed", "shard"):
    case(f"{kind}, fabric", fabric, kind)
for kind in ("torch", "seed"):
    case(f"{kind}, overfit", lambda kind=kind: fit(make(kind), overfit_batches=2))

"""Fits with Lightning: kind of loader, workers, epochs, "save at step" or "resume from", a checkpoint; devices last."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L  # noqa: E402, N812
import torch  # noqa: E402
from loaders import make, rows  # noqa: E402


class Model(L.LightningModule):
    def __init__(self, save_at, path):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen, self.save_at, self.path = [], save_at, path

    def training_step(self, batch, index):
        self.seen.append([self.current_epoch, rows(batch)])
        values = torch.tensor(self.seen[-1][1], dtype=torch.float32).reshape(-1, 1)
        return self.layer(values).pow(2).mean()

    def on_train_batch_end(self, *args):
        if self.trainer.global_step == self.save_at:
            self.trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self):
        if self.save_at == "epoch" and self.current_epoch == 0:
            self.trainer.save_checkpoint(self.path)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


kind, workers, epochs, action, place, path, devices = sys.argv[1:]
L.seed_everything(1)
model = Model((place if place == "epoch" else int(place)) if action == "save" else None, path)
trainer = L.Trainer(
    accelerator="cpu", devices=int(devices), strategy="ddp" if int(devices) > 1 else "auto", max_epochs=int(epochs),
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    overfit_batches=float(place) if action == "overfit" else 0.0,
)  # fmt: skip
trainer.fit(model, make(kind, workers), ckpt_path=path if action == "resume" else None, weights_only=False)
Path(f"seen-{trainer.global_rank}.json").write_text(json.dumps([model.seen, model.layer.weight.item()]))

"""Fits with Lightning, which starts the ranks itself; killed in the middle, or resumed on any number of ranks."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L  # noqa: E402, N812
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from loaders import make, rows  # noqa: E402

from headrace.integrations.lightning import LoaderCallback, LoaderDataModule  # noqa: E402

devices, action, kinds = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
SAVED, KILLED = 2, 3  # steps


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append(rows(batch))
        return self.layer(batch.float().reshape(-1, 1)).pow(2).mean()

    def on_train_batch_end(self, *args):
        note(self.trainer, self.kind, self.seen, None)
        if action == "kill" and self.trainer.global_step == KILLED and self.kind == kinds[-1]:
            self.trainer.strategy.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "kill" and self.trainer.global_step == KILLED:
            self.trainer.should_stop = True

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def note(trainer, kind, seen, proven):
    Path(f"{kind}-{action}-{devices}-{trainer.global_rank}.json").write_text(json.dumps([seen, proven]))


for kind in kinds:
    model, callback = Model(), LoaderCallback(report=False)
    model.kind = kind
    every = ModelCheckpoint(
        ".", filename=f"{kind}-saved", every_n_train_steps=SAVED, save_top_k=1, enable_version_counter=False
    )
    trainer = L.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=1, min_epochs=0,
        callbacks=[callback, every] if action == "kill" else [callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=action == "kill",
    )  # fmt: skip
    path = f"{kind}-saved.ckpt" if action == "resume" else None
    trainer.fit(model, LoaderDataModule(make(kind)), ckpt_path=path, weights_only=False)
    note(trainer, kind, model.seen, callback.proven)

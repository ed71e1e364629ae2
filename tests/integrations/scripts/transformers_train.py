"""Trains with the Hugging Face Trainer, from the beginning or from a checkpoint."""

from __future__ import annotations

import json
import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from loaders import make  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from headrace.integrations.transformers import LoaderTrainerMixin  # noqa: E402

kind, workers, checkpoint = sys.argv[1:]
seen = []


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, rows):
        return self.layer(rows.float().reshape(-1, 1)).pow(2).mean()


class NoteTaking(LoaderTrainerMixin, Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        seen.append(inputs["rows"].reshape(-1).tolist())
        return model(inputs["rows"])


def name_rows(rows):
    return {"rows": torch.as_tensor(rows)}


loader = make(kind, workers)
loader.collate_fn = name_rows
arguments = TrainingArguments(
    "out", num_train_epochs=2, save_steps=2, save_strategy="steps", report_to=[], use_cpu=True, disable_tqdm=True,
    logging_strategy="no", remove_unused_columns=False,
)  # fmt: skip
trainer = NoteTaking(Named(), arguments, train_loader=loader)
trainer.train(resume_from_checkpoint=None if checkpoint == "none" else checkpoint)
print("SEEN", json.dumps(seen), flush=True)

"""Trains with the Hugging Face Trainer, from the beginning and from checkpoints, by headrace's mix-in and without."""

from __future__ import annotations

import os

import torch
from loaders import DEALT, SIZE, make
from recording import case
from transformers import Trainer, TrainingArguments

import headrace
from headrace.integrations.transformers import LoaderTrainerMixin

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, rows):
        return self.layer(rows.float().reshape(-1, 1)).pow(2).mean()


class NoteTaking(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.losses = [], []

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen.append([int(self.state.epoch or 0), inputs["rows"].reshape(-1).tolist()])
        loss = model(inputs["rows"])
        self.losses.append(loss.item())
        return loss


class FromLoader(LoaderTrainerMixin, NoteTaking):
    pass


class FromDataset(NoteTaking):
    """Torch's loader, or ours, the way that users write it: by overriding `get_train_dataloader`."""

    def __init__(self, *args, loader, **kwargs):
        self._loader = loader
        super().__init__(*args, train_dataset=loader.dataset, **kwargs)

    def get_train_dataloader(self):
        return self.accelerator.prepare(self._loader)


def name_rows(rows):
    return {"rows": torch.as_tensor(rows)}


def name_columns(rows):
    return {"rows": torch.as_tensor([list(row) for row in rows])}


def train(kind, workers=0, step=None, *, mix_in=True):
    torch.manual_seed(1)
    if kind == "lanes":
        loader = Lanes(make(kind, workers))
    else:
        collate = name_columns if kind == "packed" else name_rows
        loader = make(kind, workers, collate_fn=collate)
    arguments = TrainingArguments(
        f"out-{kind}", num_train_epochs=2, save_steps=1, save_strategy="steps", report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", remove_unused_columns=False, seed=1,
        per_device_train_batch_size=SIZE, max_steps=8 // PROCESSES if kind == "packed" else -1,
    )  # fmt: skip
    given = {"train_loader": loader} if mix_in else {"loader": loader}
    trainer = (FromLoader if mix_in else FromDataset)(Named(), arguments, **given)
    trainer.train(resume_from_checkpoint=None if step is None else f"out-{kind}/checkpoint-{step}")
    return [trainer.seen, trainer.losses]


class Lanes(headrace.MultiStreamDataLoader):
    """Gives batches as the dicts that the trainer takes."""

    def __new__(cls, loader):
        return super().__new__(cls)

    def __init__(self, loader):
        self.__dict__.update(loader.__dict__)

    def __iter__(self):
        return ({"rows": batch.data} for batch in super().__iter__())


def refused(kind, step=None):
    try:
        train(kind, step=step, mix_in=step is not None)
    except RuntimeError as error:
        return str(error)
    return "taken"


case("torch, theirs", lambda: train("torch", mix_in=False))
for workers in (0, 2):
    case(f"plain, {workers}, theirs", lambda workers=workers: train("plain", workers, mix_in=False))
    case(f"seed, {workers}, theirs", lambda workers=workers: train("seed", workers, mix_in=False))
for kind in DEALT:
    whole = case(f"{kind}, 0", train, kind)
    case(f"{kind}, 2", train, kind, 2)
    n = 0 if whole is None else len(whole[0]) // 2
    for place, step in (("middle", 2), ("last", n), ("second epoch", n + 1)):
        if kind == "packed" and step >= n:  # without a length, the trainer counts no epochs
            case(f"packed, {place}, refused", refused, kind, step)
        else:
            case(f"{kind}, from {place}", train, kind, 0, step)
if PROCESSES > 1:
    for kind in ("shard", "stream"):
        case(f"{kind}, refused", refused, kind)

"""Loops with Accelerate, in steps of three batches: what was seen, gathered, saved and skipped."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate import skip_first_batches as skip_by_reading
from accelerate.state import GradientState
from loaders import DEALT, make, n_batches, rows
from recording import case

from headrace.integrations.accelerate import prepare, skip_first_batches

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)


def loop(loader, saves=None):
    """The rows of two epochs, those gathered of all processes, where gradients were applied, and the weight."""
    accelerator.step = 0
    torch.manual_seed(1)
    layer = accelerator.prepare(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    seen, gathered, synced = [], [], []
    for epoch in range(2):
        for number, batch in enumerate(loader):
            with accelerator.accumulate(layer):
                values = batch[0] if isinstance(batch, (tuple, list)) else batch
                seen.append([epoch, rows(values)])
                gathered.append([epoch, rows(accelerator.gather_for_metrics(values.contiguous()))])
                synced.append(accelerator.sync_gradients)
                accelerator.backward(layer(values.float().reshape(-1, 1)).pow(2).mean())
                if accelerator.sync_gradients:
                    optimizer.step()
                    optimizer.zero_grad()
            for place, last in (("middle", 2), ("last", n_batches(saves, accelerator.num_processes))):
                if saves and epoch == 0 and number + 1 == last:
                    accelerator.save_state(f"{saves}-{place}")
        if saves and epoch == 0:
            accelerator.save_state(f"{saves}-epoch")
    accelerator._models.clear()
    return [seen, gathered, synced, next(layer.parameters()).item()]


def theirs(kind, workers=0):
    torch.manual_seed(1)
    return loop(accelerator.prepare(make(kind, workers)))


def ours(kind, workers=0, saves=None):
    accelerator._dataloaders.clear()
    return loop(prepare(accelerator, make(kind, workers)), saves)


def resumed(kind, workers, place):
    accelerator._dataloaders.clear()
    loader = prepare(accelerator, make(kind, workers))
    accelerator.wait_for_everyone()
    accelerator.load_state(f"{kind}-{place}")
    return [[rows(batch) for batch in loader], [rows(batch) for batch in loader]]


def skipped(kind, workers):
    accelerator._dataloaders.clear()
    loader = prepare(accelerator, make(kind, workers))
    loader.set_epoch(0)
    return [[rows(batch) for batch in skip_first_batches(loader, 2)], [rows(batch) for batch in loader]]


def skipped_by_accelerate(kind):
    torch.manual_seed(1)
    loader = accelerator.prepare(make(kind))
    return [rows(batch) for batch in skip_by_reading(loader, 2)]


def refused(kind):
    try:
        accelerator.prepare(make(kind))
    except RuntimeError as error:
        return str(error)
    return "taken"


def placed():
    loader = prepare(accelerator, make("shard"))
    accelerator._dataloaders.clear()
    moved = prepare(Placing(), make("shard"))
    return [{batch.device.type for batch in loader} == {"cpu"}, {batch.device.type for batch in moved} == {"meta"}]


class Placing:
    """Has the device "meta", the only one beside the CPU that is on every machine."""

    num_processes, device_placement, device = 1, True, torch.device("meta")

    def __init__(self):
        self._dataloaders = []


for kind in ("torch", "torch, in order", "plain", "in order", "seed"):
    for workers in (0, 2):
        case(f"{kind}, {workers}, theirs", theirs, kind, workers)
for kind in DEALT:
    case(f"{kind}, 0, ours", ours, kind, 0, kind)
    case(f"{kind}, 2, ours", ours, kind, 2)
    for place in ("middle", "last", "epoch"):
        case(f"{kind}, from {place}", resumed, kind, 0, place)
    case(f"{kind}, skipped", skipped, kind, 0)
case("shard, from middle, 2", resumed, "shard", 2, "middle")
for kind in ("torch", "plain", "seed"):
    case(f"{kind}, skipped, theirs", skipped_by_accelerate, kind)
case("placed", placed)
case("flags are gone", lambda: not GradientState().in_dataloader)
if accelerator.num_processes > 1:
    for kind in ("shard", "stream", "mix", "packed", "stream in torch"):
        case(f"{kind}, refused", refused, kind)
accelerator.end_training()

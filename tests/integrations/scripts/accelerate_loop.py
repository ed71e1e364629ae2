"""Two epochs with Accelerate, in steps of two batches; what was seen, gathered and saved."""

from __future__ import annotations

import json
import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from loaders import make, rows  # noqa: E402

kind, workers, way = sys.argv[1:]
torch.manual_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
layer, loader = torch.nn.Linear(1, 1), make(kind, workers)
try:
    if way == "ours":
        from headrace.integrations.accelerate import prepare

        layer, loader = accelerator.prepare(layer), prepare(accelerator, loader)
    else:
        layer, loader = accelerator.prepare(layer, loader)
    seen, gathered, synced, saved = [], [], [], None
    for epoch in range(2):
        for n, batch in enumerate(loader):
            with accelerator.accumulate(layer):
                seen.append([epoch, rows(batch)])
                gathered.append([epoch, rows(accelerator.gather_for_metrics(batch))])
                synced.append(accelerator.sync_gradients)
            if way == "ours" and (epoch, n) == (0, 1):
                accelerator.save_state("saved")
    resumed = []
    if way == "ours":
        again = make(kind, workers)
        accelerator._dataloaders.clear()
        again = prepare(accelerator, again)
        accelerator.wait_for_everyone()
        accelerator.load_state("saved")
        resumed = [rows(batch) for batch in again]
    print("SEEN", json.dumps([seen, gathered, synced, resumed]), flush=True)
except RuntimeError as error:
    print("SEEN", json.dumps(str(error)), flush=True)

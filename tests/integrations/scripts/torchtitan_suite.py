"""torchtitan's loader protocol, and its checkpoints: saved on two ranks, loaded on two and on one."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from loaders import make, rows
from recording import case, page
from torchtitan.components.dataloader import BaseDataLoader

from headrace.integrations.torchtitan import TitanLoader

PROCESSES, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
KINDS = ("shard", "stream", "mix", "packed", "lanes")


def titan(kind, workers=0, epochs=2):
    return TitanLoader(make(kind, workers), RANK, PROCESSES, epochs=epochs)


def train(kind, workers, saves):
    loader, seen = titan(kind, workers), []
    assert isinstance(loader, BaseDataLoader)
    for batch in loader:
        seen.append(rows(batch))
        if saves and len(seen) == 2:
            dcp.save({"dataloader": loader}, checkpoint_id=f"titan-{kind}")
    loader.close()
    return seen


def resumed(kind, workers):
    loader = titan(kind, workers)
    dcp.load({"dataloader": loader}, checkpoint_id=f"titan-{kind}")
    return [rows(batch) for batch in loader]


def refused():
    try:
        TitanLoader(make("shard"), RANK, PROCESSES + 1)
    except ValueError as error:
        return str(error)
    return "taken"


def documented():
    """The packed tokens of an endless loader: more than an epoch of them."""
    loader = page("torchtitan")["build_dataloader"](1, 0)
    batches = [
        inputs["input"].shape[1] == labels.shape[1] == 8 for (inputs, labels), _ in zip(loader, range(5), strict=False)
    ]
    return [all(batches), len(batches)]


dist.init_process_group("gloo", rank=RANK, world_size=PROCESSES)
for kind in KINDS:
    if sys.argv[1] == "save":
        case(f"{kind}, 0", train, kind, 0, True)
        case(f"{kind}, 2", train, kind, 2, False)
    for workers in (0, 2):
        case(f"{kind}, resumed, {workers}", resumed, kind, workers)
case("another rank", refused)
dist.destroy_process_group()
if PROCESSES == 1:
    case("documented", documented)

"""Global arrays of JAX, on one host with four devices, or on two with two each."""

from __future__ import annotations

import os

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={4 // PROCESSES}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402

if PROCESSES > 1:
    address = f"127.0.0.1:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, num_processes=PROCESSES, process_id=RANK)

import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from loaders import N, read_block  # noqa: E402
from recording import case  # noqa: E402

import headrace  # noqa: E402
from headrace.integrations.jax import data_rank, place  # noqa: E402

DEVICES = np.array(jax.devices())
SHARDINGS = {
    "data": NamedSharding(Mesh(DEVICES.reshape(4), ("data",)), P("data")),
    "data and model": NamedSharding(Mesh(DEVICES.reshape(2, 2), ("data", "model")), P("data")),
    "hosts are replicas": NamedSharding(Mesh(DEVICES.reshape(2, 2), ("model", "data")), P("data")),
}


def loader(kind, sharding, workers=0):
    options = {"output": "numpy", "shard": data_rank(sharding), "num_workers": workers, "drop_last": True}
    size = 8 // data_rank(sharding)[1]
    if kind == "stream":
        blocks = [(i, i + 4) for i in range(0, N, 4)]
        stream = headrace.Stream.from_blocks(blocks, read_block, counts=[4] * len(blocks)).shuffle()
        return headrace.DataLoader(stream, size, seed=3, **options)
    if kind == "lanes":
        del options["drop_last"]
        sequences = [[i, i + 8, i + 16] for i in range(8)]
        return headrace.MultiStreamDataLoader(sequences, 8, assign="partition", cycle=True, **options)
    return headrace.DataLoader([{"row": i, "twice": 2 * i} for i in range(N)], size, shuffle=True, seed=3, **options)


def held(array):
    """What this host's devices hold, and the shape of the whole."""
    return [sorted({int(row) for shard in array.addressable_shards for row in np.asarray(shard.data)}), array.shape[0]]


def epoch(kind, name, workers):
    placed, seen = place(loader(kind, SHARDINGS[name], workers), sharding=SHARDINGS[name]), []
    for _, batch in zip(range(3), placed, strict=False):
        if kind == "map":
            assert (np.asarray(batch["twice"].addressable_shards[0].data) % 2 == 0).all()
        seen.append(held(batch["row"] if kind == "map" else batch))
    return seen


def resumed(kind, after):
    sharding = SHARDINGS["data"]
    placed, seen = place(loader(kind, sharding), sharding=sharding), []
    for number, batch in enumerate(placed, 1):
        seen.append(held(batch["row"] if kind == "map" else batch))
        if number == after:
            break
    folder = os.path.abspath(f"orbax-{kind}-{after}-{RANK}")
    state = placed.state_dict()
    if PROCESSES == 1:
        with ocp.CheckpointManager(folder) as manager:
            manager.save(0, args=ocp.args.Composite(loader=ocp.args.JsonSave(state)))
            manager.wait_until_finished()
            state = manager.restore(0, args=ocp.args.Composite(loader=ocp.args.JsonRestore()))["loader"]
    again = place(loader(kind, sharding, 2), sharding=sharding)
    again.load_state_dict(state)
    return seen + [held(batch["row"] if kind == "map" else batch) for batch in again]


def ahead():
    """How many batches were loaded when the loop has the first."""
    loaded = []

    def note(samples):
        loaded.append(len(samples))
        return np.stack(samples)

    sharding = SHARDINGS["data"]
    plain = headrace.DataLoader(
        range(N), 8 // data_rank(sharding)[1], shard=data_rank(sharding), output="numpy", collate_fn=note
    )
    next(iter(place(plain, sharding=sharding)))
    return len(loaded)


def refusal(make_it):
    try:
        make_it()
    except ValueError as error:
        return str(error)
    return "taken"


for name in SHARDINGS:
    for kind in ("map", "stream", "lanes"):
        for workers in (0, 2):
            case(f"{kind}, {name}, {workers}", epoch, kind, name, workers)
for kind in ("map", "stream"):
    for after in (1, 3):
        case(f"{kind}, after {after}", resumed, kind, after)
case("ahead", ahead)
sharding = SHARDINGS["data"]
other = headrace.DataLoader(range(N), 8, shard=(1, 3), output="numpy")
case("another rank", refusal, lambda: place(other, sharding=sharding))
uneven = headrace.DataLoader(range(5), 5, shard=data_rank(sharding), output="numpy")
case("uneven", refusal, lambda: list(place(uneven, sharding=sharding)))

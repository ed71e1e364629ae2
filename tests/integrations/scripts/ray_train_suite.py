"""Trains with Ray Train on one and two workers; some fail, and are started again from the latest checkpoint."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
SCRIPTS = str(Path(__file__).parent)

import ray  # noqa: E402
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402
from recording import case  # noqa: E402


def work(config):
    """What a worker does: all kinds of loaders; then a training that fails at its third batch, once."""
    sys.path.insert(0, SCRIPTS)
    import ray.train.torch
    from loaders import DEALT, make, rows

    from headrace.integrations.ray_train import prepare, restore, save

    rank, folder = ray.train.get_context().get_world_rank(), Path(config["folder"])
    notes = folder / f"{config['name']}-{rank}.json"
    seen = json.loads(notes.read_text()) if notes.exists() else {}
    if not seen:
        for kind in DEALT:
            for workers in (0, 2):
                loader = prepare(make(kind, workers))
                seen[f"{kind}, {workers}"] = [[rows(batch) for batch in loader] for _ in range(2)]
                loader.close()
        for kind in ("shard", "in order", "plain", "torch, in order"):
            loader = ray.train.torch.prepare_data_loader(make(kind))
            seen[f"{kind}, theirs"] = [rows(batch) for batch in loader]
        seen["starts"] = str(prepare(make("shard", 2)).multiprocessing_context)
        seen["attempts"] = 0
    seen["attempts"] += 1
    loader = prepare(make("mix"))
    seen[f"restored {seen['attempts']}"] = restore(loader)
    seen[f"run {seen['attempts']}"] = trained = []
    for number, batch in enumerate(loader, 1):
        if seen["attempts"] == 1 and number == 4:
            notes.write_text(json.dumps(seen))
            raise RuntimeError("this worker fails, once")
        trained.append(rows(batch))
        if seen["attempts"] == 1 and number == 3:
            with tempfile.TemporaryDirectory() as directory:
                if rank == 0:
                    save(loader, directory)
                    ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))
                else:
                    ray.train.report({})
    notes.write_text(json.dumps(seen))


def fit(workers):
    folder = os.path.abspath(".")
    TorchTrainer(
        work,
        train_loop_config={"folder": folder, "name": f"of-{workers}"},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=False, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name=f"of-{workers}", storage_path=folder, failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()  # fmt: skip
    return [json.loads(Path(f"of-{workers}-{rank}.json").read_text()) for rank in range(workers)]


def documented():
    """How far the loader of the documentation came: the epoch that follows its last checkpoint."""
    sys.path.insert(0, SCRIPTS)
    from recording import page

    result = TorchTrainer(
        page("ray-train")["train"],
        scaling_config=ScalingConfig(num_workers=1, use_gpu=False, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="documented", storage_path=os.path.abspath(".")),
    ).fit()
    with result.checkpoint.as_directory() as directory:
        return json.loads(Path(directory, "headrace-loader.json").read_text())["batches"]


ray.init(num_cpus=3, include_dashboard=False, logging_level="error", object_store_memory=150 * 2**20)
for workers in (1, 2):
    case(f"{workers}", fit, workers)
case("documented", documented)
ray.shutdown()

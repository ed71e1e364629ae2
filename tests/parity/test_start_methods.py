"""Workers that are not forked, torch's and headrace's: the same batches and random states."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.utils.data as torch_data

import headrace

from . import spawned
from .traces import Setting, Step, compare_traces, trace

pytestmark = pytest.mark.timeout(300)
TWO_EPOCHS = [Step("start", 0), Step("next", 0), Step("start", 0), Step("drain", 0)]


@pytest.mark.parametrize(
    ("method", "dataset", "options"),
    [
        ("spawn", spawned.Augmented, {"shuffle": True, "worker_init_fn": spawned.shift}),
        ("forkserver", spawned.AugmentedStream, {"drop_last": True}),
    ],
    ids=["spawn", "forkserver"],
)
def test_batches(method: str, dataset: Any, options: dict[str, Any]) -> None:
    def build(setting: Setting) -> Any:
        return setting.own.DataLoader(
            dataset(),
            2,
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context=multiprocessing.get_context(method),
            **options,
        )

    traces = [trace(build, Setting(library, exact_strides=False), TWO_EPOCHS) for library in (torch_data, headrace)]
    compare_traces(*traces)
    assert sum(result[0] == "returned" for name, result, _ in traces[0] if name.startswith("next")) > 4

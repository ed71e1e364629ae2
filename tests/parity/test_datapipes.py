"""torch's DataPipes: shuffled, seeded and left in the same random state as by torch's own loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import headrace

from .traces import Setting, Step, assert_same_traces

PIPES: dict[str, Callable[[], Any]] = {
    "plain": lambda: IterableWrapper(range(7)),
    "shuffled": lambda: IterableWrapper(range(7)).shuffle(),
    "sharded": lambda: IterableWrapper(range(7)).shuffle().sharding_filter(),
    "batched": lambda: IterableWrapper(range(7)).shuffle().batch(2),
    "map": lambda: SequenceWrapper(list(range(7))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pipe", PIPES.values(), ids=PIPES.keys())
@pytest.mark.parametrize("shuffle", [None, True, False])
@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_datapipes(pipe: Callable[[], Any], shuffle: bool | None, seed: int | None, batch_size: int | None) -> None:
    if shuffle and pipe is PIPES["plain"]:
        return  # torch announces a shuffler and forgets it; see test_a_shuffler_that_is_announced_is_added

    def build(setting: Setting) -> Any:
        options = {} if shuffle is None else {"shuffle": shuffle}
        return setting.own.DataLoader(pipe(), batch_size, generator=setting.new_generator(seed), **options)

    assert_same_traces(build, [Step("drain", 0), Step("start", 0), Step("next", 0), Step("start", 0), Step("drain", 0)])


WORKER_PIPES: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: IterableWrapper(range(13)).shuffle(),
    "sharded": lambda: IterableWrapper(range(13)).shuffle().sharding_filter(),
    "shuffled after sharding": lambda: IterableWrapper(range(13)).sharding_filter().shuffle(buffer_size=3),
    "random": lambda: IterableWrapper(range(13)).shuffle().sharding_filter().map(_with_noise),
    "batched": lambda: IterableWrapper(range(13)).sharding_filter().batch(2, drop_last=True),
    "map": lambda: SequenceWrapper(list(range(13))).map(_with_noise),
}


def _with_noise(sample: int) -> tuple[int, float]:
    return sample, torch.rand(()).item()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pipe", WORKER_PIPES.values(), ids=WORKER_PIPES.keys())
@pytest.mark.parametrize(
    ("seed", "batch_size", "n_workers", "persistent"), [(None, None, 2, True), (4, 3, 3, False), (None, 2, 1, True)]
)
def test_datapipes_with_workers(
    pipe: Callable[[], Any], seed: int | None, batch_size: int | None, n_workers: int, persistent: bool
) -> None:
    def build(setting: Setting) -> Any:
        options = {"num_workers": n_workers, "persistent_workers": persistent, "prefetch_factor": 1}
        return setting.own.DataLoader(pipe(), batch_size, generator=setting.new_generator(seed), **options)

    assert_same_traces(build, [Step("drain", 0), Step("start", 0), Step("next", 0), Step("start", 0), Step("drain", 0)])


def test_a_shuffler_that_is_announced_is_added() -> None:
    """torch warns that it adds a shuffler, but iterates over the DataPipe without it; headrace does what is said."""
    with pytest.warns(UserWarning, match="Adding one at the end"):
        loader = headrace.DataLoader(IterableWrapper(range(50)), 50, shuffle=True)
    (epoch,), (other,) = list(loader), list(loader)
    assert sorted(epoch.tolist()) == list(range(50))
    assert epoch.tolist() != other.tolist()

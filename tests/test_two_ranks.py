"""Real ranks: gloo, DistributedDataParallel, a stop in the middle, fresh processes, one rank more; and no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs_torch
from tests.once import made_once

pytestmark = needs_torch

ROOT = Path(__file__).parent.parent
KINDS = ("weighted", "bucketed", "weighted buckets")
N_SAMPLES, STOP_BATCH, LAST_EPOCH = 203, 5, 3


def train(folder):
    """What each rank of each run saw; all of them must end by themselves."""
    command = [sys.executable, "-m", "tests.rank_training", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return {
        run: [json.loads((folder / f"{run}-{rank}.json").read_text()) for rank in range(world)]
        for run, world in (("first", 2), ("again", 2), ("on three", 3))
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return made_once(tmp_path_factory, "two_ranks", lambda: train(tmp_path_factory.mktemp("ranks")))


def samples(ranks, kind, epoch, since=0):
    """What came of an epoch on all ranks, from a batch on."""
    return [key for rank in ranks for batch in rank[kind]["seen"][str(epoch)][since:] for key in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_get_every_sample_once(results, kind):
    for rank in results["first"]:
        assert rank[kind]["proven"] == [0, 1, 2, 3]
        assert rank[kind]["report"].count("each exactly once over 2 ranks") == 4
    for epoch in range(LAST_EPOCH + 1):
        first, second = (rank[kind]["seen"][str(epoch)] for rank in results["first"])
        assert len(first) == len(second) > STOP_BATCH
    if kind == "bucketed":
        whole = samples(results["first"], kind, 0)
        assert len(whole) == len(set(whole)) > N_SAMPLES - 20  # one batch at most is dropped


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_differ_and_ranks_have_different_samples(results, kind):
    ranks = results["first"]
    assert samples(ranks, kind, 0) != samples(ranks, kind, 1)
    assert ranks[0][kind]["seen"]["0"] != ranks[1][kind]["seen"]["0"]


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_processes_go_on_with_the_same_batches(results, kind):
    for before, after in zip(results["first"], results["again"], strict=True):
        assert after[kind]["seen"]["2"] == before[kind]["seen"]["2"][STOP_BATCH:]
        assert after[kind]["seen"]["3"] == before[kind]["seen"]["3"]
        assert after[kind]["proven"] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks_get_the_rest_exactly_once(results, kind):
    undisturbed, resumed = results["first"], results["on three"]
    for rank in resumed:
        assert rank[kind]["proven"] == [0, 1, 2, 3]
    rest, same_rest = samples(resumed, kind, 2), samples(undisturbed, kind, 2, since=STOP_BATCH)
    # The same samples, up to those of the last round, which other ranks drop or need not drop.
    few = 2 * max(len(batch) for batch in undisturbed[0][kind]["seen"]["2"])
    assert len(set(rest) ^ set(same_rest)) <= few
    assert len(rest) > few

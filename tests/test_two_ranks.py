"""Real ranks: gloo, DistributedDataParallel, a stop in the middle, fresh processes, one rank more; and no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs_torch

pytestmark = needs_torch

ROOT = Path(__file__).parent.parent
KINDS = ("weighted", "bucketed", "weighted buckets")
N_SAMPLES, STOP_EPOCH, STOP_BATCH, LAST_EPOCH = 203, 2, 5, 3


def run_ranks(folder, world, run):
    """What each rank saw, of a training that must end by itself."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.rank_training", str(folder), str(rank), str(world), run],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=80)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stderr.close()
    return [json.loads((folder / f"{run}-{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The undisturbed training on two ranks, and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_ranks(folder, 2, "first")


def samples(results, kind, epoch, since=0):
    """What came of an epoch on all ranks, from a batch on."""
    return [key for result in results for batch in result[kind]["seen"][str(epoch)][since:] for key in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_get_every_sample_once(trained, kind):
    _, results = trained
    for result in results:
        assert result[kind]["proven"] == [0, 1, 2, 3]
        assert result[kind]["report"].count("each exactly once over 2 ranks") == 4
    for epoch in range(LAST_EPOCH + 1):
        first, second = (result[kind]["seen"][str(epoch)] for result in results)
        assert len(first) == len(second) > STOP_BATCH
    if kind == "bucketed":
        whole = samples(results, kind, 0)
        assert len(whole) == len(set(whole)) > N_SAMPLES - 20  # one batch at most is dropped


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_differ_and_ranks_have_different_samples(trained, kind):
    _, results = trained
    assert samples(results, kind, 0) != samples(results, kind, 1)
    assert results[0][kind]["seen"]["0"] != results[1][kind]["seen"]["0"]


def test_fresh_processes_go_on_with_the_same_batches(trained):
    folder, undisturbed = trained
    resumed = run_ranks(folder, 2, "again")
    for kind in KINDS:
        for before, after in zip(undisturbed, resumed, strict=True):
            assert after[kind]["seen"]["2"] == before[kind]["seen"]["2"][STOP_BATCH:]
            assert after[kind]["seen"]["3"] == before[kind]["seen"]["3"]
            assert after[kind]["proven"] == [0, 1, 2, 3]


def test_three_ranks_get_the_rest_exactly_once(trained):
    folder, undisturbed = trained
    resumed = run_ranks(folder, 3, "on three")
    for kind in KINDS:
        for result in resumed:
            assert result[kind]["proven"] == [0, 1, 2, 3]
        rest, same_rest = samples(resumed, kind, 2), samples(undisturbed, kind, 2, since=STOP_BATCH)
        # The same samples, up to those of the last round, which other ranks drop or need not drop.
        few = 2 * max(len(batch) for batch in undisturbed[0][kind]["seen"]["2"])
        assert len(set(rest) ^ set(same_rest)) <= few
        assert len(rest) > few

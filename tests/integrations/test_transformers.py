"""The Hugging Face Trainer: every row once over all processes, and resumes that seek."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.integrations.checks import everything
from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import DEALT, N

PROCESSES = (1, 2)
seen = functools.partial(seen_by, "transformers_suite.py")


def halves(ranks):
    """The rows of each epoch, over all ranks."""
    n = len(ranks[0][0]) // 2
    return [sorted(row for one in ranks for _, batch in one[0][a:b] for row in batch) for a, b in ((0, n), (n, 2 * n))]


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_overridden_loader_gives_the_rows_and_losses_of_torchs(processes, workers):
    assert seen(processes)[f"plain, {workers}, theirs"] == seen(processes)["torch, theirs"]
    assert halves(seen(processes)[f"seed, {workers}, theirs"]) == [list(range(N))] * 2


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
def test_every_row_once_over_all_processes(kind, processes):
    whole = seen(processes)[f"{kind}, 0"]
    assert halves(whole) == [everything(kind)] * 2
    assert seen(processes)[f"{kind}, 2"] == whole


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("place", ["middle", "last", "second epoch"])
def test_a_resumed_training_goes_on_where_it_was(kind, processes, place):
    if kind == "packed" and (place != "middle" or processes == 2):  # two ranks have two batches each
        for refusal in seen(processes)[f"packed, {place}, refused"]:
            assert "Trainers cannot tell epochs of a loader without a length apart" in refusal
        return
    for one, resumed in zip(seen(processes)[f"{kind}, 0"], seen(processes)[f"{kind}, from {place}"], strict=True):
        n = len(one[0]) // 2
        done = {"middle": 2, "last": n, "second epoch": n + 1}[place]
        assert [batch for _, batch in resumed[0]] == [batch for _, batch in one[0][done:]]
        assert resumed[1] == one[1][done:]


@pytest.mark.parametrize("kind", ["shard", "stream"])
def test_what_would_be_dealt_out_twice_is_refused(kind):
    for refusal in seen(2)[f"{kind}, refused"]:
        assert "headrace.integrations.accelerate.prepare" in refusal

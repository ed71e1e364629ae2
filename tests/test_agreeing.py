"""`even="agree"` on real ranks: uneven ones end an epoch together, nothing is dropped before, and none hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Audit, DataLoader
from tests.needs import needs_torch
from tests.once import made_once

ROOT = Path(__file__).parent.parent
KINDS = {"by key": 5, "iterable": 4, "stream": 7, "lanes": 4}  # and how many batches the shorter rank has
WORKERS = ("alone", "processes", "persistent", "threads")


def run(folder):
    command = [sys.executable, "-m", "tests.agreed_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    both = [json.loads((folder / f"cases-{rank}.json").read_text()) for rank in (0, 1)]
    return {"cases": both, "lost": json.loads((folder / "lost-0.json").read_text())}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return made_once(tmp_path_factory, "agreed_ranks", lambda: run(tmp_path_factory.mktemp("agreed")))


@pytest.fixture
def case(results):
    return lambda name: [one[name] for one in results["cases"]]


pytestmark = [needs_torch, pytest.mark.timeout(300)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_ranks_end_at_the_same_step_and_resume(case, kind, workers):
    ranks, alone = case(f"{kind}, {workers}"), case(f"{kind}, alone")
    for one in ranks:
        assert len(one["first"]) == len(one["second"]) == KINDS[kind]
        assert one["resumed"] == one["second"][2:]
        assert one["state"] == 2
    if kind != "iterable":  # whose workers take turns
        assert [one["second"] for one in ranks] == [one["second"] for one in alone]


@pytest.mark.parametrize("kind", ["by key", "stream"])
def test_nothing_is_dropped_before_the_end_and_what_is_left_is_accounted_for(case, kind):
    ranks = case(f"{kind}, processes")
    audit = Audit.merged([one["audit"] for one in ranks])
    audit.check()
    assert audit.proven == [0, 1]
    assert "left out since other ranks had no more" in audit.report()
    rows = [row for one in ranks for batch in one["first"] for row in batch]
    assert len(set(rows)) == len(rows) == {"by key": 20, "stream": 28}[kind]


@pytest.mark.parametrize("kind", ["by key", "stream", "lanes"])
def test_a_state_at_the_last_batch_leads_all_of_them_to_the_next_epoch(case, kind):
    for one in case(f"last batch, {kind}"):
        assert (len(one["next"]), one["epoch"]) == (KINDS[kind], 2)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_on_one_rank_is_heard_on_all_at_the_same_step(case, workers):
    healthy, failing = case(f"failure, {workers}")
    assert failing[2] == "ValueError: sample 9 is bad"
    assert healthy[2].startswith("RankError: Rank 1 raised an error")
    for seen in (healthy, failing):
        assert [type(one) for one in seen] == [list, list, str, list, list, list]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_that_ends_an_epoch_ends_it_on_all(case, workers):
    ranks = case(f"failed stream, {workers}")
    assert sorted(one[-1] for one in ranks) == ["RankError", "ValueError"]
    assert len(ranks[0]) == len(ranks[1])
    for one in ranks:
        assert one[: len(one) // 2] == one[len(one) // 2 :]  # of the second epoch, too


def test_a_rank_that_leaves_ends_the_epoch_of_all(case):
    for one in case("leaving"):
        assert (len(one["first"]), len(one["second"])) == (2, 5)


def test_a_rank_that_is_lost_keeps_none_waiting(results):
    assert results["lost"]["batches"] == 2
    assert "one of them is gone" in results["lost"]["error"]


def test_one_rank_has_nothing_to_agree_on():
    assert len(list(DataLoader(range(7), 2, even="agree"))) == 4


def test_ranks_that_cannot_reach_each_other_are_refused():
    with pytest.raises(RuntimeError, match='even="agree" needs torch'):
        list(DataLoader(range(7), 2, even="agree", shard=(0, 2)))

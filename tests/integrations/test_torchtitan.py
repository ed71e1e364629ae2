"""torchtitan: finite data, workers, and checkpoints that load on another number of ranks."""

from __future__ import annotations

import functools
import importlib.util
import tempfile
from pathlib import Path

import pytest

if importlib.util.find_spec("torchtitan") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("torchtitan, or triton, which it imports, is not installed", allow_module_level=True)

from tests.integrations.checks import everything
from tests.integrations.running import run
from tests.integrations.scripts.loaders import DEALT


@functools.cache
def seen():
    """On two ranks, and resumed on one."""
    with tempfile.TemporaryDirectory() as folder:
        saved = run("torchtitan_suite.py", "save", processes=2, folder=Path(folder))
        for old in Path(folder).glob("seen-*.json"):
            old.unlink()
        return saved, run("torchtitan_suite.py", "resume", processes=1, folder=Path(folder))


def rows_of(ranks):
    return sorted(row for batches in ranks for batch in batches for row in batch)


@pytest.mark.parametrize("kind", DEALT)
def test_every_row_once_in_each_of_two_epochs(kind):
    whole = seen()[0][f"{kind}, 0"]
    assert rows_of(batches[: len(batches) // 2] for batches in whole) == everything(kind)
    assert rows_of(batches[len(batches) // 2 :] for batches in whole) == everything(kind)
    assert seen()[0][f"{kind}, 2"] == whole


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_loads_on_as_many_ranks_and_on_fewer(kind, workers):
    whole = seen()[0][f"{kind}, 0"]
    assert seen()[0][f"{kind}, resumed, {workers}"] == [batches[2:] for batches in whole]
    if kind == "lanes":
        return  # positions are of a rank: another number of them has other ones
    [fewer] = seen()[1][f"{kind}, resumed, {workers}"]
    before = rows_of(batches[:2] for batches in whole)
    rest = sorted(set(everything(kind)) - set(before))
    n = next(i for i in range(len(fewer) + 1) if len([row for batch in fewer[:i] for row in batch]) >= len(rest))
    assert rows_of([fewer[:n]]) == rest
    assert rows_of([fewer[n:]]) == everything(kind)


def test_a_loader_of_another_rank_is_refused():
    for refusal in seen()[0]["another rank"]:
        assert "Pass shard=" in refusal


def test_what_the_documentation_shows_runs():
    assert seen()[1]["documented"] == [[True, 5]]

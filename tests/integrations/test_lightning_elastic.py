"""Lightning on two ranks is killed, and resumed on one and on three: all rows of the epoch come, each once."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from tests.integrations.checks import everything
from tests.integrations.running import SCRIPTS, environment, kill_all

KINDS = ("mix", "packed")
_TIMEOUT_S = 300


def fit(folder, devices, action):
    """Rank 0 starts the others: to be killed, they are all in one process group."""
    told = environment(0, 1, 0, ranks_known=False)
    del told["MASTER_PORT"]  # Lightning finds one
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", SCRIPTS / "lightning_elastic.py", str(devices), action, ",".join(KINDS)],
            env=told, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        return process.wait(timeout=_TIMEOUT_S)
    finally:
        kill_all(process)


@functools.cache
def seen():
    """By kind, action and number of ranks: what each rank saw, and which epochs were proven."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert fit(folder, 2, "kill") != 0
        for devices in (1, 3):
            assert fit(folder, devices, "resume") == 0, (folder / "output.txt").read_text()[-4000:]
        for kind in KINDS:
            for action, devices in (("kill", 2), ("resume", 1), ("resume", 3)):
                files = [folder / f"{kind}-{action}-{devices}-{rank}.json" for rank in range(devices)]
                found[kind, action, devices] = [json.loads(file.read_text()) for file in files]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("later", [1, 3])
def test_the_union_of_all_rows_is_the_epoch_each_once(kind, later):
    before = [row for batches, _ in seen()[kind, "kill", 2] for batch in batches[:2] for row in batch]
    after = [row for batches, _ in seen()[kind, "resume", later] for batch in batches for row in batch]
    got, expected = sorted(before + after), everything(kind)
    assert len(set(got)) == len(got)
    assert set(got) <= set(expected)
    assert len(expected) - len(got) < later * 3  # "drop" makes ranks even
    if later == 1:
        assert got == expected
        assert seen()[kind, "resume", 1][0][1] == [[0]]  # and so says the audit

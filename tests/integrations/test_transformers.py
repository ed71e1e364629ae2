"""The Hugging Face Trainer: every row once over all processes, and resumes that seek."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.integrations.running import run
from tests.integrations.scripts.loaders import N


@pytest.mark.parametrize("kind", ["shard", "stream"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_training_goes_on_where_it_was(tmp_path, kind, processes):
    def train(checkpoint):
        return run("transformers_train.py", kind, 0, checkpoint, processes=processes, cwd=tmp_path)

    whole, n = train("none"), N // 3 // processes
    for epoch in range(2):
        rows = [row for seen in whole for batch in seen[epoch * n : (epoch + 1) * n] for row in batch]
        assert sorted(rows) == list(range(N))
    for step in (2, n):
        assert train(f"out/checkpoint-{step}") == [seen[step:] for seen in whole]

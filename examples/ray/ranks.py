"""Two ranks of a training job, each with remote workers of its own on one cluster.

Under `torchrun`, RANK and WORLD_SIZE are set and `shard="auto"` finds them; here this script starts the ranks itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

from headrace import DataLoader

if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    seen = sorted(int(number) for rank in ranks for number in rank.communicate()[0].split())
    assert seen == list(range(24))
    print(len(seen), "samples, each once")
else:
    loader = DataLoader(range(24), batch_size=3, shuffle=True, shard="auto", num_workers=2, engine="ray")
    for batch in loader:
        print(*batch.tolist(), flush=True)

"""What does `import headrace` cost, next to `import numpy`, which it needs, and to `import torch.utils.data`?

Fresh interpreters, interleaved; the bare interpreter's own start is subtracted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.report import Report, Settings, Target
from benchmarks.timing import Run, interleave, median_ratio, seconds, spread

BARE = "nothing"
CONTESTANTS = {BARE: "pass", **{name: f"import {name}" for name in ("numpy", "headrace", "torch.utils.data")}}


def interpreter_seconds(code: str) -> Run:
    return lambda: seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True), time.perf_counter)


def run(settings: Settings) -> Report:
    repeats = settings.repeats if settings.quick else 3 * settings.repeats
    figures = interleave({name: interpreter_seconds(code) for name, code in CONTESTANTS.items()}, repeats)
    start = statistics.median(figures[BARE])
    imports = {name: [figure - start for figure in own] for name, own in figures.items() if name != BARE}
    rows = [
        {
            "import": name,
            "median ms": 1e3 * statistics.median(own),
            "best ms": 1e3 * min(own),
            "spread": spread(own),
            "x numpy": median_ratio(own, imports["numpy"]),
            "x numpy, best": min(own) / min(imports["numpy"]),
        }
        for name, own in imports.items()
    ]
    of_bar = 1.5 / median_ratio(imports["headrace"], imports["numpy"])
    return Report(rows, [Target("1.5 x numpy's import time, as a multiple of headrace's", 1, of_bar)])

"""What does `import headrace` cost, next to `import numpy`, which it needs, and to `import torch.utils.data`?

Much of headrace is imported when it is asked for; so the target is for what every script asks for, the DataLoader.
Fresh interpreters, interleaved, with compiled bytecode at hand; the bare interpreter's own start is subtracted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.report import Report, Settings, Target
from benchmarks.timing import Run, interleave, median_ratio, seconds, spread

BARE = "nothing"
LOADER = "headrace.DataLoader"
CONTESTANTS = {
    BARE: "pass",
    "numpy": "import numpy",
    "headrace": "import headrace",
    LOADER: "from headrace import DataLoader",
    "torch.utils.data": "import torch.utils.data",
}


def interpreter_seconds(code: str, environment: dict[str, str]) -> Run:
    def interpret() -> None:
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)

    interpret()  # writes the bytecode
    return lambda: seconds(interpret, time.perf_counter)


def with_bytecode(folder: str) -> dict[str, str]:
    """This environment, but bytecode is written, and kept in `folder`."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": folder}


def run(settings: Settings) -> Report:
    repeats = settings.repeats if settings.quick else 3 * settings.repeats
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode(folder)
        runs = {name: interpreter_seconds(code, environment) for name, code in CONTESTANTS.items()}
        figures = interleave(runs, repeats)
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
    of_bar = 1.5 / median_ratio(imports[LOADER], imports["numpy"])
    return Report(rows, [Target("1.5 x numpy's import time, as a multiple of headrace's", 1, of_bar)])

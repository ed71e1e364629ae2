"""`import headrace` is light: it loads no optional library, and takes hardly longer than `import numpy`."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "pandas", "pyarrow", "matplotlib", "ray", "jax"]
# Slower machines and their noise are in the factor as well as in the slack.
MOST_OF_NUMPY = 1.5
SLACK_MS = 20
RUNS = 7


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout


def import_ms(module: str) -> float:
    """How long a fresh interpreter takes for one import."""
    return float(run(f"import time; t = time.perf_counter(); import {module}; print(1000 * (time.perf_counter() - t))"))


def test_no_optional_library_is_loaded():
    loaded = run(f"import sys, headrace, headrace.testing; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_numpy_output_loads_no_torch_either():
    script = """
import sys, numpy, headrace
dataset = headrace.TensorDataset(numpy.arange(8))
loader = headrace.DataLoader(dataset, batch_size=2, shuffle=True, output="numpy", collate_fn=headrace.pad_collate())
assert len(list(loader)) == 4
print("torch" in sys.modules, "jax" in sys.modules)
"""
    assert run(script).split() == ["False", "False"]


def test_importing_takes_at_most_one_and_a_half_times_numpy():
    times = {"numpy": [], "headrace": []}
    for _ in range(RUNS):
        for module, measured in times.items():
            measured.append(import_ms(module))
    numpy_ms, headrace_ms = min(times["numpy"]), min(times["headrace"])
    assert headrace_ms <= MOST_OF_NUMPY * numpy_ms + SLACK_MS, f"{headrace_ms:.0f} ms, numpy {numpy_ms:.0f} ms"

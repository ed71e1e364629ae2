"""`import headrace` is light: it loads no optional library, and hardly more than NumPy does.

How long it takes is measured by `benchmarks/import_time.py`.
"""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "pandas", "pyarrow", "matplotlib", "ray", "jax"]
# Standard modules that take long to import, and that NumPy does not load either.
SLOW = ["asyncio", "importlib.resources", "multiprocessing", "socket", "tempfile", "unittest"]


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout


def test_no_optional_library_is_loaded():
    loaded = run(f"import sys, headrace, headrace.testing; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_no_slow_module_is_loaded_that_numpy_does_not_load():
    script = f"""
import sys, numpy
known = set(sys.modules)
import headrace
print([name for name in {SLOW} if name in sys.modules and name not in known])
"""
    assert run(script).strip() == "[]"


def test_numpy_output_loads_no_torch_either():
    script = """
import sys, numpy, headrace
dataset = headrace.TensorDataset(numpy.arange(8))
loader = headrace.DataLoader(dataset, batch_size=2, shuffle=True, output="numpy", collate_fn=headrace.pad_collate())
assert len(list(loader)) == 4
print("torch" in sys.modules, "jax" in sys.modules)
"""
    assert run(script).split() == ["False", "False"]

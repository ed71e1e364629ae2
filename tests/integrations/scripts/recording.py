"""Writes down what a rank saw, case by case, so that one start of a trainer serves many tests."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from pathlib import Path

_results = {}


def case(name, function, *arguments):
    """Call a function, and write down what it returns, or how it failed."""
    begun = time.perf_counter()
    try:
        _results[name] = result = function(*arguments)
    except Exception:  # noqa: BLE001 (the test that asks for this case fails with it)
        _results[name] = {"error": traceback.format_exc()}
        result = None
    print(f"{time.perf_counter() - begun:6.2f} s  {name}", file=sys.stderr, flush=True)
    Path(os.environ["RECORD"]).write_text(json.dumps(_results))
    return result


def page(name):
    """What the Python blocks of a page of the documentation define."""
    text = (Path(__file__).parents[3] / "docs" / "trainers" / f"{name}.md").read_text(encoding="utf-8")
    namespace = {"__name__": name}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, name, "exec", dont_inherit=True), namespace)
    return namespace

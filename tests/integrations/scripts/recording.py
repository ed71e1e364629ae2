"""Writes down what a rank saw, case by case, so that one start of a trainer serves many tests."""

from __future__ import annotations

import json
import os
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

"""Disturbs, stops, resumes and misleads random loaders for as long as there is time, and compares every batch.

    python -m tools.chaos --seconds 3600
    python -m tools.chaos --only faults resumes --seed 7
    python -m tools.chaos --only faults --seed 7 --trial 123     # one of them again

Everything follows from the seed, but for timing. A failure is printed, written as a script, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tools.chaos.trials import Summary, run_part

SHARES = {"faults": 0.4, "resumes": 0.2, "states": 0.1, "files": 0.15, "interrupts": 0.15}
"""The parts, each a module of this package, and what they take of the time."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHARES, default=list(SHARES), help="these parts")
    parser.add_argument("--seconds", type=float, default=600, help="for all parts together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--trial", type=int, default=None, help="only this one, of one part")
    parser.add_argument("--scripts", type=Path, default=Path("chaos-failures"), help="a folder for scripts of failures")
    arguments = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    parts = [part for part in arguments.only if find_spec(f"tools.chaos.{part}") is not None]
    total = sum(SHARES[part] for part in parts)
    print(f"seed {seed}, {arguments.seconds:g} s for {', '.join(parts)}", flush=True)
    gc.freeze()  # what was imported is the same in all trials
    outcomes = {}
    for name in parts:
        seconds = arguments.seconds * SHARES[name] / total
        outcomes[name] = _run(name, seed, seconds, arguments)
    print()
    for name, (outcome, _) in outcomes.items():
        print(f"{name:10} {outcome}")
    return int(any(has_failed for _, has_failed in outcomes.values()))


def _run(name: str, seed: int, seconds: float, arguments: argparse.Namespace) -> tuple[str, bool]:
    module = import_module(f"tools.chaos.{name}")
    if hasattr(module, "PART"):
        summary: Summary = run_part(module.PART, seed, seconds, arguments.jobs, arguments.scripts, only=arguments.trial)
        return str(summary), bool(summary.failures)
    started = time.monotonic()
    code = module.main(["--seed", str(seed), "--seconds", f"{seconds:g}"])
    return f"{'failed' if code else 'passed'} in {time.monotonic() - started:.0f} s", bool(code)


if __name__ == "__main__":
    sys.exit(main())

"""Runs the benchmarks: `python -m benchmarks [name …]` from the root of the repository."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.report import Settings, environment, progress, render, save

NAMES = (
    "in_memory_arrays",
    "small_samples",
    "configurations",
    "import_time",
    "pad_collate",
    "large_batches",
    "small_fields",
    "registered_types",
    "in_memory_workers",
    "strings",
    "jpeg",
    "python_heavy",
    "start_up",
    "shared_list",
    "shuffle",
    "weighted",
    "resume",
    "streams_text",
    "streams_tsv",
    "streams_records",
    "streams_resume",
    "tokens",
    "live",
    "foreign_shards",
    "hdf5_chunks",
    "image_folder",
    "multi_stream",
    "spans",
    "ray_workers",
    "ray_growth",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run: {', '.join(NAMES)}; all if none")
    parser.add_argument("--list", action="store_true", help="show the questions and stop")
    parser.add_argument("--repeats", type=int, help="rounds of each comparison (default 7, or 3 with --quick)")
    parser.add_argument("--quick", action="store_true", help="smaller data and fewer rounds, to see that all runs")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for CSV and JSON files")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    settings = Settings(repeats=arguments.repeats or (3 if arguments.quick else 7), quick=arguments.quick)
    print(", ".join(f"{name} {value}" for name, value in environment().items()))
    for name in arguments.names or NAMES:
        benchmark = importlib.import_module(f"benchmarks.{name}")
        question = (benchmark.__doc__ or "").strip()
        print(f"\n{name}: {question}\n", flush=True)
        if arguments.list:
            continue
        progress(f"[{name}] {settings.repeats} rounds")
        report = benchmark.run(settings)
        print(render(report), flush=True)
        save(name, question, settings, report, arguments.output)


if __name__ == "__main__":
    main()

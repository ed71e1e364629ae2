"""Compares two commits on this machine: every benchmark, start-up, first batches and memory, interleaved in one run.

Usage: python tools/compare_commits.py A B [--only NAME …] [--quick] [--repeats N] [--fail-below 0.97] [--output FILE]

A and B are commits, or folders with a working tree. What is measured with comes from the tree of this script, so both
are measured by the same code; where it does not run on a commit because it names internals, that commit's own is used,
and the table says so. Ratios are B to A, and more than 1 is better: more per second, less time, less memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from commit_probes import PROBES, arguments_of  # noqa: E402

from benchmarks.__main__ import NAMES  # noqa: E402

MOST_ROWS = 40  # of a benchmark that are shown: the worst
CONFIRMATIONS = 2  # how often a benchmark with a row below the bar is measured again, all rounds together
IS_LESS_BETTER = ("ms", "s", "MB", "µs of CPU per batch")


@dataclass
class Tree:
    """A commit that is measured.

    Attributes:
        own: the benchmarks that had to be its own.
    """

    name: str
    path: Path
    own: set[str] = field(default_factory=set)

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPATH"] = os.pathsep.join([str(self.path / "src"), str(folder)])
        return subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )


@dataclass
class Figures:
    """What one row came to, round by round, on both trees."""

    unit: str
    a: list[float] = field(default_factory=list)
    b: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        pairs = [(a, b) for a, b in zip(self.a, self.b, strict=False) if a > 0 and b > 0]
        return [a / b if self.unit in IS_LESS_BETTER else b / a for a, b in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios) if self.ratios else math.nan

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the ratios."""
        if len(self.ratios) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return high - low


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A", help="the commit before, or a folder")
    parser.add_argument("b", metavar="B", help="the commit after, or a folder")
    names = (*PROBES, *NAMES)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="smaller data and shorter runs")
    parser.add_argument("--repeats", type=int, help="rounds of A and B (default 7, or 3 with --quick)")
    parser.add_argument("--inner", type=int, default=1, help="rounds of a benchmark in each of these (default 1)")
    parser.add_argument("--fail-below", type=float, help="end with code 1 if the median ratio of a row is lower")
    parser.add_argument("--output", type=Path, help="write all figures to this file, as JSON")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (3 if arguments.quick else 7)
    return arguments


@contextmanager
def checked_out(name: str) -> Iterator[Tree]:
    """A folder as it is, or a temporary worktree of a commit."""
    if Path(name, "src", "headrace").is_dir():
        yield Tree(name, Path(name).resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(path), name], check=True)
        try:
            yield Tree(name, path)
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def prepare(tree: Tree) -> None:
    """Compile its modules, and see that it is these that are imported."""
    tree.run(["-m", "compileall", "-q", str(tree.path / "src")], ROOT)
    found = tree.run(["-c", "import headrace; print(headrace.__file__)"], ROOT).stdout.strip()
    if not Path(found).is_relative_to(tree.path / "src"):
        raise SystemExit(f"headrace must be imported from {tree.path / 'src'}, got {found}.")


def measure(tree: Tree, name: str, data: Path, arguments: argparse.Namespace) -> list[tuple[str, float, str]]:
    """The rows of a probe or a benchmark, measured once."""
    quick = ["--quick"] if arguments.quick else []
    if name in PROBES:
        rows = []
        for argument in arguments_of(name, quick=arguments.quick):
            done = tree.run([str(ROOT / "tools" / "commit_probes.py"), name, str(data), argument, *quick], ROOT)
            rows += json.loads(_output(done, tree, name))
        return rows
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "benchmarks", name, "--repeats", str(arguments.inner), "--output", folder, *quick]
        done = tree.run(command, tree.path if name in tree.own else ROOT)
        if done.returncode and name not in tree.own and tree.path != ROOT:
            tree.own.add(name)
            done = tree.run(command, tree.path)
        _output(done, tree, name)
        report = json.loads(Path(folder, f"{name}.json").read_text())
    return list(rows_of(report["rows"]))


def _output(done: subprocess.CompletedProcess[str], tree: Tree, name: str) -> str:
    if done.returncode:
        raise SystemExit(f"{name} failed on {tree.name}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def rows_of(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float, str]]:
    """What a benchmark measured of headrace: without its peers, limits, and ratios to them."""
    for row in rows:
        contestant = next((str(row[column]) for column in row if "contestant" in column), "headrace")
        if "headrace" not in contestant and "SharedList" not in contestant:
            continue
        label = ", ".join(
            str(value) for column, value in row.items() if not isinstance(value, float) and column not in _NOT_IN_LABELS
        )
        if "import" in row and "headrace" not in row["import"]:
            continue
        for column, value in row.items():
            unit = row.get("unit", "") if column == "value" else _unit_of(column)
            if isinstance(value, float) and unit and math.isfinite(value):
                yield label, value, unit


_NOT_IN_LABELS = ("unit", "verdict", "MB")


def _unit_of(column: str) -> str:
    """The unit of a column of headrace's own figures; none if it is another one."""
    if column.startswith(("torch", "limit", "by hand", "bare", "x ", "best")):
        return ""
    if column == "µs of CPU per batch":
        return column
    if "/s" in column:
        return column.split()[-1]
    return "ms" if "ms" in column.replace("/", " ").split() else ""


def compare(trees: list[Tree], name: str, data: Path, arguments: argparse.Namespace, found: dict[str, Figures]) -> None:
    """Measure all rows of a probe or benchmark, A B A B …, and add the figures to those found before."""
    for round_number in range(arguments.repeats):
        print(f"[{name}] round {round_number + 1} of {arguments.repeats}", file=sys.stderr, flush=True)
        for tree, side in zip(trees, ("a", "b"), strict=True):
            for label, value, unit in measure(tree, name, data, arguments):
                key = f"{label} [{unit}]"
                getattr(found.setdefault(key, Figures(unit)), side).append(value)


def show(name: str, found: dict[str, Figures], trees: list[Tree]) -> None:
    rows = sorted(found.items(), key=lambda row: row[1].ratio)[:MOST_ROWS] if len(found) > MOST_ROWS else found.items()
    width = max((len(label) for label, _ in rows), default=0)
    print(f"\n{name}\n{'':{width}}  {'A':>12} {'B':>12} {'ratio':>7} {'spread':>7}")
    for label, figures in rows:
        a, b = (statistics.median(side) if side else math.nan for side in (figures.a, figures.b))
        print(f"{label:{width}}  {a:>12,.4g} {b:>12,.4g} {figures.ratio:>7.3f} {figures.spread:>7.3f}")
    ratios = [figures.ratio for figures in found.values() if figures.ratios]
    if ratios:
        print(f"{len(ratios)} rows, median ratio {statistics.median(ratios):.3f}, least {min(ratios):.3f}")
    for tree in trees:
        if name in tree.own:
            print(f"measured by its own benchmark: {tree.name}")
    sys.stdout.flush()


def main() -> int:
    arguments = parse_arguments()
    slower: list[str] = []
    written: dict[str, Any] = {}
    with ExitStack() as stack:
        trees = [stack.enter_context(checked_out(name)) for name in (arguments.a, arguments.b)]
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for tree in trees:
            prepare(tree)
        for name in arguments.only:
            found: dict[str, Figures] = {}
            for _ in range(1 + CONFIRMATIONS):
                compare(trees, name, data, arguments, found)
                below = [label for label, row in found.items() if row.ratio < (arguments.fail_below or 0)]
                if not below:
                    break
            show(name, found, trees)
            slower += [f"{name}: {label} {found[label].ratio:.3f}" for label in below]
            written[name] = {label: {"a": row.a, "b": row.b, "ratio": row.ratio} for label, row in found.items()}
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(written, indent=1))
    if slower:
        print(f"\nbelow {arguments.fail_below:g}:", *slower, sep="\n  ")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a benchmark reports: rows, targets, and the environment they were measured in; as a table, CSV and JSON."""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What the command line asks of every benchmark."""

    repeats: int
    quick: bool


@dataclass(frozen=True)
class Target:
    """A bar that a measured ratio has to reach."""

    what: str
    bar: float
    measured: float

    @property
    def holds(self) -> bool:
        return self.measured >= self.bar

    def __str__(self) -> str:
        return (
            f"{'holds ' if self.holds else 'MISSED'} {self.what}: at least {self.bar:g}, measured {self.measured:.2f}"
        )


@dataclass(frozen=True)
class Report:
    """One benchmark's results; all rows have the same keys."""

    rows: Sequence[dict[str, Any]]
    targets: Sequence[Target] = ()
    notes: Sequence[str] = field(default=())


def environment() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    packages = ("headrace", "numpy", "torch")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(affinity(0)) if affinity is not None else os.cpu_count(),
        **{package: version(package) for package in packages},
    }


def render(report: Report) -> str:
    """The rows as an aligned table, then notes and targets."""
    header = list(report.rows[0])
    cells = [header, *([_cell(value) for value in row.values()] for row in report.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    is_text = [isinstance(value, str) for value in report.rows[0].values()]
    lines = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *map(str, report.notes), *map(str, report.targets)])


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"


def save(name: str, question: str, settings: Settings, report: Report, folder: Path) -> None:
    """Write `name`.csv with the rows, and `name`.json with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(report.rows[0]))
        writer.writeheader()
        writer.writerows(report.rows)
    content = {
        "question": question,
        "environment": environment(),
        "settings": asdict(settings),
        "rows": report.rows,
        "notes": report.notes,
        "targets": [{**asdict(target), "holds": target.holds} for target in report.targets],
    }
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

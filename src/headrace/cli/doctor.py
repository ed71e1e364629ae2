"""`headrace doctor`: looks for what makes loading fail or slow on this machine, and says what to do about it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headrace.cli import library_checks, system_checks
from headrace.cli.finding import Finding, Level
from headrace.cli.printing import out
from headrace.tuning.machine import this_machine

_STYLES = {Level.FINE: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.BROKEN: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what makes loading fail, or slow, on this machine: cores, memory, descriptors, workers, libraries.

    Each finding comes with what to do about it. Exit code 1 if something is broken, else 0.

    Example: `headrace doctor --json`
    """
    findings = list(examine())
    if as_json:
        rows = [{**vars(finding), "level": finding.level.value} for finding in findings]
        out.print_json(json.dumps(rows))
    else:
        _print_table(findings)
    if any(finding.level is Level.BROKEN for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Look at everything."""
    machine = this_machine()
    yield from system_checks.check_python()
    yield from system_checks.check_cores(machine)
    yield from system_checks.check_threads(machine, os.environ)
    yield from system_checks.check_memory(machine)
    yield from system_checks.check_shared_memory()
    yield from system_checks.check_descriptors()
    yield from system_checks.check_workers()
    yield from system_checks.check_clock()
    yield from library_checks.check_start_method()
    yield from library_checks.check_libraries()


def _print_table(findings: list[Finding]) -> None:
    table = Table("", "", "finding", "what to do", box=None, header_style="bold", pad_edge=False)
    area = ""
    for finding in findings:
        style = _STYLES[finding.level]
        shown_area = "" if finding.area == area else finding.area
        table.add_row(
            f"[bold]{shown_area}[/]", f"[{style}]{finding.level.value}[/]", escape(finding.what), escape(finding.fix)
        )
        area = finding.area
    out.print(table)
    bad = [finding for finding in findings if finding.level in (Level.WARNING, Level.BROKEN)]
    out.print(f"\n{len(findings)} things looked at, {len(bad)} to look after." if bad else "\nAll is well.")

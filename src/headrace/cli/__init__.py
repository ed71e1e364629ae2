"""The command line: `headrace run | tune | doctor | bench | inspect | demo`."""

from __future__ import annotations

import sys

from headrace.base.optional import is_installed


def main() -> None:
    """Run the command that `sys.argv` asks for, and exit with its code."""
    if not (is_installed("typer") and is_installed("rich")):
        sys.exit("headrace: the command line needs Typer and Rich. Run: pip install 'headrace[cli]'")
    from headrace.cli.app import app

    app(prog_name="headrace")

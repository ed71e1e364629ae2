"""The command line: `headrace run | tune | top | doctor | bench | inspect | demo`."""

from __future__ import annotations

import sys

from headrace.base.optional import is_installed


def main() -> None:
    """Run the command that `sys.argv` asks for, and exit with its code."""
    if not (is_installed("typer") and is_installed("rich")):
        sys.exit("headrace: the command line needs Typer and Rich. Run: pip install 'headrace[cli]'")
    import typer

    from headrace.cli.app import app

    has_arguments = len(sys.argv) > 1  # else it is the help that is asked for
    try:
        code = app(prog_name="headrace", standalone_mode=not has_arguments)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of click, about the arguments
            raise
        print(f"headrace: {error.format_message()} Try --help.", file=sys.stderr)
        sys.exit(2)
    sys.exit(code)

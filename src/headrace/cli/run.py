"""`headrace run`: a script as `python` runs it, with torch's DataLoader served by headrace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from headrace.base.optional import is_installed
from headrace.cli.output import fail
from headrace.cli.session import Settings

_HOOK = Path(__file__).parent / "hook"


def run(
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script; with -m, the name of a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its own arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    report: Annotated[bool, typer.Option(help="Print what loading took, at the end, to stderr.")] = True,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the timeline of the loaders there.")
    ] = None,
) -> None:
    """Run an unmodified PyTorch script, with its DataLoaders served by headrace.

    Batches, random numbers, exit code and tracebacks are those of `python SCRIPT`. Whatever headrace cannot load as
    torch would is left to torch, with a line on stderr. Processes that the script starts are served too.

    For example:

        headrace run train.py --epochs 3
        headrace run --timeline loading.html -m my_package.train
        torchrun --nproc-per-node 2 --no-python headrace run train.py
    """
    if not module and not Path(target).exists():
        is_name = target.replace(".", "").isidentifier() and not target.endswith(".py")
        hint = f" To run a module, write: headrace run -m {target}" if is_name else ""
        fail(f"there is no such file: {target}.{hint}")
    if not is_installed("torch"):
        fail("there is no torch to serve: torch is not installed. Run: pip install 'headrace[torch]'")
    if timeline is not None and not timeline.resolve().parent.is_dir():
        fail(f"--timeline needs a folder that exists, got {timeline}.")
    settings = Settings(os.getpid(), report, None if timeline is None else str(timeline.resolve()))
    _become_python([*(["-m"] if module else []), target, *(arguments or ())], settings)


def _become_python(arguments: list[str], settings: Settings) -> NoReturn:
    """Let this very process run Python: nothing of ours is below the script, and its exit code is its own."""
    search_path = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **settings.as_environment(), "PYTHONPATH": os.pathsep.join(search_path)}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *arguments], environment)

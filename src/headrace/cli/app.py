"""The commands and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

import headrace as package
from headrace.cli.doctor import doctor
from headrace.cli.inspect import inspect
from headrace.cli.output import out
from headrace.cli.run import run
from headrace.cli.top import top
from headrace.cli.torch_bench import bench
from headrace.cli.torch_demo import demo
from headrace.cli.tune import tune

app = typer.Typer(
    name="headrace",
    help="Data loading for training: headrace's loaders from the command line.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        out.print(f"headrace {package.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def headrace(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Data loading for training, from the command line."""


app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(tune)
app.command()(top)
app.command()(doctor)
app.command()(inspect)
app.command()(bench)
app.command()(demo)

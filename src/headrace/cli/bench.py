"""`headrace bench`: headrace against torch, on the machine at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headrace.base.optional import is_installed
from headrace.cli.pictures import plot_ratios, text_bars
from headrace.cli.printing import advance, fail, out, progress_bar

if TYPE_CHECKING:
    from headrace.cli.torch_bench import Result


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Half a minute instead of some minutes, and rougher.")] = False,
    plot: Annotated[Path, typer.Option(metavar="FILE", help="Where the plot goes.")] = Path("headrace-bench.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, and draw no plot.")] = False,
) -> None:
    """Measure headrace against torch on this machine: a table, and a plot.

    The same dataset, arguments and samples for both, one after the other in each of several rounds; rates are
    medians. The plot is a picture if matplotlib is installed, else bars of text.

    Example: `headrace bench --quick`
    """
    if not is_installed("torch"):
        fail("there is nothing to compare with: torch is not installed. Run: pip install 'headrace[torch]'")
    if not plot.resolve().parent.is_dir():
        fail(f"--plot needs a folder that exists, got {plot}.")
    results = _measure(quick)
    if as_json:
        out.print_json(json.dumps([vars(result) for result in results]))
        return
    _print_table(results)
    labels = [f"{result.workload}, {result.workers} workers" for result in results]
    ratios = [result.ratio for result in results]
    if is_installed("matplotlib"):
        plot_ratios(labels, ratios, plot)
        out.print(f"The plot is in {plot}.", highlight=False)
    else:
        out.print(text_bars(labels, ratios), highlight=False)


def _measure(quick: bool) -> list[Result]:
    with progress_bar() as progress:
        task = progress.add_task("", total=1.0)
        advance(progress, task, "Importing torch", 0)
        from headrace.cli.torch_bench import QUICK, THOROUGH, measure
        from headrace.cli.torch_threads import one_thread

        def tell(what: str, share: float) -> None:
            advance(progress, task, what, share)

        with one_thread():
            return list(measure(QUICK if quick else THOROUGH, tell))


def _print_table(results: list[Result]) -> None:
    table = Table("", "workers", "torch", "headrace", "x", title="Samples per second", header_style="bold")
    for result in results:
        table.add_row(
            result.workload,
            str(result.workers),
            f"{result.torch:,.0f}",
            f"{result.headrace:,.0f}",
            f"[{'green' if result.ratio >= 1 else 'red'}]{result.ratio:.2f}[/]",
        )
    out.print(table)

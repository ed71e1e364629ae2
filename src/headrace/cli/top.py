"""`headrace top`: the loaders that run on this machine, live in the terminal."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.cli.output import fail, out
from headrace.insight.verdict import as_bytes, as_count, as_percent, as_time
from headrace.insight.watching import close_folder, open_folder, read_lines

_SILENT_S = 5.0  # loaders tell once a second
_RED, _YELLOW = 0.2, 0.05  # of the time, waited
_FIRST_S = 4.0  # that --once waits for a word
_LOOK_S = 0.1


def top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one look as JSON, and leave.")] = False,
) -> None:
    """Watch the loaders of all your processes on this machine: rates, waiting, workers; Ctrl-C leaves.

    Nothing has to be prepared: a loader tells about itself, once a second, while somebody watches. One whose loop has
    not come back for a batch in the last seconds is shown as silent.

    Example: `headrace top --interval 2`
    """
    try:
        open_folder()
    except OSError as error:
        fail(str(error))
    try:
        if once or as_json:
            lines = _first_lines()
            out.print_json(json.dumps(lines)) if as_json else out.print(view(lines, time.time()))
            return
        with Live(view([], time.time()), console=out, auto_refresh=False) as live:
            while True:
                open_folder()  # another one who watched may have removed it
                live.update(view(read_lines(), time.time()), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        pass
    finally:
        close_folder()


def _first_lines() -> list[dict[str, Any]]:
    """What loaders tell, who have had time for it."""
    deadline = time.monotonic() + _FIRST_S
    n_before = 0
    while time.monotonic() < deadline:
        lines = read_lines()
        if lines and len(lines) == n_before:
            return lines
        n_before = len(lines)
        time.sleep(_LOOK_S if not lines else 1.2)
    return read_lines()


def view(lines: list[dict[str, Any]], now: float) -> Any:
    """What is shown of the loaders at a time."""
    if not lines:
        return Text("No loader runs, or none has given a batch in the last second.", style="dim")
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in ("pid", "script", "rank", "loader", "epoch", "batches", "samples/s", "data/s", "waits", "workers", ""):
        table.add_column(name, no_wrap=name != "loader")
    for line in lines:
        table.add_row(*_cells(line, now))
    waiting = max(lines, key=lambda line: float(line["wait_share"]))
    note = f"{len(lines)} loaders. " if len(lines) > 1 else ""
    if waiting["wait_share"] >= _YELLOW:
        note += f"{waiting['script']} ({waiting['pid']}) waits most: loader.report() in it says why."
    return Group(table, Text(note, style="dim"))


def _cells(line: dict[str, Any], now: float) -> list[Any]:
    waits = float(line["wait_share"])
    style = "red" if waits >= _RED else "yellow" if waits >= _YELLOW else "green"
    age = now - line["at"]
    workers = f"{line['num_workers']} {line['engine']}, {as_percent(line['workers_busy'])} busy"
    notes = [f"silent for {as_time(age)}"] if age > _SILENT_S else []
    if line["restarts"]:
        notes.append(f"{line['restarts']} replaced")
    return [
        str(line["pid"]),
        escape(line["script"]),
        str(line["rank"]),
        escape(line["text"]),
        str(line["epoch"]),
        as_count(line["epoch_batches"]),
        as_count(line["samples_per_second"]),
        f"{as_bytes(line['bytes_per_second'])}/s" if line["bytes_per_second"] else "-",
        f"[{style}]{as_percent(waits)}[/]",
        workers if line["num_workers"] else "none",
        ", ".join(notes),
    ]

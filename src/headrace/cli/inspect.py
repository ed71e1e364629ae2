"""`headrace inspect`: what is in some files, a store or a database, before anybody loads it."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.pretty import Pretty
from rich.table import Table

from headrace.base.errors import InspectError, MissingExtraError
from headrace.cli.output import fail, out
from headrace.inspecting import Inspection, printable, show_size
from headrace.inspecting import inspect as look_into

_MOST_FILES = 10
_UNREADABLE = 1


def inspect(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs, addresses (s3://…), or a database.")
    ],
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="text, csv, tsv, jsonl, parquet, arrow, tar, sqlite, postgresql. Else guessed."),
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Of text, csv, tsv and jsonl; utf-8 if not given.")] = None,
    query: Annotated[str | None, typer.Option(help="Of a database that has more than one table.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 3,
    most_rows: Annotated[int, typer.Option(min=0, help="Count at most this many rows; estimate the rest.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Look into data: format, columns and their types, files, blocks, number of rows, bad records, a few samples.

    The exit code is 1 if no record can be read.

    Example: `headrace inspect 'data/*.csv' --samples 5`
    """
    try:
        found = look_into(
            paths[0] if len(paths) == 1 else paths,
            format=format_name,
            query=query,
            samples=samples,
            most_rows=most_rows,
            **({} if encoding is None else {"encoding": encoding}),
        )
    except (InspectError, MissingExtraError) as error:
        fail(printable(str(error)))
    if as_json:
        out.print_json(json.dumps(found.to_dict(), default=str))
    else:
        _print(found)
    if not found.is_readable:
        fail(f"no record can be read as {found.format}. Is it really that? If not, pass another --format.", _UNREADABLE)


def _print(found: Inspection) -> None:
    headline, *facts = str(found).partition("\n\n")[0].splitlines()
    out.print(f"[bold]{escape(headline)}[/]", highlight=False)
    for fact in facts:
        out.print(escape(fact), highlight=False)
    if found.columns:
        columns = Table("column", "type", header_style="bold")
        for name, kind in found.columns.items():
            columns.add_row(escape(printable(name)), escape(printable(kind)))
        out.print(columns)
    if found.files:
        files = Table("file", "size", header_style="bold")
        for path, size in found.files[:_MOST_FILES]:
            files.add_row(escape(printable(path)), show_size(size))
        if len(found.files) > _MOST_FILES:
            files.add_row(f"… and {len(found.files) - _MOST_FILES:,} more", "")
        out.print(files)
    for sample in found.samples:
        out.print(Pretty(sample))

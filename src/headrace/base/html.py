"""Small pieces of HTML for notebooks. Everything that comes from data is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top"


def paragraph(text: str) -> str:
    return f"<p style='max-width:80ch;margin:4px 0'>{escape(text)}</p>"


def title(text: str) -> str:
    return f"<b>{escape(text)}</b>"


def code(text: str) -> str:
    return f"<pre style='margin:4px 0'><code>{escape(text)}</code></pre>"


def table(rows: Iterable[Sequence[str]], *, marked: int = -1) -> str:
    """A table whose first row is its head.

    Args:
        marked: the number of the row that is to stand out, not counting the head.
    """
    head, *body = rows
    lines = ["".join(f"<th style='{_CELL}'>{escape(cell)}</th>" for cell in head)]
    for number, row in enumerate(body):
        weight = ";font-weight:bold" if number == marked else ""
        lines.append("".join(f"<td style='{_CELL}{weight}'>{escape(cell)}</td>" for cell in row))
    return f"<table style='margin:6px 0'>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"

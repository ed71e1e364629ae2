"""Writes the map of modules into docs/design/architecture.md: every module, with the first line of its docstring.

Usage: python tools/module_map.py [--check]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
PAGE = ROOT / "docs" / "design" / "architecture.md"
BEGIN = "<!-- module map: written by tools/module_map.py -->\n"
END = "<!-- end of module map -->"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.partition("\n")[0] if docstring else "(no docstring)"


def render_map() -> str:
    """Return the map as a table: modules at the top first, then package by package."""
    rows = ["| module | what it is |", "|---|---|"]
    paths = sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.parent != PACKAGE, path.parent, path.name))
    for path in paths:
        is_package = path.name == "__init__.py"
        name = path.relative_to(PACKAGE.parent).as_posix()
        name = name.removesuffix("__init__.py") if is_package else name
        text = first_line(path).replace("|", r"\|")
        rows.append(f"| **`{name}`** | {text} |" if is_package else f"| `{name}` | {text} |")
    return "\n".join(rows) + "\n"


def with_map(page: str) -> str:
    """Return the page with its map replaced by the current one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} must hold the lines {BEGIN.strip()!r} and {END!r}.")
    return f"{before}{BEGIN}\n{render_map()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    current = with_map(page)
    if current == page:
        return 0
    if "--check" in arguments:
        print(f"The module map in {PAGE.relative_to(ROOT)} is stale. Run: python tools/module_map.py", file=sys.stderr)
        return 1
    PAGE.write_text(current, encoding="utf-8")
    print(f"Updated {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

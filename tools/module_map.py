"""Writes docs/design/modules.md: every module, with the first line of its docstring.

Usage: python tools/module_map.py [--check]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
PAGE = ROOT / "docs" / "design" / "modules.md"
HEAD = """# Modules

Written by `python tools/module_map.py`; a test keeps it current. The [architecture](architecture.md) page explains the
layout.

| module | what it is |
|---|---|
"""


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.partition("\n")[0] if docstring else "(no docstring)"


def render_page() -> str:
    """Return the page: a table of the modules at the top, then package by package."""
    rows = []
    paths = sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.parent != PACKAGE, path.parent, path.name))
    for path in paths:
        is_package = path.name == "__init__.py"
        name = path.relative_to(PACKAGE.parent).as_posix()
        name = name.removesuffix("__init__.py") if is_package else name
        text = first_line(path).replace("|", r"\|")
        rows.append(f"| **`{name}`** | {text} |\n" if is_package else f"| `{name}` | {text} |\n")
    return HEAD + "".join(rows)


def main(arguments: list[str]) -> int:
    page = render_page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    if "--check" in arguments:
        print(f"{PAGE.relative_to(ROOT)} is stale. Run: python tools/module_map.py", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"Updated {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

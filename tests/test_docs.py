"""The documentation is true: its code runs and prints what is shown, its links lead somewhere, its map is current."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONAL = ("torch", "jax", "PIL", "lightning", "accelerate", "transformers", "keras")
INSTALLED = {name for name in OPTIONAL if importlib.util.find_spec(name) is not None}

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
REPOSITORY_PATH = re.compile(r"`((?:src|tests|examples|benchmarks|docs|tools)/[\w./-]*)`")


class Block(NamedTuple):
    """A Python block, the line it starts at, and the output shown right after it, if any."""

    line: int
    code: str
    output: str | None

    @property
    def missing(self) -> set[str]:
        """The optional libraries that the block imports or names, and that are not there."""
        named: set[str] = set()
        for node in ast.walk(ast.parse(self.code)):
            match node:
                case ast.Import(names=aliases):
                    named.update(alias.name.partition(".")[0] for alias in aliases)
                case ast.ImportFrom(module=str(module)):
                    named.add(module.removeprefix("headrace.integrations.").partition(".")[0])
                case ast.Name(id=name):
                    named.add(name)
        return named & set(OPTIONAL) - INSTALLED


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_blocks(text: str) -> Iterator[Block]:
    """Python blocks; a ```text block that follows with nothing between is what the code prints."""
    fences = list(FENCE.finditer(text))
    for i, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        following = fences[i + 1] if i + 1 < len(fences) else None
        shown = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        line = text.count("\n", 0, fence.start()) + 2
        yield Block(line, fence[2], following[2] if shown and following is not None else None)


def pages_with_code() -> list[Path]:
    return [page for page in PAGES if any(python_blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", pages_with_code(), ids=name_of)
def test_code_runs(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    skipped = []
    for block in python_blocks(page.read_text(encoding="utf-8")):
        if block.missing:
            skipped.append(block.line)
            continue
        code = compile("\n" * (block.line - 1) + block.code, name_of(page), "exec", dont_inherit=True)
        exec(code, namespace)
        printed = capsys.readouterr().out
        # Tensors are shown; NumPy prints its arrays in other words.
        if block.output is not None and "torch" in INSTALLED:
            assert printed == block.output, f"{name_of(page)}:{block.line} prints something else"
    if skipped and len(skipped) == len(list(python_blocks(page.read_text(encoding="utf-8")))):
        pytest.skip("every block needs a library that is not installed")


def anchor_of(heading: str) -> str:
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[\s-]+", "-", plain)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name_of(page)} links to {link}"
        if anchor:
            headings = HEADING.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
            assert anchor in map(anchor_of, headings), f"{name_of(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_paths_exist(page: Path) -> None:
    named = REPOSITORY_PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


def test_every_public_name_is_in_the_api_page() -> None:
    import headrace

    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in headrace.__all__ if f"::: headrace.{name}\n" not in page] == []


def test_module_map_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "module_map.py", "--check"], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr

"""Columns that folders give: `year=2024/part-0.parquet` has the column `year`, as Hive, Spark and pyarrow have it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from headrace.sources.source import FileVersion

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INT = re.compile(r"-?[0-9]+")
_WILDCARD = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class PathColumns:
    """The columns that the folders of some files give.

    Attributes:
        types: "int" if all values are integers of 32 bits, else "str", as pyarrow infers them; by name, in order.
        texts: of each file, what its folders say.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    def values(self, path: str) -> dict[str, Any]:
        """The values of all rows of a file; None where its folders give none."""
        texts = self.texts.get(path, {})
        return {name: _value(texts.get(name), kind) for name, kind in self.types.items()}


def find_path_columns(
    given: Iterable[str | os.PathLike[str]], files: Sequence[FileVersion], partitioning: bool | None
) -> PathColumns:
    """The columns of folders named `key=value`.

    Args:
        given: the paths, globs and directories that the files were found by.
        partitioning: None looks at folders below a directory, or matched by a glob; True at all folders of all paths;
            False at none.
    """
    if partitioning is False:
        return PathColumns()
    roots = [""] if partitioning else sorted({_root(os.fspath(path)) for path in given}, key=len, reverse=True)
    texts = {file.path: _parse(_below(_plain(file.path), roots)) for file in files}
    names = list(dict.fromkeys(name for found in texts.values() for name in found))
    types = {name: _infer([found[name] for found in texts.values() if name in found]) for name in names}
    return PathColumns(types, texts) if types else PathColumns()


def _plain(path: str) -> str:
    """A path without its scheme; stores write `memory://a` and `memory:///a` for the same."""
    return "/" + _SCHEME.sub("", path).lstrip("/") if _SCHEME.match(path) else path


def _root(given: str) -> str:
    """The directory that a path is, or that a glob starts from."""
    path = _plain(given)
    wildcard = None if os.path.exists(path) else _WILDCARD.search(path)
    return path if wildcard is None else path[: path.rfind("/", 0, wildcard.start()) + 1]


def _below(path: str, roots: Sequence[str]) -> str:
    """The part of a path below the directory that it was found in; nothing, if it was given itself."""
    if path in roots:
        return ""
    for root in roots:
        folder = root if not root or root.endswith("/") else f"{root}/"
        if path.startswith(folder):
            return path[len(folder) :]
    return ""


def _parse(path: str) -> dict[str, str | None]:
    pairs = [folder.partition("=") for folder in path.split("/")[:-1]]
    decoded = {unquote(key): unquote(value) for key, is_pair, value in pairs if key and is_pair}
    return {key: None if value == _NULL else value for key, value in decoded.items()}


def _infer(texts: Iterable[str | None]) -> str:
    known = [text for text in texts if text is not None]
    return "int" if known and all(map(_is_int, known)) else "str"


def _is_int(text: str) -> bool:
    return bool(_INT.fullmatch(text)) and len(text) <= 20 and -(1 << 31) <= int(text) < 1 << 31


def _value(text: str | None, kind: str) -> Any:
    return text if text is None or kind == "str" else int(text)

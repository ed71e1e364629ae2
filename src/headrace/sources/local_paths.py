"""Local files from paths, globs and directories, in natural order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.sources.source import FileVersion

_DIGITS = re.compile(r"([0-9]+)")


def expand_local(path: str) -> list[FileVersion]:
    """The files that a path, a glob or a directory stands for, in natural order; none if there are none.

    A directory stands for all files below it, except for hidden ones. So does a glob, where `**` matches any depth; but
    directories that it matches are left out.
    """
    if os.path.isdir(path):
        found: Iterable[str] = _files_below(path)
    elif os.path.exists(path):
        found = [path]
    else:
        found = (match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
    return [stat_local(file) for file in sorted(found, key=natural_key)]


def stat_local(path: str) -> FileVersion:
    """The file as it is now.

    Raises:
        OSError: it cannot be seen.
    """
    return version_of(path, os.stat(path))


def version_of(path: str, status: os.stat_result) -> FileVersion:
    return FileVersion(path, status.st_size, str(status.st_mtime_ns))


def natural_key(path: str) -> Any:
    """Sorts "part-2" before "part-10", and the files of a folder together."""
    return [_natural(part) for part in path.split("/")], path


def is_hidden(relative_path: str) -> bool:
    """Whether the file, or a folder that it lies in, has a name that begins with a dot."""
    return any(part.startswith(".") for part in relative_path.split("/"))


def _natural(name: str) -> list[tuple[int, str]]:
    """Texts and numbers in turn; a text always stands against a text, and a number against a number."""
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(_DIGITS.split(name))]


def _files_below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _leads_back(place, name)]
        paths = (os.path.join(place, name) for name in names if not name.startswith("."))
        # A link to nothing stays, to be told of; a pipe would be waited for without end.
        yield from (path for path in paths if os.path.isfile(path) or os.path.islink(path))


def _leads_back(place: str, name: str) -> bool:
    """Whether a folder is a link to one that it lies in."""
    target = os.path.join(place, name)
    if not os.path.islink(target):
        return False
    return f"{os.path.realpath(place)}/".startswith(f"{os.path.realpath(target)}/")

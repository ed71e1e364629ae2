"""Lists and opens files: local ones, and those in any store that fsspec knows."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from headrace.base.errors import MissingExtraError
from headrace.base.optional import import_extra
from headrace.sources.access import Access
from headrace.sources.compression import codec_by_name, decompress
from headrace.sources.local_paths import expand_local, is_hidden, natural_key, stat_local, version_of
from headrace.sources.remote_file import (
    HttpRanges,
    ObjectRanges,
    RemoteFile,
    StoredRanges,
    check_version,
    remote_version,
)
from headrace.sources.source import FileVersion

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::.+)?://")
_HTTP = ("http://", "https://")
_MOST_NAMED = 10
_BUFFER_BYTES = 1 << 16


def is_local(path: str) -> bool:
    return not _URL.match(path) or path.startswith("file://")


def list_files(paths: Paths, access: Access | None = None) -> list[FileVersion]:
    """The files that paths, globs and directories stand for, each as it is now.

    Paths keep the order in which they are given; the files of a glob or directory come in natural order ("part-2"
    before "part-10"), without hidden ones.

    Args:
        paths: one or many, local or URLs.

    Raises:
        FileNotFoundError: some paths stand for no file; names all of them.
        ValueError: a file is given twice, or nothing is given at all.
        MissingExtraError: a path is a URL, and fsspec, or what it needs for this kind of URL, is not installed.
        RetriesExhaustedError: a store failed again and again.
    """
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not given:
        raise ValueError("At least one path is needed, got none.")
    found = {path: _expand(path, access or Access()) for path in dict.fromkeys(given)}
    _refuse_missing([path for path, files in found.items() if not files])
    files = [file for path in given for file in found[path]]
    _refuse_doubles(files)
    return files


def open_range(
    file: FileVersion | str,
    start: int,
    stop: int | None,
    access: Access | None = None,
) -> io.BufferedReader:
    """A file, open at `start`, that can be read to its end and seek.

    Up to `stop` (None: the end), a store is asked for large pieces; elsewhere for what is read, and little more.

    Guarantees: reads of a store are tried again from the byte that was reached, so nothing is lost or doubled.

    Raises:
        FileNotFoundError: there is no such file.
        ChangedFileError: it is not the one that was listed. Reading raises this too.
        RetriesExhaustedError: the store failed again and again. Reading raises this too.
    """
    listed = FileVersion(file, None, None) if isinstance(file, str) else file
    if not is_local(listed.path):
        raw = _open_remote(listed, stop, access or Access())
        raw.seek(start)
        return io.BufferedReader(raw, _BUFFER_BYTES)
    opened = open(_local(listed.path), "rb")  # noqa: SIM115 (the caller closes it)
    try:
        check_version(listed, version_of(listed.path, os.fstat(opened.fileno())))
        opened.seek(start)
    except BaseException:
        opened.close()
        raise
    return opened


def open_stream(
    file: FileVersion | str,
    access: Access | None = None,
    compression: str | None = "auto",
) -> io.BufferedReader:
    """A file from its beginning, decompressed; it can seek if it is not compressed.

    Args:
        compression: "gzip", "zstd", "bz2", "xz" or None; "auto" goes by the name of the file.

    Raises:
        What `open_range` raises. RecordError: what is read is not compressed like that, or damaged.
    """
    path = file if isinstance(file, str) else file.path
    codec = codec_by_name(path) if compression == "auto" else compression
    raw = open_range(file, 0, None, access)
    return raw if codec is None else decompress(raw, codec, path)


def check_unchanged(file: FileVersion) -> None:
    """Look whether a local file is still the one that was listed; those in stores are looked at when they are opened.

    Raises:
        ChangedFileError: it is not.
    """
    if is_local(file.path):
        check_version(file, stat_local(_local(file.path)))


def can_seek(file: FileVersion, access: Access) -> bool:
    """Whether a part of a file can be had without all that comes before it: some HTTP servers cannot do that."""
    if not file.path.startswith(_HTTP):
        return True
    if file.size is None:
        return False
    fs, _ = _file_system(file.path, access.storage_options)
    return HttpRanges(fs, file, access.retries).can_seek()


def _open_remote(file: FileVersion, stop: int | None, access: Access) -> RemoteFile:
    if access.cache is not None and file.size is not None:
        from headrace.sources.cache_folder import warn_of_cache
        from headrace.sources.cached_ranges import CachedRanges

        if file.version is not None:
            return RemoteFile(CachedRanges(file, access.cache, partial(_open_store, file, access)), file.size, stop)
        warn_of_cache(access.cache.folder, f"the store tells no version of {file.path}")
    ranges = _open_store(file, access)
    return RemoteFile(ranges, ranges.check().size, stop)


def _open_store(file: FileVersion, access: Access) -> StoredRanges:
    fs, name = _file_system(file.path, access.storage_options)
    if file.path.startswith(_HTTP):
        return HttpRanges(fs, file, access.retries)
    return ObjectRanges(fs, name, file, access.retries)


def _file_system(path: str, storage_options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The store of a URL, and the name in it. fsspec keeps clients, each for one process and thread only."""
    core = import_extra("fsspec.core", "remote", f"Reading {path}")
    try:
        fs, name = core.url_to_fs(path, **(storage_options or {}))
    except ImportError as error:
        raise MissingExtraError(
            f"Reading {path} needs more than fsspec: {error}. For s3://, gs:// and https://, run: "
            "pip install 'headrace[remote]'"
        ) from error
    return fs, name


def _local(path: str) -> str:
    return path.removeprefix("file://")


def _expand(path: str, access: Access) -> list[FileVersion]:
    if is_local(path):
        return expand_local(_local(path))
    fs, name = _file_system(path, access.storage_options)
    try:
        infos = access.retries.call(lambda: _find(fs, name, path), f"listing {path}")
    except FileNotFoundError:
        return []
    files = [remote_version(fs.unstrip_protocol(info["name"]), info) for info in infos]
    return sorted(files, key=lambda file: natural_key(file.path))


def _find(fs: Any, name: str, path: str) -> list[dict[str, Any]]:
    """What the store says of each file that a URL stands for."""
    fs.invalidate_cache()
    magic = "*[" if path.startswith(_HTTP) else "*[?"  # in a web address, a question mark begins the query
    if any(character in name for character in magic):
        found = fs.glob(name, detail=True).values()
        return [info for info in found if info["type"] == "file"]
    info = fs.info(name)
    if info["type"] == "file":
        return [info]
    below = fs.find(name, detail=True)
    return [
        info
        for place, info in below.items()
        if not place.endswith("/") and not is_hidden(place[len(name) :].lstrip("/"))  # stores mark folders so
    ]


def _refuse_missing(paths: list[str]) -> None:
    if not paths:
        return
    named = ", ".join(map(repr, paths[:_MOST_NAMED])) + (", …" if len(paths) > _MOST_NAMED else "")
    noun = "1 path stands" if len(paths) == 1 else f"{len(paths)} paths stand"
    may_be_folder = any(not is_local(path) or os.path.isdir(_local(path)) for path in paths)
    why = "A directory must have files that are not hidden" if may_be_folder else "There is no such file or directory"
    raise FileNotFoundError(f"{noun} for no file: {named}. {why}.")


def _refuse_doubles(files: list[FileVersion]) -> None:
    doubles = [path for path, count in Counter(file.path for file in files).items() if count > 1]
    if doubles:
        named = ", ".join(map(repr, doubles[:_MOST_NAMED]))
        raise ValueError(f"Each file must be given once, got {named} more than once. To read data again, repeat it.")

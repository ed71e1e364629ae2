"""Lists and opens files: local ones, and those in any store that fsspec knows."""

from __future__ import annotations

import glob
import io
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, TypeAlias

from headrace.base.errors import ChangedFileError, MissingExtraError
from headrace.base.optional import import_extra
from headrace.sources.compression import codec_by_name, decompress
from headrace.sources.options import FileOptions
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
_HIDDEN = (".", "_")


def is_local(path: str) -> bool:
    return not _URL.match(path) or path.startswith("file://")


def list_files(paths: Paths, options: FileOptions | None = None) -> list[FileVersion]:
    """The files that paths, globs and directories match, each as it is now.

    Paths keep the order in which they are given; the files of a glob or directory come in natural order ("part-2"
    before "part-10"). Of a directory, names that begin with "." or "_" are left out, as pyarrow does it.

    Args:
        paths: one or many, local or URLs.

    Raises:
        FileNotFoundError: some paths match no file; names all of them.
        OSError: a path is a pipe, a socket or a device.
        ValueError: a file is given twice, or nothing is given at all.
        MissingExtraError: a path is a URL, and fsspec, or what it needs for this kind of URL, is not installed.
        RetriesExhaustedError: a store failed again and again.
    """
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not given:
        raise ValueError("At least one path is needed, got none.")
    found = {path: _expand(path, options or FileOptions()) for path in dict.fromkeys(given)}
    _refuse_missing([path for path, files in found.items() if not files])
    files = [file for path in given for file in found[path]]
    _refuse_doubles(files)
    return files


def open_range(
    file: FileVersion | str,
    start: int,
    stop: int | None,
    options: FileOptions | None = None,
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
        raw = _open_remote(listed, stop, options or FileOptions())
        raw.seek(start)
        return io.BufferedReader(raw, _BUFFER_BYTES)
    opened = open(_local(listed.path), "rb", opener=_open_at_once)  # noqa: SIM115 (the caller closes it)
    try:
        check_version(listed, _version_of_open(listed.path, opened))
        opened.seek(start)
    except BaseException:
        opened.close()
        raise
    return opened


def _open_at_once(path: str, flags: int) -> int:
    """A descriptor, without waiting for the other end, should it be a pipe by now."""
    return os.open(path, flags | os.O_NONBLOCK)


def _version_of_open(path: str, opened: io.BufferedReader) -> FileVersion:
    status = os.fstat(opened.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ChangedFileError(f"{path} is not a regular file any more. List the files again, and start over.")
    return version_of(path, status)


def open_stream(
    file: FileVersion | str,
    options: FileOptions | None = None,
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
    raw = open_range(file, 0, None, options)
    return raw if codec is None else decompress(raw, codec, path)


def check_unchanged(file: FileVersion) -> None:
    """Look whether a local file is still the one that was listed; those in stores are looked at when they are opened.

    Raises:
        ChangedFileError: it is not.
    """
    if is_local(file.path):
        check_version(file, stat_local(_local(file.path)))


def can_seek(file: FileVersion, options: FileOptions) -> bool:
    """Whether a part of a file can be had without all that comes before it: some HTTP servers cannot do that."""
    if not file.path.startswith(_HTTP):
        return True
    if file.size is None:
        return False
    fs, _ = _file_system(file.path, options.storage_options)
    return HttpRanges(fs, file, options.retries).can_seek()


def _open_remote(file: FileVersion, stop: int | None, options: FileOptions) -> RemoteFile:
    if options.open_cache is not None and file.size is not None:
        from headrace.sources.cache import CachedRanges, warn_of_cache

        if file.version is not None:
            return RemoteFile(
                CachedRanges(file, options.open_cache, partial(_open_store, file, options)), file.size, stop
            )
        warn_of_cache(options.open_cache.folder, f"the store reports no version of {file.path}")
    ranges = _open_store(file, options)
    return RemoteFile(ranges, ranges.check().size, stop)


def _open_store(file: FileVersion, options: FileOptions) -> StoredRanges:
    fs, name = _file_system(file.path, options.storage_options)
    if file.path.startswith(_HTTP):
        return HttpRanges(fs, file, options.retries)
    return ObjectRanges(fs, name, file, options.retries)


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


def _expand(path: str, options: FileOptions) -> list[FileVersion]:
    if is_local(path):
        return expand_local(_local(path))
    fs, name = _file_system(path, options.storage_options)
    try:
        infos = options.retries.call(lambda: _find(fs, name, path), f"listing {path}")
    except FileNotFoundError:
        return []
    files = [remote_version(fs.unstrip_protocol(info["name"]), info) for info in infos]
    return sorted(files, key=lambda file: natural_key(file.path))


def _find(fs: Any, name: str, path: str) -> list[dict[str, Any]]:
    """What the store says of each file that a URL matches."""
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
    noun = "1 path matches" if len(paths) == 1 else f"{len(paths)} paths match"
    may_be_folder = any(not is_local(path) or os.path.isdir(_local(path)) for path in paths)
    why = "There is no such file or directory"
    if may_be_folder:
        why = "A directory must have files that are not hidden: names that begin with '.' or '_' are left out"
    raise FileNotFoundError(f"{noun} no file: {named}. {why}.")


def _refuse_doubles(files: list[FileVersion]) -> None:
    doubles = [path for path, count in Counter(file.path for file in files).items() if count > 1]
    if doubles:
        named = ", ".join(map(repr, doubles[:_MOST_NAMED]))
        raise ValueError(f"Each file must be given once, got {named} more than once. To read data again, repeat it.")


_DIGITS = re.compile(r"([0-9]+)")


def expand_local(path: str) -> list[FileVersion]:
    """The files that a path, a glob or a directory matches, in natural order.

    A directory matches all files below it, except for hidden ones. A glob matches what it does in a shell, where `**`
    matches any depth; but directories, pipes and the like that it matches are left out.

    Raises:
        OSError: the path is a pipe, a socket or a device.
    """
    if os.path.isdir(path):
        found: Iterable[str] = _files_below(path)
    elif os.path.exists(path):
        found = [_regular_file(path)]
    else:
        found = (match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
    return [_listed(file) for file in sorted(found, key=natural_key)]


def _regular_file(path: str) -> str:
    """The path of a file that can be read more than once.

    Raises:
        OSError: it is none.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        # "/dev/stdin" is another file in each process; behind it may be one that has a name.
        return os.path.realpath(path) if path.startswith(("/dev/", "/proc/")) else path
    kind = next((name for is_kind, name in _SPECIAL_KINDS.items() if is_kind(mode)), "a special file")
    raise OSError(
        f"{path!r} is {kind}, which can be read only once and in one process, but a stream is read in parts, by all "
        "workers, and again in the next epoch. Write it to a file; or, for one epoch, let the loader's process read "
        f'it: Stream.from_iterable(lambda: open({path!r}), shard="dispatch").'
    )


_SPECIAL_KINDS = {
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a block device",
}


def _listed(path: str) -> FileVersion:
    """The file as it is now; one whose size only reading tells, as in /proc, has neither size nor version."""
    file = stat_local(path)
    return FileVersion(path, None, None) if file.size == 0 and _has_content(path) else file


def _has_content(path: str) -> bool:
    """Whether a file whose size is said to be 0 has content all the same."""
    try:
        with open(path, "rb") as opened:
            return bool(opened.read(1))
    except OSError:
        return False  # whoever reads it will see


def stat_local(path: str) -> FileVersion:
    """The file as it is now.

    Raises:
        OSError: it cannot be seen.
    """
    return version_of(path, os.stat(path))


def version_of(path: str, status: os.stat_result) -> FileVersion:
    return FileVersion(path, status.st_size, str(status.st_mtime_ns))


def path_below(path: str, folder: str) -> str:
    """The part of a listed path below a folder, whose address stores may write in another way.

    Examples:
        >>> path_below("memory:///data/train/x", "memory://data")
        'train/x'
        >>> path_below("hf://datasets/a/b@main/data/x", "hf://datasets/a/b")
        'data/x'
    """
    name = (folder.partition("://")[2] or folder).partition("@")[0]
    place = path.find(name)
    return path[place + len(name) :].partition("/")[2] if place >= 0 else path


def natural_key(path: str) -> Any:
    """Sorts "part-2" before "part-10", and the files of a folder together."""
    return [_natural(part) for part in path.split("/")], path


def is_hidden(relative_path: str) -> bool:
    """Whether the file, or a folder that contains it, has a name that begins with a dot or an underscore."""
    return any(part.startswith(_HIDDEN) for part in relative_path.split("/"))


def _natural(name: str) -> list[tuple[int, str]]:
    """Texts and numbers in turn; a text is always compared with a text, and a number against a number."""
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(_DIGITS.split(name))]


def _files_below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN) and not _leads_back(place, name)]
        paths = (os.path.join(place, name) for name in names if not name.startswith(_HIDDEN))
        # A broken link stays, to be reported; a pipe would block for ever.
        yield from (path for path in paths if os.path.isfile(path) or os.path.islink(path))


def _leads_back(place: str, name: str) -> bool:
    """Whether a folder is a link to one that contains it."""
    target = os.path.join(place, name)
    if not os.path.islink(target):
        return False
    return f"{os.path.realpath(place)}/".startswith(f"{os.path.realpath(target)}/")


_END_BYTES = 1 << 16
_DIGEST_BYTES = 8
_MOST_REMEMBERED = 1024


@lru_cache(_MOST_REMEMBERED)
def fingerprint(file: FileVersion) -> str | None:
    """A digest of the first and last 64 KiB of a local file; None if there is none, or it has changed.

    Read once for each version of a file, and remembered: states are taken often.
    """
    # A pipe has no size, and reading it would wait for ever.
    if not file.size or not is_local(file.path):
        return None
    digest = blake2b(digest_size=_DIGEST_BYTES)
    try:
        with open_range(file, 0, None) as opened:
            digest.update(opened.read(_END_BYTES))
            opened.seek(max(opened.tell(), file.size - _END_BYTES), os.SEEK_SET)
            digest.update(opened.read(_END_BYTES))
    except (OSError, ChangedFileError):
        return None
    return digest.hexdigest()

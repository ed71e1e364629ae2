"""How files are found, opened, cut and decoded: the options that all readers of files share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from headrace.base.errors import check_count
from headrace.sources.cache import Cache, CacheLike, find_cache
from headrace.sources.encodings import check_errors, find_encoding
from headrace.sources.retry import Retries


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options that all readers of files share. A reader ignores those that mean nothing for its format.

    Attributes:
        encoding: of text; any that Python knows.
        errors: what to do with bytes that cannot be decoded: "strict" makes their record a bad one; the other values
            are those of `bytes.decode`.
        compression: "gzip", "zstd", "bz2", "xz" or None; "auto" goes by the suffix, or by the first bytes of a file
            whose name has no suffix at all. For text; archives and Arrow streams always go by their suffix.
        block_bytes: approximate size of a block; by default, 2 MiB of a local text file and 8 MiB of anything else.
        max_record_bytes: a larger record is a bad one; by default, 64 MiB of text and 1 GiB for a sample of an archive.
        stretch_bytes: how much decompressed content of a file that cannot be split goes to one worker at a time.
        hive_partitioning: whether folders named `key=value` give columns, of CSV, JSON lines, Parquet and Arrow files.
            None for folders below a directory that was given, or matched by a glob; True for all folders of all
            paths; False for none. Values are integers of 32 bits, or else text; a file's own column takes precedence.
        storage_options: for fsspec: credentials, endpoints, headers.
        retries: how often to retry when a store fails.
        cache: where to keep what is read from stores: a `Cache`, or its folder. None uses the folder in the environment
            variable HEADRACE_CACHE, if it is set; False disables caching.

    Raises:
        ValueError: a size is less than 1.
        LookupError: the encoding, or the way to handle errors, is unknown.
        TypeError: `cache` is something else.

    Examples:
        >>> options = FileOptions(encoding="latin-1", cache="~/.cache/data")
        >>> stream = read_text("s3://bucket/texts", files=options)  # doctest: +SKIP
    """

    encoding: str = "utf-8"
    errors: str = "strict"
    compression: str | None = "auto"
    block_bytes: int | None = None
    max_record_bytes: int | None = None
    stretch_bytes: int = 4 << 20
    hive_partitioning: bool | None = None
    storage_options: Mapping[str, Any] | None = None
    retries: Retries = field(default_factory=Retries)
    cache: CacheLike = None

    def __post_init__(self) -> None:
        find_encoding(self.encoding)
        check_errors(self.errors)
        for name in ("block_bytes", "max_record_bytes", "stretch_bytes"):
            given = getattr(self, name)
            if given is not None:
                check_count(name, given, 1)
        # Resolved here: workers, on other machines too, must not look at their own environment.
        object.__setattr__(self, "cache", find_cache(self.cache) or False)

    @property
    def open_cache(self) -> Cache | None:
        """The cache, if there is one."""
        return self.cache if isinstance(self.cache, Cache) else None


class BlockArguments(TypedDict, total=False):
    """Options of `FileOptions` that all readers of files also take as arguments."""

    block_bytes: int | None
    storage_options: Mapping[str, Any] | None
    retries: Retries | None
    cache: CacheLike


class TableArguments(BlockArguments, total=False):
    """Options of `FileOptions` that readers of Parquet and Arrow files also take as arguments."""

    hive_partitioning: bool | None


class ArchiveArguments(TableArguments, total=False):
    """Options of `FileOptions` that readers of archives also take as arguments."""

    max_record_bytes: int | None


class TextArguments(ArchiveArguments, total=False):
    """Options of `FileOptions` that readers of text also take as arguments."""

    encoding: str
    errors: str
    compression: str | None
    stretch_bytes: int


def merge_options(reader: str, files: FileOptions | None, arguments: Mapping[str, Any], allowed: Any) -> FileOptions:
    """The options that a reader was given, as an object, as arguments, or both: arguments take precedence.

    Args:
        reader: for errors.
        allowed: the TypedDict of its arguments.

    Raises:
        TypeError: there is no such argument, or `files` is something else.
        ValueError, LookupError: see `FileOptions`.
    """
    for name in arguments:
        if name not in allowed.__annotations__:
            raise TypeError(f"{reader}() got an unexpected keyword argument {name!r}")
    if files is not None and not isinstance(files, FileOptions):
        raise TypeError(f"files must be a FileOptions, got {files!r:.80}.")
    given = dict(arguments)
    if given.get("retries", ...) is None:
        del given["retries"]
    return replace(files, **given) if files is not None else FileOptions(**given)


def options_among(arguments: Mapping[str, Any]) -> FileOptions:
    """The options of files among the arguments of any reader."""
    names = {each.name for each in fields(FileOptions)}
    given = {name: value for name, value in arguments.items() if name in names}
    return merge_options("", arguments.get("files"), given, FileOptions)

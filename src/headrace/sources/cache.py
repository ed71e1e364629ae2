"""What was read from stores is kept on a local disk: where, and how much of it."""

from __future__ import annotations

import os
import re
from typing import TypeAlias

BLOCK_BYTES = 8 << 20
_FOLDER_VARIABLE = "HEADRACE_CACHE"
_LIMIT_VARIABLE = "HEADRACE_CACHE_LIMIT"
_LIMIT = "50 GB"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?\s*", re.IGNORECASE)


class Cache:
    """Keeps what was read from stores in a local folder: for the next epoch, for the other workers, for the next job.

    Files are kept in blocks, when they are first read: a part of a file costs no more than that part. A file is known
    by its address, size and version (an etag, or the time of its last change); one that has no version is not kept.

    Guarantees: any number of processes may share a folder, and one of them downloads a block, while the others wait;
    what is read is what was downloaded, and a damaged block is fetched again; at most `limit` bytes are kept, and at
    least `free` bytes of the disk are left alone: what was used longest ago goes first, and nobody who is reading it
    is disturbed. Where nothing can be kept, files are read from their store as if there were no cache, with a warning.

    Args:
        folder: made if it is not there, for this user alone; `~` is the home folder.
        limit: bytes, or a text like "50 GB" or "1.5 TiB".
        free: how much of the disk is left free, in the same way.
        block_bytes: how long a block is.

    Raises:
        ValueError: a size is no size, or a block does not fit into `limit`.

    Examples:
        >>> cache = Cache("~/.cache/headrace", limit="200 GB")
        >>> stream = read_parquet("s3://bucket/table", cache=cache)  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int | str = _LIMIT,
        *,
        free: int | str = "2 GB",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self.limit_bytes = size_in_bytes(limit, "limit")
        self.free_bytes = size_in_bytes(free, "free")
        self.block_bytes = block_bytes
        if not 0 < block_bytes <= self.limit_bytes:
            raise ValueError(
                f"block_bytes must be at least 1 and at most limit={self.limit_bytes}, got {block_bytes}. "
                "Pass a larger limit."
            )

    def __repr__(self) -> str:
        return f"Cache({self.folder!r}, limit={self.limit_bytes})"


CacheLike: TypeAlias = "Cache | str | os.PathLike[str] | bool | None"
"""What users may pass: a cache, its folder, False for none; None goes by the environment."""


def find_cache(given: CacheLike) -> Cache | None:
    """The cache that is meant, if any.

    None means the folder in the environment variable HEADRACE_CACHE, if that is set, with the limit in
    HEADRACE_CACHE_LIMIT, if that is.

    Raises:
        ValueError: the limit in the environment is no size.
        TypeError: `given` is none of these.
    """
    match given:
        case Cache():
            return given
        case False:
            return None
        case None:
            folder = os.environ.get(_FOLDER_VARIABLE)
            return Cache(folder, os.environ.get(_LIMIT_VARIABLE) or _LIMIT) if folder else None
        case str() | os.PathLike():
            return Cache(given)
        case _:
            raise TypeError(f"cache must be a Cache, the path of a folder, False or None, got {given!r}.")


def size_in_bytes(size: int | str, what: str) -> int:
    """A size like "50 GB" (10^9 bytes each) or "50 GiB" (2^30) in bytes.

    Raises:
        ValueError: it is no size.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise ValueError(f"{what} must be a number of bytes, or a text like '50 GB', got {size!r}.")
    number, prefix, binary = found.groups()
    power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power)

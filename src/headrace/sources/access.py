"""How files in stores are reached: with which options, how patiently, through which cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.sources.cache import Cache, CacheLike, find_cache
from headrace.sources.retry import Retries


@dataclass(frozen=True)
class Access:
    """What is the same for all files of a source.

    Attributes:
        storage_options: for fsspec: credentials, endpoints, headers.
        retries: how often to try again what a store fails to do.
        cache: where to keep what was read from stores, if anywhere.
    """

    storage_options: Mapping[str, Any] | None = None
    retries: Retries = field(default_factory=Retries)
    cache: Cache | None = None


def make_access(
    storage_options: Mapping[str, Any] | None = None, retries: Retries | None = None, cache: CacheLike = None
) -> Access:
    """How users say it: whatever they leave out is chosen for them.

    Raises:
        ValueError, TypeError: `cache` is none; see `find_cache`.
    """
    return Access(storage_options, retries or Retries(), find_cache(cache))

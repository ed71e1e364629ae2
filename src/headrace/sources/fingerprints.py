"""Tells files apart by what is in them, so that a copy counts as the same file."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b

from headrace.base.errors import ChangedFileError
from headrace.sources.files import is_local, open_range
from headrace.sources.source import FileVersion

_END_BYTES = 1 << 16
_DIGEST_BYTES = 8
_MOST_REMEMBERED = 1024


@lru_cache(_MOST_REMEMBERED)
def fingerprint(file: FileVersion) -> str | None:
    """A digest of the first and last 64 KiB of a file; None if it cannot be told without a store, or not any more.

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

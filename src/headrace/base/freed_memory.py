"""Has the C library keep memory that was freed, for the rows that are read next."""

from __future__ import annotations

from functools import cache

_MAPPED_BYTES = 31 << 20  # what glibc learns from: blocks of up to 32 MB


@cache  # a process that is forked has learnt it, too
def keep_freed_memory() -> None:
    """Let freed memory be used again, instead of being given back to the system.

    glibc gives back whatever is free at the end of its heap, from 128 KB on, and the system clears every page that it
    hands out again; rows of a few kilobytes then take several times as long to make as to copy. Both limits grow once a
    large block has been freed: so one is, which nobody has touched. Other C libraries take no notice.
    """
    bytes(_MAPPED_BYTES)

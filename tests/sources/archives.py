"""Makes tar archives for tests, ordinary ones and hostile ones."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from typing import Any

Content = tuple[str, bytes]


def tar_bytes(members: Iterable[Content | tarfile.TarInfo], **options: Any) -> bytes:
    """An archive of members: names with contents, or headers alone."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w", **options) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, content = member
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return memory.getvalue()


def write_checksum(content: bytearray, header: int, *, written: bytes = b"%06o\0 ", is_signed: bool = False) -> None:
    """Make the checksum of the header at this place right, after a change."""
    field = slice(header + 148, header + 156)
    content[field] = b" " * 8
    total = sum(content[header : header + 512])
    n_negative = sum(byte >= 128 for byte in content[header : header + 512])
    content[field] = written % (total - 256 * n_negative * is_signed)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """The header of something that is no regular file."""
    header = tarfile.TarInfo(name)
    header.type = kind
    header.linkname = target
    return header

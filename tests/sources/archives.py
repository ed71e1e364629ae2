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


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """The header of something that is no regular file."""
    header = tarfile.TarInfo(name)
    header.type = kind
    header.linkname = target
    return header

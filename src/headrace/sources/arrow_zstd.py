"""zstd by way of pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from headrace.base.optional import import_extra

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = import_extra("pyarrow", "arrow", "Reading zstd")


def open_zstd(raw: BinaryIO) -> Any:
    """The content of a zstd stream, to read and close; damage shows as an OSError."""
    return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")

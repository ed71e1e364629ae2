"""Guesses the format of a file from its name, or else from its first bytes."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Sequence
from pathlib import PurePosixPath

from headrace.sources.compression import N_FIRST_BYTES, codec_by_content, codec_by_name, decompress
from headrace.sources.files import open_range
from headrace.sources.options import FileOptions
from headrace.sources.source import FileVersion

_BY_SUFFIX = {
    **dict.fromkeys((".txt", ".text", ".log", ".md", ".rst"), "text"),
    ".csv": "csv",
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".tar", ".tgz", ".tzst", ".tbz2", ".txz"), "tar"),
    ".idx": "tokens",
    **dict.fromkeys((".tfrecord", ".tfrecords"), "tfrecord"),
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
    **dict.fromkeys((".npy", ".npz"), "npy"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "sqlite"),
}
_BEGINNINGS = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # a stream
    b"SQLite format 3\0": "sqlite",
    b"MMIDIDX\0\0": "tokens",  # Megatron's index
}
_BYTE_ORDER_MARKS = {  # the longer ones first, which begin like shorter ones
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
_READERS = {"tsv": 'read_csv with separator="\\t"', "sqlite": "read_sql"}
_TAR_MARK = slice(257, 262)
_LOOKED_AT_BYTES = 1 << 16
_LOOKED_AT_LINES = 20


def format_by_name(path: str) -> str | None:
    """The format that the name of a file implies, if any."""
    if path.startswith(("postgresql://", "postgres://")):
        return "postgresql"
    if path.startswith("sqlite://"):
        return "sqlite"
    name = PurePosixPath(path.partition("?")[0] if "://" in path else path)
    suffixes = [suffix.lower() for suffix in name.suffixes[-2:]]
    if suffixes and suffixes[-1] not in _BY_SUFFIX and codec_by_name(str(name)) is not None:
        suffixes.pop()
    return _BY_SUFFIX.get(suffixes[-1]) if suffixes else None


def format_by_content(file: FileVersion, options: FileOptions | None = None) -> str | None:
    """The format of a file that begins like this one, if any."""
    return format_of(read_beginning(file, options))


def read_beginning(file: FileVersion, options: FileOptions | None = None) -> bytes:
    """How a file begins; if it is compressed, how its content does."""
    with open_range(file, 0, _LOOKED_AT_BYTES, options) as opened:
        codec = codec_by_content(opened.peek(N_FIRST_BYTES))
        if codec is None:
            return opened.read(_LOOKED_AT_BYTES)
        with decompress(opened, codec, file.path) as content:
            return content.read(_LOOKED_AT_BYTES)


def encoding_by_mark(beginning: bytes) -> str | None:
    """The encoding of a text with a byte order mark, if it has one."""
    return next((name for mark, name in _BYTE_ORDER_MARKS.items() if beginning.startswith(mark)), None)


def advise_reader(beginning: bytes) -> str | None:
    """What content that begins like this seems to be, and what reads it; None if unknown."""
    codec = codec_by_content(beginning[:N_FIRST_BYTES])
    if codec is not None:
        return f"it is compressed with {codec}. Give it a name that says so"
    found = format_of(beginning) if beginning else None
    return found and f"it begins like {found}. Use {_READERS.get(found, f'read_{found}')}"


def format_of(beginning: bytes) -> str | None:
    """The format of content that begins like this; None if it is neither text nor one that is known."""
    known = next((name for mark, name in _BEGINNINGS.items() if beginning.startswith(mark)), None)
    if known is not None or beginning[_TAR_MARK] == b"ustar":
        return known or "tar"
    decoder = codecs.getincrementaldecoder(encoding_by_mark(beginning) or "utf-8")()
    try:
        text = decoder.decode(beginning, final=len(beginning) < _LOOKED_AT_BYTES)
    except UnicodeDecodeError:
        return None
    text = text if len(beginning) < _LOOKED_AT_BYTES else text[: text.rfind("\n") + 1] or text
    return None if "\0" in text else _format_of_lines([line for line in text.splitlines() if line.strip()])


def _format_of_lines(lines: Sequence[str]) -> str | None:
    lines = lines[:_LOOKED_AT_LINES]
    if lines and lines[0].lstrip()[0] in "{[":
        return "jsonl" if _are_json(lines) else None if _is_json_document(lines[0]) else "text"
    for separator, name in (("\t", "tsv"), (",", "csv")):
        counts = {len(row) for row in csv.reader(lines, delimiter=separator)}
        if len(lines) > 1 and len(counts) == 1 and counts.pop() > 1:
            return name
    return "text"


def _are_json(lines: Sequence[str]) -> bool:
    try:
        return all(isinstance(json.loads(line), (dict, list)) for line in lines)
    except ValueError:
        return False


def _is_json_document(first_line: str) -> bool:
    """Whether this looks like one JSON value over many lines."""
    return first_line.strip() in ("{", "[", "[{")

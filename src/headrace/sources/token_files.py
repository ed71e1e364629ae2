"""Files of tokens: raw numbers as nanoGPT writes them, llm.c's shards, `.npy`, Megatron's `.bin` with its `.idx`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.base.errors import RecordError
from headrace.sources.files import Paths, check_unchanged, is_local, list_files, open_range
from headrace.sources.options import FileOptions
from headrace.sources.source import FileVersion

Tokens: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, numbers of sequences and of document borders
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LLM_C = {20240520: "<u2", 20240801: "<u4"}  # the first number of the header, and the dtype that it stands for
_LLM_C_BYTES = 1024
_SUFFIXES = (".bin", ".npy", ".idx")
_DEFAULT = np.dtype("<u2")


class TokenFile(NamedTuple):
    """The tokens of one file.

    Attributes:
        first_byte: where the first token is.
        documents: where they begin, if there is an index of them.
    """

    file: FileVersion
    dtype: str
    first_byte: int
    n_tokens: int
    documents: DocumentIndex | None = None

    @property
    def path(self) -> str:
        return self.file.path

    def map(self) -> Tokens:
        """All tokens of a local file, mapped into memory: read where they are looked at.

        Raises:
            ChangedFileError: it is not the file that was listed.
        """
        check_unchanged(self.file)
        if not self.n_tokens:
            return np.empty(0, self.dtype)
        path = self.path.removeprefix("file://")
        mapped = np.memmap(path, self.dtype, mode="r", offset=self.first_byte, shape=(self.n_tokens,))
        return mapped.view(np.ndarray)  # a memmap takes twice as long to slice

    def fetch(self, start: int, stop: int, options: FileOptions) -> Tokens:
        """The tokens [start, stop) of a file in a store, asked for as one range.

        Raises:
            ChangedFileError: it is not the file that was listed.
        """
        size = np.dtype(self.dtype).itemsize
        first, last = self.first_byte + start * size, self.first_byte + stop * size
        with open_range(self.file, first, last, options) as opened:
            content = opened.read(last - first)
        if len(content) < last - first:
            raise RecordError(f"{self.path} ends at byte {first + len(content)}, before token {stop}.")
        return np.frombuffer(content, self.dtype)


class DocumentIndex:
    """Megatron's `.idx` file: where sequences begin in the `.bin` file, and which of them begin a document.

    Guarantees: picklable; the numbers are mapped into memory, or fetched from a store, when they are wanted.

    Attributes:
        n_sequences: of which a document has one or more.
        n_documents: how many there are.

    Raises:
        RecordError: it is damaged, or no such file.
    """

    def __init__(self, file: FileVersion, options: FileOptions) -> None:
        self.file = file
        self._options = options
        with open_range(file, 0, _HEADER.size, options) as opened:
            header = opened.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise RecordError(f"{file.path} must begin with Megatron's {_MAGIC!r}, got {header[:9]!r}. Is it an index?")
        _, version, code, self.n_sequences, n_borders = _HEADER.unpack(header)
        if version != 1 or code not in _DTYPES:
            raise RecordError(
                f"{file.path} must be of version 1, with a dtype of integers, got version {version} and dtype {code}."
            )
        self.dtype = _DTYPES[code]
        self.n_documents = max(0, n_borders - 1)
        self._places = np.cumsum([_HEADER.size, 4 * self.n_sequences, 8 * self.n_sequences, 8 * n_borders]).tolist()
        if file.size is not None and file.size < self._places[-1]:
            raise RecordError(
                f"{file.path} must have {self._places[-1]:,} bytes for {self.n_sequences:,} sequences, got "
                f"{file.size:,}. It is cut off."
            )

    @property
    def n_tokens(self) -> int:
        """All of them, by the last sequence."""
        if not self.n_sequences:
            return 0
        last = self.n_sequences - 1
        return int(self._numbers(1, last, last + 1)[0]) // self._itemsize + int(self._numbers(0, last, last + 1)[0])

    @cached_property
    def borders(self) -> Tokens:
        """Where each document begins, in tokens, and where the last one ends.

        Raises:
            RecordError: they do not ascend.
        """
        pointers = self._numbers(1, 0, self.n_sequences)
        firsts = self._numbers(2, 0, self.n_documents)
        if len(firsts) and not 0 <= int(firsts.min()) <= int(firsts.max()) <= self.n_sequences:
            raise RecordError(f"{self.file.path} is damaged: a document must begin with one of its sequences.")
        ends = np.append(pointers, self.n_tokens * self._itemsize)  # a document may have no sequence at all
        borders = np.append(ends[firsts] // self._itemsize, self.n_tokens)
        if len(borders) > 1 and int(np.diff(borders).min()) < 0:
            raise RecordError(f"{self.file.path} is damaged: the places of documents must ascend.")
        return borders

    def border(self, document: int) -> int:
        """Where a document begins, in tokens; all documents need not be looked at for that."""
        if document >= self.n_documents:
            return self.n_tokens
        sequence = int(self._numbers(2, document, document + 1)[0])
        if sequence >= self.n_sequences:
            return self.n_tokens
        return int(self._numbers(1, sequence, sequence + 1)[0]) // self._itemsize

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def _numbers(self, section: int, start: int, stop: int) -> Tokens:
        """Some of the lengths (0) or places (1) of sequences, or of the first sequences of documents (2)."""
        dtype = np.dtype("<i8" if section else "<i4")
        first, last = (self._places[section] + i * dtype.itemsize for i in (start, stop))
        with open_range(self.file, first, last, self._options) as opened:
            content = opened.read(last - first)
        if len(content) < last - first:
            raise RecordError(f"{self.file.path} ends before byte {last}.")
        return np.frombuffer(content, dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "borders"}


def list_tokens(paths: Paths, options: FileOptions) -> list[tuple[FileVersion, FileVersion | None]]:
    """The files of tokens that paths match, and the index beside each, if there is one.

    A path is a file, a folder, a glob, or what the `.bin` and `.idx` files of Megatron have in common.

    Raises:
        FileNotFoundError, ValueError: see `list_files`. ValueError: an index has no tokens beside it.
    """
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    files = list_files([_as_file(path, options) for path in given], options) if given else list_files(given, options)
    known = {file.path: file for file in files}
    indexes = [path for path in known if path.endswith(".idx")]
    for path in indexes:
        if _beside(path, ".bin") not in known:
            known[_beside(path, ".bin")] = list_files(_beside(path, ".bin"), options)[0]
    found = []
    for path in dict.fromkeys(_beside(path, ".bin") if path.endswith(".idx") else path for path in known):
        index = known.get(_beside(path, ".idx")) if path.endswith(".bin") else None
        if index is None and path.endswith(".bin"):
            index = _find(_beside(path, ".idx"), options)
        found.append((known[path], index))
    return found


def _as_file(path: str, options: FileOptions) -> str:
    """The path; of a prefix, the path of its `.bin` file."""
    if path.endswith(_SUFFIXES) or any(letter in path for letter in "*?["):
        return path
    if is_local(path) and os.path.exists(path.removeprefix("file://")):
        return path
    return f"{path}.bin" if _find(f"{path}.bin", options) is not None else path


def _beside(path: str, suffix: str) -> str:
    return path[: -len(suffix)] + suffix


def _find(path: str, options: FileOptions) -> FileVersion | None:
    try:
        return list_files(path, options)[0]
    except (FileNotFoundError, PermissionError):  # a store that may not be listed says so
        return None


def open_tokens(file: FileVersion, index: FileVersion | None, dtype: Any, options: FileOptions) -> TokenFile:
    """What is in a file of tokens.

    Args:
        dtype: of raw tokens; None for what the file, or its index, says, or else 16 bits without a sign.

    Raises:
        RecordError: it is damaged, or holds something else than integers in one dimension.
    """
    if file.path.endswith(".npy"):
        return _open_npy(file, options)
    if dtype is not None:
        return _raw(file, np.dtype(dtype), 0, None)
    if index is not None:
        documents = DocumentIndex(index, options)
        return _raw(file, np.dtype(documents.dtype), 0, documents.n_tokens)._replace(documents=documents)
    with open_range(file, 0, 12, options) as opened:
        beginning = opened.read(12)
    magic, _, n_tokens = struct.unpack("<3i", beginning) if len(beginning) == 12 else (0, 0, 0)
    if magic in _LLM_C:
        return _raw(file, np.dtype(_LLM_C[magic]), _LLM_C_BYTES, n_tokens)
    return _raw(file, _DEFAULT, 0, None)


def _raw(file: FileVersion, dtype: np.dtype[Any], first_byte: int, n_tokens: int | None) -> TokenFile:
    """Tokens that lie one after the other, up to the end of the file.

    Raises:
        RecordError: the file has another size than that.
    """
    if file.size is None:
        raise RecordError(f"{file.path} must have a size that its server tells: tokens are read by ranges.")
    found, rest = divmod(file.size - first_byte, dtype.itemsize)
    if rest or found < 0 or (n_tokens is not None and n_tokens != found):
        wanted = f"{n_tokens:,} tokens" if n_tokens is not None else "whole tokens"
        raise RecordError(
            f"{file.path} must have {wanted} of {dtype.itemsize} bytes, got {file.size - first_byte:,} bytes. It is "
            "cut off, or of another dtype=."
        )
    return TokenFile(file, dtype.str, first_byte, found)


def _open_npy(file: FileVersion, options: FileOptions) -> TokenFile:
    with open_range(file, 0, 1 << 12, options) as opened:
        try:
            version = np.lib.format.read_magic(opened)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(opened)
        except (ValueError, EOFError) as error:
            raise RecordError(f"{file.path} is damaged, or no .npy file: {error}") from error
        first_byte = opened.tell()
    if len(shape) != 1 or dtype.kind not in "iu":
        raise RecordError(f"{file.path} must be one row of integers, got {dtype} of shape {shape}.")
    return _raw(file, dtype, first_byte, shape[0])


def parse_split(split: str | Sequence[float]) -> list[float]:
    """Where the parts of a split begin and end, as fractions: "969,30,1" or (969, 30, 1) are three parts.

    Raises:
        ValueError: they are no numbers of at least 0, or all of them 0.
    """
    given: Iterable[Any] = split.split(",") if isinstance(split, str) else split
    try:
        shares = [float(share) for share in given]
    except (TypeError, ValueError):
        shares = []
    if not shares or min(shares) < 0 or not sum(shares):
        raise ValueError(f'split must be the sizes of its parts, such as (969, 30, 1) or "969,30,1", got {split!r}.')
    return [sum(shares[:i]) / sum(shares) for i in range(len(shares) + 1)]


def part_of(tokens: TokenFile, borders: tuple[float, float]) -> tuple[int, int]:
    """The tokens of a part of a split: whole documents, if it is known where they begin; rounded as Megatron does."""
    n = tokens.n_tokens if tokens.documents is None else tokens.documents.n_documents
    first, last = (round(border * float(n)) for border in borders)
    if tokens.documents is None:
        return first, last
    return tokens.documents.border(first), tokens.documents.border(last)

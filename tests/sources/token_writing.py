"""Writes files of tokens as nanoGPT, llm.c, NumPy and Megatron do, by the formats that they document."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(
    prefix: Path, sequences: Sequence[Sequence[int]], dtype: str = "int32", per_document: int = 1
) -> list[list[int]]:
    """Write `prefix.bin` and `prefix.idx`, with so many sequences in a document. Returns the documents.

    The index has a magic number of 9 bytes, a version, the code of the dtype, the numbers of sequences and of document
    borders; then the length of each sequence (int32), where it begins in bytes (int64), and the number of the first
    sequence of each document, and of the one after the last (int64).
    """
    arrays = [np.array(sequence, dtype) for sequence in sequences]
    Path(f"{prefix}.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    borders = np.array([*range(0, len(arrays), per_document), len(arrays)], np.int64)
    write_index(Path(f"{prefix}.idx"), np.array([len(array) for array in arrays], np.int64), borders, dtype)
    cut = zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
    return [[token for sequence in sequences[a:b] for token in sequence] for a, b in cut]


def write_index(path: Path, lengths: Any, borders: Any, dtype: str) -> None:
    """Megatron's index of sequences of these lengths, of which some begin a document."""
    places = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    with open(path, "wb") as index:
        index.write(b"MMIDIDX\x00\x00")
        index.write(struct.pack("<Q", 1))
        index.write(struct.pack("<B", CODES[dtype]))
        index.write(struct.pack("<Q", len(lengths)))
        index.write(struct.pack("<Q", len(borders)))
        for numbers, kind in ((lengths, np.int32), (places, np.int64), (borders, np.int64)):
            index.write(np.asarray(numbers).astype(kind).tobytes())


def write_llm_c(path: Path, tokens: Any) -> None:
    """A shard of llm.c: 256 numbers of 32 bits, of which the third is how many tokens of 16 bits follow."""
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, np.uint16).tobytes())


def cut_rows(
    tokens: Sequence[int],
    length: int,
    stride: int | None = None,
    *,
    targets: bool = True,
    borders: Sequence[int] | None = None,
    ignore_index: int = -100,
) -> list[dict[str, list[int]]]:
    """The rows of one file, one token at a time.

    Args:
        borders: where documents begin.
    """
    rows = []
    for start in range(0, len(tokens) - length - targets + 1, stride or length):
        row = {"tokens": list(tokens[start : start + length])}
        if targets:
            row["targets"] = list(tokens[start + 1 : start + 1 + length])
        if borders is not None:
            segments, positions = [1], [0]
            for place in range(start + 1, start + length):
                begins = place in borders
                segments.append(segments[-1] + begins)
                positions.append(0 if begins else positions[-1] + 1)
            if targets:
                ends = [start + i + 1 in borders for i in range(length)]
                row["targets"] = [ignore_index if e else t for e, t in zip(ends, row["targets"], strict=True)]
            row |= {"segments": segments, "positions": positions}
        rows.append(row)
    return rows

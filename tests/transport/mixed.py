"""Batches of every size and type whose contents follow from their number. Workers import this without pytest."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from headrace import Dataset

LARGEST = 4 * 2**20
KINDS = ["floats", "bytes of pixels", "pair", "fields", "text", "tensor"]
LOOSE_KINDS = [*KINDS, "raw bytes", "record", "nested", "numbers"]


def size_of(number):
    """From a few bytes to several megabytes, small ones as often as large ones."""
    return max(1, int(math.exp(random.Random(number).uniform(0, math.log(LARGEST)))))


def pixels(number, n_bytes):
    array = np.full(n_bytes, number % 251, np.uint8)
    array[-1] = number // 251 % 256
    return array


def floats(number, n_bytes):
    return np.full(-(-n_bytes // 8), float(number))


@dataclass
class Record:
    number: int
    array: np.ndarray


def make(number, kind):
    """The sample of a batch; all samples of a batch are alike."""
    size = size_of(number)
    match kind:
        case "floats":
            return floats(number, size).reshape(1, -1)
        case "bytes of pixels":
            return pixels(number, size)
        case "pair":
            return pixels(number, size), number
        case "fields":
            return {"x": floats(number, size), "y": number, "name": f"number {number}"}
        case "text":
            return f"{number:_>{min(size, 100_000)}}"
        case "tensor":
            import torch

            return torch.full((-(-size // 4),), number % 1000, dtype=torch.float32)
        case "raw bytes":
            return bytes([number % 251]) * size
        case "record":
            return Record(number, pixels(number, size))
        case "nested":
            return [(number, [pixels(number, size), {"deep": floats(number, size // 2)}])]
        case "numbers":
            return [number] * min(size, 20_000)
    raise ValueError(kind)


class Mixed(Dataset):
    """Sample i belongs to batch i // size."""

    def __init__(self, batches, size, kinds):
        self.batches = batches
        self.size = size
        self.kinds = kinds

    def __len__(self):
        return self.batches * self.size

    def kind_of(self, number):
        return self.kinds[number % len(self.kinds)]

    def __getitem__(self, index):
        number = index // self.size
        return make(number, self.kind_of(number))

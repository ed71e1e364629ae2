"""What `headrace bench` loads: a handful of datasets that are typical, each in its own way."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.optional import import_extra, is_installed

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "headrace bench")

_ENDLESS = 2**20
_SEED = 0


@dataclass(frozen=True)
class Workload:
    """One dataset, and how it is cut into batches."""

    name: str
    make: Callable[[], Any]
    batch_size: int
    shuffle: bool = False


class Made:
    """An endless dataset, whose samples are made by a function of their number."""

    def __init__(self, make_sample: Callable[[int], Any]) -> None:
        self._make_sample = make_sample

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, index: int) -> Any:
        return self._make_sample(index)


def workloads() -> Iterator[Workload]:
    """All that can be run here."""
    yield Workload("arrays in memory, shuffled", _arrays, 256, shuffle=True)
    yield Workload("images, 3x224x224 float32", _images, 32)
    yield Workload("dicts of 20 small arrays", _fields, 64)
    yield Workload("lines of text", _lines, 256)
    if is_installed("PIL"):
        yield Workload("JPEGs, decoded by Pillow", _photographs, 32)


def _arrays() -> Any:
    return torch.utils.data.TensorDataset(torch.rand(2**18, 16), torch.arange(2**18))


def _images() -> Any:
    image = np.random.default_rng(_SEED).random((3, 224, 224), dtype=np.float32)
    return Made(lambda index: image.copy())


def _fields() -> Any:
    rows = np.random.default_rng(_SEED).random((20, 8), dtype=np.float32)
    return Made(lambda index: {f"field {i}": row.copy() for i, row in enumerate(rows)})


def _lines() -> Any:
    return Made(lambda index: f"{index}: the quick brown fox jumps over the lazy dog, and does it again and again")


def _photographs() -> Any:
    from PIL import Image

    noise = np.random.default_rng(_SEED).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((256, 256)).save(file, "JPEG")
    packed = file.getvalue()

    def decode(index: int) -> Any:
        return np.array(Image.open(io.BytesIO(packed)).convert("RGB").resize((224, 224)))

    return Made(decode)

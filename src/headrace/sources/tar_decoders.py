"""Turns the members of an archive into values, by the extension of their names. Nothing here unpickles."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.base.optional import import_extra

Decoder: TypeAlias = Callable[[bytes], Any]

_MOST_UNPACKED_BYTES = 1 << 32


def decode_image(content: bytes) -> npt.NDArray[Any]:
    """An image as a uint8 array of height, width and the three colours.

    Grey images and palettes become colours; transparency is dropped. Images of more than 8 bits (depth maps) keep their
    numbers, as an array with one channel.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    pillow = import_extra("PIL.Image", "pillow", "Decoding images")
    with pillow.open(io.BytesIO(content)) as image:
        if image.mode == "F" or image.mode.startswith("I"):
            return np.asarray(image)[..., np.newaxis]
        return np.asarray(image.convert("RGB"))


def decode_text(content: bytes) -> str:
    return content.decode("utf-8")


def decode_integer(content: bytes) -> int:
    return int(content)


def decode_array(content: bytes) -> npt.NDArray[Any]:
    """A NumPy array; one of Python objects is refused, since those are pickled."""
    array: npt.NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def decode_arrays(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Named NumPy arrays; a small file that would unpack to gigabytes is refused."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _MOST_UNPACKED_BYTES:
        raise ValueError(f"the arrays would take {unpacked} bytes; at most {_MOST_UNPACKED_BYTES} are unpacked")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


_IMAGES = "jpg jpeg png webp bmp gif tif tiff ppm pgm pbm pnm"
_INTEGERS = "cls cls2 class count index inx id"
_TEXTS = "txt text transcript"

DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(_IMAGES.split(), decode_image),
    **dict.fromkeys(_INTEGERS.split(), decode_integer),
    **dict.fromkeys(_TEXTS.split(), decode_text),
    "json": json.loads,
    "npy": decode_array,
    "npz": decode_arrays,
}
"""What `decode=True` means, by the last part of a field's name: `seg.png` is a `png`. The rest stays bytes."""


class SampleDecoder:
    """Makes samples of the contents of members: dicts of values by field."""

    def __init__(self, decoders: Mapping[str, Decoder | None]) -> None:
        self._decoders = decoders
        self._known: dict[bytes, tuple[str, Decoder | None]] = {}  # there are few fields, and many samples

    def __call__(self, key: bytes, contents: Mapping[bytes, bytes]) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": _text(key)}
        for field, content in contents.items():
            name, decoder = self._known.get(field) or self._find(field)
            sample[name] = content if decoder is None else decoder(content)
        return sample

    def _find(self, field: bytes) -> tuple[str, Decoder | None]:
        """The name of a field, and its decoder: that of its whole name, else of the part after the last dot."""
        name = _text(field)
        decoder = self._decoders.get(name, self._decoders.get(name.rpartition(".")[2]))
        self._known[field] = name, decoder
        return name, decoder


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")

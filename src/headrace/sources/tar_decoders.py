"""Turns the members of an archive into values, by the extension of their names. Nothing here unpickles."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.base.errors import MissingExtraError
from headrace.base.optional import import_extra
from headrace.sources.row_dicts import make_dicts
from headrace.sources.tar_samples import RawSamples, as_text

Decoder: TypeAlias = Callable[[bytes], Any]

Tell: TypeAlias = Callable[[int, str, bytes], None]
"""Hears of a sample that is bad: its number, what is wrong with it, and the content that is."""

_MOST_UNPACKED_BYTES = 1 << 32
_OUR_OWN_FILE = re.compile(r"\s*<_io\.BytesIO object at 0x[0-9a-fA-F]+>")


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


class _Fields(NamedTuple):
    """The names of a sample's values, the key among them, and how those of some are decoded."""

    names: list[str]
    decoders: list[tuple[str, Decoder]]


class SampleDecoder:
    """Makes samples of the contents of members: dicts of values by field."""

    def __init__(self, decoders: Mapping[str, Decoder | None]) -> None:
        self._decoders = decoders
        self._known: dict[tuple[bytes, ...], _Fields] = {}  # there are few, and many samples

    def __call__(self, raw: RawSamples, tell: Tell) -> list[dict[str, Any]]:
        """The samples that can be decoded; `tell` hears of the others, by their number.

        Raises:
            MissingExtraError: a decoder needs a library that is not installed.
        """
        names, decoders = self._known.get(raw.fields) or self._find(raw.fields)
        records = zip(_texts(raw.keys), *raw.columns, strict=True)
        if len(raw.keys) > 1:
            samples = make_dicts(names, records)
        else:  # there may be no other with these fields
            samples = [dict(zip(names, record, strict=True)) for record in records]
        return _decode_all(samples, decoders, tell) if decoders else samples

    def _find(self, fields: tuple[bytes, ...]) -> _Fields:
        """A decoder is that of the whole name of a field, else of the part after the last dot."""
        names = _texts(fields) if fields else []
        found = {name: self._decoders.get(name, self._decoders.get(name.rpartition(".")[2])) for name in names}
        decoders = [(name, decoder) for name, decoder in found.items() if decoder is not None]
        self._known[fields] = _Fields(["__key__", *names], decoders)
        return self._known[fields]


def _decode_all(samples: list[dict[str, Any]], decoders: list[tuple[str, Decoder]], tell: Tell) -> list[dict[str, Any]]:
    good = []
    for i, sample in enumerate(samples):
        try:
            for name, decode in decoders:
                sample[name] = decode(sample[name])
        except MissingExtraError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever a decoder raises, the sample is bad)
            tell(i, _describe(name, error), sample[name])
        else:
            good.append(sample)
    return good


def _describe(field: str, error: Exception) -> str:
    told = _OUR_OWN_FILE.sub("", f"{type(error).__name__}: {error}")  # libraries name the file that they were given
    return f"the field {field!r} cannot be decoded: {told}"


def _texts(names: Sequence[bytes]) -> list[str]:
    """Names as text, all in one go."""
    texts = as_text(b"\0".join(names)).split("\0")
    return texts if len(texts) == len(names) else list(map(as_text, names))  # an odd one may have a NUL within

"""Decoders of images and sounds: Pillow or TurboJPEG; soundfile."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.base.optional import import_extra
from headrace.sources.media import Decode

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".aif", ".au")
MODES = ("RGB", "RGBA", "L")
_JPEG = b"\xff\xd8\xff"
_ORIENTATION = 0x0112


def image_decoder(decoder: str | Callable[[bytes], Any], mode: str | None) -> Decode:
    """What makes the column `image` of the content of a file.

    Args:
        decoder: "pillow", "turbojpeg" (for JPEG files; others by Pillow), or a function of bytes.
        mode: "RGB", "RGBA" or "L"; None leaves images as they are stored.

    Raises:
        ValueError: there is no such decoder, or no such mode, or it cannot make that mode.
    """
    if mode not in (*MODES, None):
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))} or None, got {mode!r}.")
    if callable(decoder):
        return partial(_decode_own, own=decoder)
    if decoder not in _DECODERS:
        raise ValueError(f"decoder must be one of {', '.join(map(repr, _DECODERS))} or a function, got {decoder!r}.")
    if decoder != "pillow" and mode != "RGB":
        raise ValueError(f"mode={mode!r} needs decoder='pillow', got {decoder!r}.")
    return partial(_decode_image, decode=_DECODERS[decoder], mode=mode)


def _decode_own(content: bytes, path: str, own: Callable[[bytes], Any]) -> Mapping[str, Any]:
    return {"image": own(content)}


def _decode_image(content: bytes, path: str, decode: Callable[..., Any], mode: str | None) -> Mapping[str, Any]:
    return {"image": decode(content, mode)}


def decode_pillow(content: bytes, mode: str | None = "RGB") -> npt.NDArray[Any]:
    """An image as an array of height, width and channels, turned as its EXIF data says.

    Raises:
        OSError: it is damaged, or ends too early.
    """
    pillow = import_extra("PIL.Image", "pillow", "Decoding images")
    operations = import_extra("PIL.ImageOps", "pillow", "Decoding images")
    with pillow.open(io.BytesIO(content)) as opened:
        image = opened
        if image.getexif().get(_ORIENTATION, 1) != 1:
            image = operations.exif_transpose(image)
        if mode is not None and image.mode != mode:
            image = _converted(image, mode)
        pixels: npt.NDArray[Any] = np.array(image)
    return pixels if pixels.ndim > 2 else pixels[..., np.newaxis]


def _converted(image: Any, mode: str) -> Any:
    if image.mode == "F" or image.mode.startswith("I"):
        return image  # more than 8 bits: the numbers stay
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def _decode_turbojpeg(content: bytes, mode: str | None) -> npt.NDArray[Any]:
    """As Pillow, but a JPEG file without a turn by TurboJPEG."""
    if not content.startswith(_JPEG) or b"Exif" in content[:64]:
        return decode_pillow(content, mode)
    library = import_extra("turbojpeg", "turbojpeg", "Decoding images with TurboJPEG")
    pixels: npt.NDArray[Any] = _turbojpeg(library).decode(content, pixel_format=library.TJPF_RGB)
    return pixels


_kept: dict[str, Any] = {}


def _turbojpeg(library: Any) -> Any:
    if "turbojpeg" not in _kept:
        _kept["turbojpeg"] = library.TurboJPEG()
    return _kept["turbojpeg"]


_DECODERS: Mapping[str, Callable[..., Any]] = {
    "pillow": decode_pillow,
    "turbojpeg": _decode_turbojpeg,
}


def decode_sound(content: bytes, path: str, dtype: str = "float32") -> Mapping[str, Any]:
    """A sound as `audio`, an array of frames and channels, and its `sample_rate`.

    Raises:
        RuntimeError: it is damaged.
    """
    library = import_extra("soundfile", "audio", "Decoding sounds")
    frames, rate = library.read(io.BytesIO(content), dtype=dtype, always_2d=True)
    return {"audio": frames, "sample_rate": rate}

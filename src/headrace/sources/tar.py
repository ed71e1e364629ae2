"""Samples of tar archives, in WebDataset's naming: which blocks they come in, and how members are decoded."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.base.errors import MissingExtraError
from headrace.base.optional import import_extra
from headrace.base.world import keep_freed_memory
from headrace.sources.chunks import RecordChunk, make_dicts, skip_rows
from headrace.sources.compression import codec_by_name, is_compressed
from headrace.sources.files import Paths, is_local, list_files, open_range, open_stream
from headrace.sources.options import FileOptions
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, skip_bad
from headrace.sources.tar_archive import ArchiveWindow
from headrace.sources.tar_samples import Piece, RawSamples, as_text, cut_archive, read_samples

Decoder: TypeAlias = Callable[[bytes], Any]

Report: TypeAlias = Callable[[int, str, bytes], None]
"""Called for a bad sample with its number, what is wrong with it, and the bytes concerned."""

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

    def __call__(self, raw: RawSamples, report: Report) -> list[dict[str, Any]]:
        """The samples that can be decoded; `report` is called for the others.

        Raises:
            MissingExtraError: a decoder needs a library that is not installed.
        """
        names, decoders = self._known.get(raw.fields) or self._find(raw.fields)
        records = zip(_texts(raw.keys), *raw.columns, strict=True)
        if len(raw.keys) > 1:
            samples = make_dicts(names, records)
        else:  # there may be no other with these fields
            samples = [dict(zip(names, record, strict=True)) for record in records]
        return _decode_all(samples, decoders, report) if decoders else samples

    def _find(self, fields: tuple[bytes, ...]) -> _Fields:
        """A decoder is that of the whole name of a field, else of the part after the last dot."""
        names = _texts(fields) if fields else []
        found = {name: self._decoders.get(name, self._decoders.get(name.rpartition(".")[2])) for name in names}
        decoders = [(name, decoder) for name, decoder in found.items() if decoder is not None]
        self._known[fields] = _Fields(["__key__", *names], decoders)
        return self._known[fields]


def _decode_all(
    samples: list[dict[str, Any]], decoders: list[tuple[str, Decoder]], report: Report
) -> list[dict[str, Any]]:
    good = []
    for i, sample in enumerate(samples):
        try:
            for name, decode in decoders:
                sample[name] = decode(sample[name])
        except MissingExtraError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever a decoder raises, the sample is bad)
            report(i, _describe(name, error), sample[name])
        else:
            good.append(sample)
    return good


def _describe(field: str, error: Exception) -> str:
    text = _OUR_OWN_FILE.sub("", f"{type(error).__name__}: {error}")  # libraries name the file that they were given
    return f"the field {field!r} cannot be decoded: {text}"


def _texts(names: Sequence[bytes]) -> list[str]:
    """Names as text, all in one go."""
    texts = as_text(b"\0".join(names)).split("\0")
    return texts if len(texts) == len(names) else list(map(as_text, names))  # an odd one may have a NUL within


BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20  # before decoding
_RAW_BYTES = 4096  # of a bad record, to show
_THREADS = 8


class TarSource:
    """Samples of tar archives: dicts with the key of the sample as `__key__`, and a value for each of its members.

    Blocks are about `block_bytes` of an archive, found by a look at its headers. Where the archive is compressed, or
    far away, so that this look would cost about as much as reading it, the whole archive is a block.

    Guarantees: nothing is written to disk, whatever the names of members are; only regular files are read, and nothing
    is unpickled unless `decode` says so. At most `max_record_bytes` are held for a sample.

    Args:
        decode: True decodes by extension what `DECODERS` names, False leaves all members as bytes. A dict has decoders
            for more fields, or other ones, by name (`seg.png`) or its last part (`png`); None leaves a field as bytes:
            `{"pkl": pickle.loads, "jpg": None}`.
        split: whether to cut archives into blocks; None cuts those that are local and not compressed.

    Raises:
        ValueError: `split=True` for a compressed archive.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        decode: bool | Mapping[str, Decoder | None] = True,
        split: bool | None = None,
        options: FileOptions | None = None,
    ) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._decoders = {} if decode is False else {**DECODERS, **({} if decode is True else decode)}
        self._split = split
        self._options = options or FileOptions()
        self._block_bytes = self._options.block_bytes or BLOCK_BYTES
        self._max_record_bytes = self._options.max_record_bytes or MAX_RECORD_BYTES
        self._files: dict[str, FileVersion] | None = None
        self._blocks: tuple[Block, ...] | None = None

    def versions(self) -> list[FileVersion]:
        return list(self._by_path.values())

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; the headers of local archives are read once."""
        if self._blocks is None:
            keep_freed_memory()  # here, too: this process gets the samples that workers read
            files = self.versions()
            with ThreadPoolExecutor(min(_THREADS, len(files) or 1)) as threads:
                self._blocks = tuple(block for blocks in threads.map(self._cut, files) for block in blocks)
        return self._blocks

    def describe(self) -> dict[str, Any]:
        blocks, files = self.blocks(), self.versions()
        sizes = [file.size for file in files]
        return {
            "format": "tar",
            "files": len(files),
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            "blocks": len(blocks),
            "compression": sorted({codec for file in files if (codec := codec_by_name(file.path))}),
            "rows": None if any(block.rows is None for block in blocks) else sum(block.rows or 0 for block in blocks),
            "decoded": sorted(self._decoders),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The samples of a block from `first_row` on.

        Raises:
            RecordError: a sample cannot be decoded, has a field twice, is too large, or the archive is damaged; and
                `on_bad` is None.
        """
        # Which samples are bad shows only when they are decoded. If none may be, those before are skipped unseen.
        unseen, seen = (first_row, 0) if on_bad is None else (0, first_row)
        return skip_rows(self._chunks(block, unseen, on_bad), seen)

    def _chunks(self, block: Block, first: int, on_bad: OnBad | None) -> Iterator[RecordChunk]:
        samples: list[dict[str, Any]] = []
        n_bytes = 0
        for size, more in self._good_samples(block, first, on_bad):
            if n_bytes + size > _CHUNK_BYTES and samples:
                yield RecordChunk(samples)
                samples, n_bytes = [], 0
            samples += more
            n_bytes += size
        if samples:
            yield RecordChunk(samples)

    def _good_samples(
        self, block: Block, first: int, on_bad: OnBad | None
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The samples that can be decoded, some at a time, with the size of their members."""
        keep_freed_memory()
        decode = SampleDecoder(self._decoders)
        piece = Piece(block.start, block.stop, block.rows or 0)
        with self._open(self._by_path[block.path], block.start, block.stop) as file:
            window = ArchiveWindow(file, block.start, block.stop)
            for raw in read_samples(window, piece, first, self._max_record_bytes):
                report = partial(_report, on_bad, block, raw)
                if raw.problem is not None:
                    report(0, raw.problem, raw.found)
                else:
                    yield raw.n_bytes, decode(raw, report)

    @property
    def _by_path(self) -> dict[str, FileVersion]:
        if self._files is None:
            files = list_files(self._paths, self._options)
            self._files = {file.path: file for file in files}
        return self._files

    def _open(self, file: FileVersion, start: int, stop: int | None) -> BinaryIO:
        if is_compressed(file.path):
            return open_stream(file, self._options)
        return open_range(file, start, stop, self._options)

    def _cut(self, file: FileVersion) -> list[Block]:
        split = is_local(file.path) and not is_compressed(file.path) if self._split is None else self._split
        if not split:
            return [Block(file.path, 0, None, n_bytes=file.size or 0)]
        if is_compressed(file.path):
            raise ValueError(f"A compressed archive cannot be cut, got {file.path!r}. Unpack it, or pass split=None.")
        with self._open(file, 0, 0) as archive:
            pieces = cut_archive(ArchiveWindow(archive), self._block_bytes)
        return [
            Block(file.path, piece.start, piece.stop, piece.n_samples, (piece.stop or file.size or 0) - piece.start)
            for piece in pieces
        ]


def _report(on_bad: OnBad | None, block: Block, raw: RawSamples, i: int, problem: str, content: bytes) -> None:
    """Report what is wrong with sample `i`, or with the archive before the first one."""
    sample = f", sample {as_text(raw.keys[i])!r} at byte {raw.starts[i]}" if raw.keys[i] else ""
    skip_bad(BadRecord(block.path + sample, content[:_RAW_BYTES], problem), on_bad)

"""Arrays as rows: HDF5, Zarr and NumPy's files, in blocks along their chunks; windows of a time series as samples."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from headrace.base.errors import HeadraceError, RecordError, check_count
from headrace.base.optional import import_extra
from headrace.base.world import keep_freed_memory
from headrace.sources.chunks import ColumnChunk
from headrace.sources.files import Paths, check_unchanged, is_local, list_files
from headrace.sources.options import FileOptions
from headrace.sources.remote_file import check_version
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

Names: TypeAlias = "Sequence[str] | Mapping[str, str] | None"

_BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 2 << 20


@dataclass(frozen=True)
class Windows:
    """Windows of a time series as samples: `length` steps, and the `horizon` steps that follow them as targets.

    Window number i begins at step `i * stride`; none goes beyond the end.

    Attributes:
        length: steps of a window.
        stride: steps from the beginning of one window to that of the next.
        horizon: steps behind the window to be predicted, as `<name>_target`; none if 0.
        targets: the arrays that have targets; all if None.

    Raises:
        ValueError: a number is too small.

    Examples:
        >>> Windows(length=24, stride=1, horizon=6).count(100)
        71
    """

    length: int
    stride: int = 1
    horizon: int = 0
    targets: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_count("length", self.length, 1)
        check_count("stride", self.stride, 1)
        check_count("horizon", self.horizon, 0)
        if self.targets is not None:
            object.__setattr__(self, "targets", tuple(self.targets))

    def count(self, n_steps: int) -> int:
        """How many windows a series of so many steps has."""
        return max(0, (n_steps - self.length - self.horizon) // self.stride + 1)


class Shape(NamedTuple):
    """What is known of the arrays of a file without reading them.

    Attributes:
        arrays: their names, and the type and shape of each.
        chunk: how many entries along the first axis are stored together.
    """

    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    chunk: int

    @property
    def n_entries(self) -> int:
        return min((shape[0] for _, shape in self.arrays.values()), default=0)

    @property
    def entry_bytes(self) -> int:
        sizes = (dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64)) for dtype, shape in self.arrays.values())
        return max(1, sum(sizes))


class ArraySource(ABC):
    """Rows of arrays of one length: a dict with an entry of each, or with a window of each.

    Blocks are whole chunks of the file, as many as make about `block_bytes`, so that a shuffle decodes no chunk twice.

    Guarantees: files are opened in the process that reads them; only `arrays` are read.

    Args:
        arrays: which to read, by their names in the file; a dict renames them: `{"x": "group/images"}`. All if None.
        windows: makes samples of windows instead of entries.
    """

    format: str
    is_plain = True  # see `FileSource`
    tells_rows = True

    def __init__(
        self,
        paths: Paths,
        *,
        arrays: Names = None,
        windows: Windows | None = None,
        options: FileOptions | None = None,
    ) -> None:
        if isinstance(arrays, str):
            raise TypeError(f"`arrays` must be a list or dict of names, got {arrays!r}: pass [{arrays!r}].")
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        named = arrays if arrays is None or isinstance(arrays, Mapping) else {name: name for name in arrays}
        self._arrays = None if named is None else dict(named)
        self._windows = windows
        self._options = options or FileOptions()
        self._block_bytes = self._options.block_bytes or _BLOCK_BYTES
        self._files: dict[str, FileVersion] | None = None
        self._shapes: dict[str, Shape] = {}
        self._blocks: tuple[Block, ...] | None = None
        self._opened: tuple[int, str, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # open files stay here

    def versions(self) -> list[FileVersion]:
        if self._files is None:
            self._files = {file.path: file for file in self._list()}
        return list(self._files.values())

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; reads no array.

        Raises:
            RecordError: a file is damaged, or of another format.
            ValueError: the arrays of a file have different lengths, or there is no such array.
        """
        if self._blocks is None:
            keep_freed_memory()
            self._blocks = tuple(block for file in self.versions() for block in self._cut(file))
        return self._blocks

    def describe(self) -> dict[str, Any]:
        blocks, files = self.blocks(), self.versions()
        sizes = [file.size for file in files]
        first = self._shapes[files[0].path]
        return {
            "format": self.format,
            "files": len(files),
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            "blocks": len(blocks),
            "rows": sum(block.rows or 0 for block in blocks),
            "columns": {name: f"{dtype} {list(shape[1:])}" for name, (dtype, shape) in first.arrays.items()},
            "windows": None if self._windows is None else str(self._windows),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on.

        Raises:
            RecordError: a part of the file is damaged.
        """
        shape = self._shapes[block.path]
        per_row = 1 if self._windows is None else self._windows.stride
        n_chunks = max(1, _CHUNK_BYTES // (shape.entry_bytes * shape.chunk))  # whole ones: none is decoded twice
        at_once = max(1, n_chunks * shape.chunk // per_row)
        with self._reporting(block.path):
            arrays = self._take(block.path)
            for start in range(block.start + first_row, block.stop, at_once):
                yield self._rows(arrays, start, min(start + at_once, block.stop))
        self._check(block.path)

    def _rows(self, arrays: Mapping[str, Any], start: int, stop: int) -> Chunk:
        """The rows [start, stop): entries, or windows, which are views of the same steps."""
        windows = self._windows
        if windows is None:
            columns = {name: _load(array, name, start, stop) for name, array in arrays.items()}
            return ColumnChunk(columns, stop - start)
        span = windows.length + windows.horizon
        first, last = start * windows.stride, (stop - 1) * windows.stride + span
        columns = {}
        for name, array in arrays.items():
            steps = _load(array, name, first, last)
            columns[name] = _slide(steps[: len(steps) - windows.horizon], windows.length, windows.stride)
            if windows.horizon and (windows.targets is None or name in windows.targets):
                columns[f"{name}_target"] = _slide(steps[windows.length :], windows.horizon, windows.stride)
        return ColumnChunk(columns, stop - start)

    def _cut(self, file: FileVersion) -> list[Block]:
        with self._reporting(file.path):
            arrays = self._take(file.path)
        described = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        shape = Shape(described, max(map(_chunk_of, arrays.values())))
        lengths = {name: shape[0] for name, (_, shape) in shape.arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"All arrays of {file.path!r} must have the same length, got {lengths}. Pass `arrays`.")
        self._shapes[file.path] = shape
        n, unit = shape.n_entries, max(1, shape.chunk)
        n_rows = n if self._windows is None else self._windows.count(n)
        stride = 1 if self._windows is None else self._windows.stride
        per_block = max(1, self._block_bytes // (unit * shape.entry_bytes)) * unit
        borders = sorted({min(n_rows, -(-step // stride)) for step in range(0, n + per_block, per_block)})
        return [Block(file.path, a, b, b - a, (b - a) * stride * shape.entry_bytes) for a, b in pairwise(borders)]

    def _take(self, path: str) -> dict[str, Any]:
        """The arrays to read of a file, opened in this process, by column; those of the last file stay open.

        Raises:
            ValueError: there is no such array.
        """
        if self._opened is None or self._opened[:2] != (os.getpid(), path):
            self._check(path)
            found = self._find(self._open(path))
            wanted = {name: name for name in found} if self._arrays is None else self._arrays
            if missing := [name for name in wanted.values() if name not in found]:
                raise ValueError(f"`arrays` must be among {list(found)}, got {missing}.")
            if not wanted:
                raise ValueError("`arrays` must be at least one, and the file has none with a dimension.")
            self._opened = os.getpid(), path, {column: found[name] for column, name in wanted.items()}
        return self._opened[2]

    def _list(self) -> list[FileVersion]:
        files = list_files(self._paths, self._options)
        if far := [file.path for file in files if not is_local(file.path)]:
            raise ValueError(f"{self.format} files must be local, got {far[0]!r}. Copy them, or write them as Zarr.")
        return files

    def _check(self, path: str) -> None:
        self.versions()
        assert self._files is not None
        check_unchanged(self._files[path])

    @abstractmethod
    def _open(self, path: str) -> Any:
        """A file, open for reading."""

    @abstractmethod
    def _find(self, opened: Any) -> dict[str, Any]:
        """The arrays of a file by name: each has a `dtype`, a `shape`, and can be sliced."""

    @contextmanager
    def _reporting(self, path: str) -> Iterator[None]:
        """The library's errors as ours, with the file."""
        try:
            yield
        except RecordError as error:
            if path in str(error):
                raise
            raise RecordError(f"{path} is damaged: {error}.") from error
        except (HeadraceError, ImportError, TypeError, FileNotFoundError):
            raise
        except Exception as error:
            if isinstance(error, ValueError) and "`arrays`" in str(error):
                raise
            problem = f"{type(error).__name__}: {error}"
            raise RecordError(f"{path} is damaged, or no {self.format} file: {problem}.") from error


def _load(array: Any, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    part = np.asarray(array[start:stop])
    if len(part) != stop - start:
        raise RecordError(f"the array {name!r} ends at {start + len(part)}, before entry {stop}")
    return part


def _slide(steps: npt.NDArray[Any], length: int, stride: int) -> npt.NDArray[Any]:
    """Windows of steps, without a copy: [window, step, ...]."""
    windows = np.lib.stride_tricks.sliding_window_view(steps, length, axis=0)[::stride]
    return np.moveaxis(windows, -1, 1)


def _chunk_of(array: Any) -> int:
    chunks = getattr(array, "chunks", None)
    return int(chunks[0]) if chunks else 1


@final
class Hdf5Source(ArraySource):
    """Datasets of HDF5 files."""

    format = "hdf5"

    def _open(self, path: str) -> Any:
        return import_extra("h5py", "hdf5", "Reading HDF5 files").File(path.removeprefix("file://"), "r")

    def _find(self, opened: Any) -> dict[str, Any]:
        library = import_extra("h5py", "hdf5", "Reading HDF5 files")
        if self._arrays is not None:
            return {name: opened[name] for name in self._arrays.values() if name in opened}
        found: dict[str, Any] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, library.Dataset) and item.ndim:
                found[name] = item

        opened.visititems(visit)
        return found


@final
class ZarrSource(ArraySource):
    """Arrays of Zarr groups, or single arrays; a folder each, or a store."""

    format = "zarr"

    def _list(self) -> list[FileVersion]:
        paths = [self._paths] if isinstance(self._paths, (str, os.PathLike)) else self._paths
        return [_store_version(os.fspath(path).rstrip("/")) for path in paths]

    def _open(self, path: str) -> Any:
        library = import_extra("zarr", "zarr", "Reading Zarr")
        stored = dict(self._options.storage_options or {}) or None
        return library.open(path, mode="r", storage_options=None if is_local(path) else stored)

    def _check(self, path: str) -> None:
        check_version({file.path: file for file in self.versions()}[path], _store_version(path))

    def _find(self, opened: Any) -> dict[str, Any]:
        if hasattr(opened, "shape"):
            return {"array": opened}
        return {name: array for name, array in opened.arrays() if array.ndim}


def _store_version(path: str) -> FileVersion:
    """A store by what it says of its arrays; their chunks are files of their own.

    Raises:
        FileNotFoundError: there is no store.
    """
    if not is_local(path):
        return FileVersion(path, None, None)
    found = [name for name in ("zarr.json", ".zgroup", ".zarray", ".zmetadata") if os.path.exists(f"{path}/{name}")]
    if not found:
        raise FileNotFoundError(f"{path!r} must be a Zarr group or array: it has no zarr.json, .zgroup or .zarray.")
    digest = blake2b(digest_size=8)
    for name in sorted(found):
        with open(f"{path}/{name}", "rb") as opened:
            digest.update(opened.read())
    return FileVersion(path, None, digest.hexdigest())


@final
class NumpySource(ArraySource):
    """Arrays of `.npy` and `.npz` files, read in parts; those of compressed `.npz` files are loaded as a whole.

    They are not mapped into memory: a file that is cut off while it is mapped ends the process. Pickled objects are
    refused.

    Args:
        paths: files of rows that follow each other; or a dict of `.npy` files whose arrays are columns.
    """

    format = "numpy"

    def __init__(self, paths: Paths | Mapping[str, Any], **options: Any) -> None:
        self._columns = {n: os.fspath(p) for n, p in paths.items()} if isinstance(paths, Mapping) else None
        super().__init__(list(paths.values()) if isinstance(paths, Mapping) else paths, **options)

    def _cut(self, file: FileVersion) -> list[Block]:
        is_first = self._columns is None or file.path == next(iter(self._columns.values()))
        return super()._cut(file) if is_first else []

    def _open(self, path: str) -> Any:
        if self._columns is not None:
            return {name: _NpyArray(each) for name, each in self._columns.items()}
        if path.endswith(".npz"):
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: array for name, array in arrays.items() if array.ndim}
        return {"array": _NpyArray(path)}

    def _find(self, opened: Any) -> dict[str, Any]:
        found: dict[str, Any] = opened
        return found


class _NpyArray:
    """An array in a `.npy` file, of which parts are read.

    Raises:
        ValueError: it is no such file, has Python objects, or is stored by columns.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, is_by_columns, self.dtype = read(file)
            self._start = file.tell()
        if self.dtype.hasobject or not self.shape or (is_by_columns and len(self.shape) > 1):
            raise ValueError("it must be an array of numbers, by rows, with at least one dimension")

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        entry = int(np.prod(self.shape[1:], dtype=np.int64))
        start, stop = rows.start, min(rows.stop, self.shape[0])
        with open(self._path, "rb") as file:
            numbers = np.fromfile(
                file, self.dtype, (stop - start) * entry, offset=self._start + start * entry * self.dtype.itemsize
            )
        n = len(numbers) // entry if entry else stop - start
        return numbers[: n * entry].reshape(n, *self.shape[1:])

"""Sample structures to try: each is a function from the index of a sample to the sample."""

from __future__ import annotations

from collections import OrderedDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

Point = namedtuple("Point", ["x", "y"])


class FrozenMapping(Mapping):
    """A mapping that can be rebuilt from a dict."""

    def __init__(self, items: Mapping) -> None:
        self._items = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class OddMapping(FrozenMapping):
    """A mapping that cannot be rebuilt: its constructor wants something else."""

    def __init__(self, keys: Any, values: Any) -> None:
        super().__init__(dict(zip(keys, values, strict=True)))


class FrozenSequence(Sequence):
    """A sequence that can be rebuilt from a list."""

    def __init__(self, items: Any) -> None:
        self._items = list(items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


class OddSequence(FrozenSequence):
    """A sequence that cannot be rebuilt: its constructor wants something else."""

    def __init__(self, items: Any, note: str) -> None:
        super().__init__(items)
        self.note = note


@dataclass
class Record:
    """A user's own kind of batch."""

    name: str
    parts: Any


class RichDict(dict):
    """A dict with an attribute of its own."""


class RichList(list):
    """A list with an attribute of its own."""


NUMPY_DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
LAYOUTS = ["C", "reversed axes", "channels last", "every second", "offset", "read-only"]


def random_array(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array of random bits, infinities among them; NaNs are all the same one.

    torch reads NumPy scalars as Python floats, which loses the unused bits of other NaNs.
    """
    draw = np.random.default_rng([seed, 7])
    if dtype == "?":
        return draw.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    array = np.frombuffer(bytearray(draw.bytes(size)), dtype=dtype)
    parts = array.view(f"f{array.dtype.itemsize // 2}") if array.dtype.kind == "c" else array
    if parts.dtype.kind == "f":
        parts[np.isnan(parts)] = np.nan
    return array.reshape(shape)


def random_tensor(seed: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of random bits."""
    if dtype == torch.bool:
        return torch.from_numpy(random_array(seed, "?", shape))
    raw = random_array(seed, "u1", (*shape, dtype.itemsize))
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def arrange(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values, shape and dtype in another memory layout."""
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
        return array
    if array.ndim == 0 or layout == "C":
        return array
    if layout == "reversed axes":
        return np.ascontiguousarray(array.T).T
    if layout == "channels last":
        first = max(0, array.ndim - 3)
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, first, -1)), -1, first)
    room = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
    view = room[..., 1::2] if layout == "every second" else room[..., 1 : 1 + array.shape[-1]]
    view[...] = array
    return view


def arrange_tensor(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, shape and dtype in another memory layout."""
    if tensor.ndim == 0 or layout in ("C", "read-only"):
        return tensor
    if layout == "reversed axes":
        backwards = tuple(reversed(range(tensor.ndim)))
        return tensor.permute(backwards).contiguous().permute(backwards)
    if layout == "channels last":
        first = max(0, tensor.ndim - 3)
        return tensor.movedim(first, -1).contiguous().movedim(-1, first)
    room = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
    view = room[..., 1::2] if layout == "every second" else room[..., 1 : 1 + tensor.shape[-1]]
    view.copy_(tensor)
    return view


@dataclass(frozen=True)
class Array:
    """NumPy arrays, or NumPy scalars if `shape` is None."""

    dtype: str
    shape: tuple[int, ...] | None
    layout: str = "C"

    def __call__(self, i: int) -> Any:
        array = random_array(i, self.dtype, self.shape or ())
        return array[()] if self.shape is None else arrange(array, self.layout)


@dataclass(frozen=True)
class Tensor:
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str = "C"

    def __call__(self, i: int) -> torch.Tensor:
        return arrange_tensor(random_tensor(i, self.dtype, self.shape), self.layout)


_SCALARS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i * 37 - 5,
    "bool": lambda i: i % 3 == 0,
    "float": lambda i: [i / 7, float("nan"), -0.0, float("inf")][i % 4],
    "str": lambda i: f"é{i}",
    "bytes": lambda i: bytes([i % 256]),
    "np.str_": lambda i: np.str_(f"n{i}"),
    "range": lambda i: range(i, i + 2),
    "empty list": lambda i: [],
    "empty tuple": lambda i: (),
    "empty dict": lambda i: {},
}


@dataclass(frozen=True)
class Scalar:
    kind: str

    def __call__(self, i: int) -> Any:
        return _SCALARS[self.kind](i)


def _rich(container: Any) -> Any:
    container.note = "kept"
    return container


_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": lambda items: {f"k{j}": item for j, item in enumerate(items)},
    "OrderedDict": lambda items: OrderedDict((j, item) for j, item in enumerate(items)),
    "defaultdict": lambda items: defaultdict(list, {f"d{j}": item for j, item in enumerate(items)}),
    "RichDict": lambda items: _rich(RichDict(enumerate(items))),
    "FrozenMapping": lambda items: FrozenMapping(dict(enumerate(items))),
    "OddMapping": lambda items: OddMapping(range(len(items)), items),
    "list": list,
    "tuple": tuple,
    "namedtuple": lambda items: Point(items[0], items[-1]),
    "UserList": UserList,
    "RichList": lambda items: _rich(RichList(items)),
    "deque": deque,
    "FrozenSequence": FrozenSequence,
    "OddSequence": lambda items: OddSequence(items, note="kept"),
}


@dataclass(frozen=True)
class Container:
    kind: str
    parts: tuple[Callable[[int], Any], ...]

    def __call__(self, i: int) -> Any:
        return _CONTAINERS[self.kind]([part(i + 100 * j) for j, part in enumerate(self.parts)])


shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)
layouts = st.sampled_from(LAYOUTS)
arrays = st.builds(Array, st.sampled_from(NUMPY_DTYPES), shapes, layouts)
# Scalars of uint64 are one of the intended differences.
numpy_scalars = st.builds(Array, st.sampled_from([dtype for dtype in NUMPY_DTYPES if dtype != "u8"]), st.none())
tensors = st.builds(Tensor, st.sampled_from(TORCH_DTYPES), shapes, layouts)
scalars = st.builds(Scalar, st.sampled_from(sorted(_SCALARS)))
leaves = st.one_of(scalars, numpy_scalars, arrays, tensors)
structures = st.recursive(
    leaves,
    lambda parts: st.builds(
        Container, st.sampled_from(sorted(_CONTAINERS)), st.lists(parts, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=5,
)

_OBJECTS: dict[str, Callable[[int], Any]] = {
    "None": lambda i: None,
    "complex": lambda i: complex(i, -i),
    "int of 70 bits": lambda i: 2**70 + i,
    "set": lambda i: {i, "x"},
    "slice": lambda i: slice(i),
    "datetime": lambda i: datetime(2024, 1, 1 + i % 28),
    "dtype": lambda i: torch.bfloat16,
    "class": lambda i: Point,
    "array of objects": lambda i: np.array([i, "x", None], dtype=object),
    "array of strings": lambda i: np.array(["a", "é" * i]),
    "array of dates": lambda i: np.array(["2024-01-02"], "M8[D]") + i,
    "structured array": lambda i: np.array([(i, 0.5)], [("a", "i4"), ("b", "f8", (2,))]),
    "array in Fortran's order": lambda i: np.asfortranarray(random_array(i, "f4", (3, 4))),
    "tensor that requires a gradient": lambda i: torch.full((3,), float(i), requires_grad=True),
    "parameter": lambda i: torch.nn.Parameter(torch.full((3,), float(i))),
    "long string": lambda i: f"é{i}" * 50_000,
    "long bytes": lambda i: bytes([i % 256]) * 100_000,
    "Record": lambda i: Record(f"r{i}", [torch.full((2,), i), np.arange(i), {"k": b"v"}]),
}


@dataclass(frozen=True)
class Object:
    """What no collate function takes, but a user's own may leave as it is."""

    kind: str

    def __call__(self, i: int) -> Any:
        return _OBJECTS[self.kind](i)


every_object = Container("list", tuple(Object(kind) for kind in _OBJECTS))
_ARRANGED = [((), "C"), ((0, 2), "C"), *(((2, 3, 2), layout) for layout in LAYOUTS)]
every_leaf = Container(
    "tuple",
    (
        *(Scalar(kind) for kind in sorted(_SCALARS)),
        *(Array(dtype, None) for dtype in NUMPY_DTYPES if dtype != "u8"),
        *(Array(dtype, shape, layout) for dtype in NUMPY_DTYPES for shape, layout in _ARRANGED),
        *(Tensor(dtype, shape, layout) for dtype in TORCH_DTYPES for shape, layout in _ARRANGED),
    ),
)
"""One of each kind."""

large = st.sampled_from([Array("f4", (3, 100, 80), "channels last"), Array("u1", (70_000,)), Array("f8", (90, 100))])
large |= st.builds(Tensor, st.just(torch.bfloat16), st.just((3, 120, 100)), layouts)

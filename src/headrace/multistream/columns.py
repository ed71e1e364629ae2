"""Items as arrays: what the default collation makes of each step, made for many steps at a time.

Columns are arrays in the containers that the items are. Their first dimensions are steps and positions; strings are
arrays of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.base.containers import Kind, kind_of, map_leaves
from headrace.base.errors import CollateError, CollateTypeError
from headrace.batch.collate import Collator, is_collated_by_default
from headrace.frameworks.framework import Allocate, Array, tensor_type
from headrace.frameworks.numpy_arrays import NumpyArrays
from headrace.multistream.sequence_reader import Run

_NUMBERS: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


class NotUniformError(Exception):
    """Items are not of one type and shape, or are of a type that has no arrays."""


class _UniformCollator(Collator):
    """Collates items of one type and shape into NumPy arrays, and refuses all others."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        kinds = set(map(type, samples))
        if len(kinds) != 1:
            raise NotUniformError
        [kind] = kinds
        if kind in (str, bytes) and isinstance(samples, list):  # those of tuples are collated to tuples
            return np.array(samples, dtype=object)
        if issubclass(kind, np.ndarray) or kind is tensor_type():
            return self._stack(samples)
        if kind in _NUMBERS:
            return np.array(samples, dtype=_NUMBERS[kind])
        is_container = kind_of(kind) is not Kind.LEAF and is_collated_by_default(kind)
        if not is_container and not issubclass(kind, (np.number, np.bool_)):
            raise NotUniformError
        return super().__call__(samples)

    def _stack(self, samples: Sequence[Any]) -> Any:
        if len({(sample.dtype, sample.shape) for sample in samples}) != 1:
            raise NotUniformError
        stacked = self.framework.stack(samples)
        if stacked.dtype.kind not in "biufc":
            raise NotUniformError
        return stacked


_collate_uniformly = _UniformCollator(NumpyArrays())


def columns_of(run: Run) -> Any:
    """A run as columns, whose first dimension is that of its items.

    Raises:
        NotUniformError: its items cannot be columns.
    """
    if isinstance(run, np.ndarray):
        return run
    if isinstance(run, Mapping):
        return {name: columns_of(column) for name, column in run.items()}
    try:
        return _collate_uniformly(run)
    except (CollateError, CollateTypeError, KeyError, OverflowError) as error:
        raise NotUniformError from error


def listed(run: Run) -> list[Any]:
    """A run as a list of items."""
    if isinstance(run, Mapping):
        columns = [listed(column) for column in run.values()]
        return [dict(zip(run, values, strict=True)) for values in zip(*columns, strict=True)]
    return list(run)


def python_numbers(run: Run) -> list[bool]:
    """For each array in the columns of a run, whether its items are numbers of Python's own."""
    if isinstance(run, np.ndarray):
        return [False]
    if isinstance(run, Mapping):
        return [is_number for column in run.values() for is_number in python_numbers(column)]
    found: list[bool] = []
    map_leaves(lambda leaf: found.append(type(leaf) in _NUMBERS), run[0])
    return found


def item_at(columns: Any, step: int, number: int, are_numbers: Sequence[bool]) -> Any:
    """One item of columns of (steps, positions), of the types that it had; tuples have become lists."""
    leaves = [leaf[step, number] for leaf in leaves_of(columns)]
    return rebuilt(columns, [x.item() if is_number else x for x, is_number in zip(leaves, are_numbers, strict=True)])


def empty_like(item: Any) -> Any:
    """An item such as this, that says nothing; as `empty_item` is in columns."""

    def emptied(leaf: Any) -> Any:
        if isinstance(leaf, (*_NUMBERS, str, bytes, np.generic)):
            return type(leaf)()
        if isinstance(leaf, np.ndarray):
            return np.zeros_like(leaf)
        return leaf.new_zeros(leaf.shape) if hasattr(leaf, "new_zeros") else leaf

    return map_leaves(emptied, item)


def layout_of(columns: Any, dimensions: int = 1) -> Any:
    """What columns must have in common to go together: containers, types, shapes without the first dimensions."""
    if isinstance(columns, np.ndarray):
        return columns.dtype, columns.shape[dimensions:]
    return map_leaves(lambda leaf: (leaf.dtype, leaf.shape[dimensions:]), columns)


def leaves_of(columns: Any) -> list[Array]:
    """The arrays in columns, in the order of `rebuilt`."""
    if isinstance(columns, np.ndarray):
        return [columns]
    leaves: list[Array] = []
    map_leaves(leaves.append, columns)
    return leaves


def rebuilt(columns: Any, leaves: Sequence[Any]) -> Any:
    """The containers of columns, with other arrays in them."""
    following = iter(leaves)
    return map_leaves(lambda _: next(following), columns)


def empty_item(leaf: Array) -> Any:
    """What stands where there is no item."""
    return (type(leaf.flat[0])() if leaf.size else "") if leaf.dtype == object else 0


def following_items(leaf: Array, after: Sequence[Array | None], seams: Array, fill: int, allocate: Allocate) -> Array:
    """What comes after each item of an array of (steps, positions): that of the next step, or `fill` at the seams.

    Args:
        after: for each position the item after the last step, as an array of one; None if it has ended.

    Raises:
        CollateError: `fill` is no value of the array's type.
    """
    shifted = allocate(leaf.shape, leaf.dtype)
    shifted[:-1] = leaf[1:]
    value = empty_item(leaf) if leaf.dtype == object else _checked_fill(fill, leaf.dtype)
    for position, one in enumerate(after):
        shifted[-1, position] = value if one is None else one[0]
    shifted[seams] = value
    return shifted


def _checked_fill(fill: int, dtype: np.dtype[Any]) -> int:
    if dtype.kind in "fc" or (dtype.kind in "iu" and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max):
        return fill
    raise CollateError(
        f"targets need a type that holds ignore_index={fill}, got {dtype}. Pass an ignore_index that it holds, or "
        "items of another type."
    )


def cut_into_chunks(leaf: Array, length: int, *, batch_first: bool, allocate: Allocate) -> Array:
    """Steps cut into chunks: an array of (chunks, length, positions), or of (chunks, positions, length)."""
    chunks = leaf.reshape(len(leaf) // length, length, *leaf.shape[1:])
    if not batch_first:
        return chunks
    out = allocate((len(chunks), chunks.shape[2], length, *chunks.shape[3:]), leaf.dtype)
    out[...] = chunks.swapaxes(1, 2)
    return out


def join_side_by_side(parts: Sequence[Any], axis: int) -> Any:
    """Columns side by side along the axis of positions.

    Raises:
        NotUniformError: they do not go together.
    """
    if len(parts) == 1:
        return parts[0]
    if any(layout_of(part, axis + 1) != layout_of(parts[0], axis + 1) for part in parts):
        raise NotUniformError
    leaves = zip(*map(leaves_of, parts), strict=True)
    return rebuilt(parts[0], [np.concatenate(group, axis=axis) for group in leaves])


def cut_step(columns: Any, step: int, wrap: Callable[[Array], Any]) -> Any:
    """The batch of one step."""

    def cut(leaf: Array) -> Any:
        return leaf[step].tolist() if leaf.dtype == object else wrap(leaf[step])

    return cut(columns) if isinstance(columns, np.ndarray) else map_leaves(cut, columns)

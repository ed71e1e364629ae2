"""Collates samples as they arrive: large arrays go straight into their row of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from headrace.base.containers import Kind, kind_of
from headrace.base.optional import loaded
from headrace.batch.collate import Collator, is_collated_by_default, register_own
from headrace.frameworks.framework import Array, Framework, tensor_type

_LARGE = 2**15  # bytes of an array; for smaller ones, looking at each costs more than it saves
_WORTHWHILE = 2**21  # bytes of a batch; a smaller one stays in the cache until its samples are stacked
_DEPTH = 2  # how many containers, one in another, are searched for large arrays
_DTYPES = frozenset("?bBhHiIlLqQefdFD")  # what every framework can hold


class RowBuilder:
    """Collates samples as they arrive.

    A large array is copied into its row of the batch when its sample is added: it is still in the CPU's cache then, and
    its memory serves the next sample. The first sample fixes which arrays these are. If a later one does not fit, or
    if the batch is small, the samples are only kept.

    Guarantees: the batch, or the error, is the one that `collator(samples)` gives; samples are not changed. Only a
    dataset that fills one large array again and again and returns it each time sees a difference: its rows are the
    successive contents, not copies of the last.

    Args:
        size: how many samples will come at most; memory is taken for all of them at the first.

    Examples:
        >>> from headrace.frameworks import framework_of
        >>> builder = RowBuilder(Collator(framework_of("numpy")), 2)
        >>> builder.add((np.zeros(10**6), 7))
        >>> builder.add((np.ones(10**6), 8))
        >>> arrays, numbers = builder.finish()
        >>> arrays.shape, numbers.tolist()
        ((2, 1000000), [7, 8])
    """

    __slots__ = ("_collator", "_samples", "_size", "add")

    add: Callable[[Any], None]
    """Take the next sample."""

    def __init__(self, collator: Collator, size: int) -> None:
        self._collator = collator
        self._size = size
        self._samples: list[Any] = []
        # A collator of another class may look into the samples, and one row is no sooner copied than one batch.
        self.add = self._add_first if size > 1 and type(collator) is Collator else self._samples.append

    @property
    def only_keeps(self) -> bool:
        """Whether the samples are only kept, so that they may as well come all at once."""
        return self.add == self._samples.append

    def extend(self, samples: list[Any]) -> None:
        """Take the next samples."""
        rest = iter(samples)
        for sample in rest:
            self.add(sample)
            if self.only_keeps:  # known after the first
                self._samples.extend(rest)

    def finish(self) -> Any:
        """The batch of all samples.

        Raises:
            CollateError: a `RuntimeError`: shapes or lengths differ. Names the field and the shapes.
            CollateTypeError: a `TypeError`: some type is not known; see `register_collate`.
            IndexError: there was no sample.
        """
        return self._collator(self._samples)

    def _add_first(self, sample: Any) -> None:
        if not self._samples:
            layout = _layout_with_memory(sample, self._size, self._collator.framework)
            self.add = self._samples.append if layout is None else _Stripping(layout, self._samples).add
        self.add(sample)  # any sample, if the caller holds on to this method


class _Stripping:
    """Adds samples to a list, their large arrays exchanged for `Rows`; as they are, as soon as one does not fit."""

    def __init__(self, layout: _Layout, samples: list[Any]) -> None:
        self._layout: _Layout | None = layout
        self._samples = samples

    def add(self, sample: Any) -> None:
        samples = self._samples
        if self._layout is not None:
            try:
                sample = self._layout.strip(sample, len(samples))
            except _Misfit:
                samples[:] = [self._layout.restore(stripped, i) for i, stripped in enumerate(samples)]
                self._layout = None
        samples.append(sample)


class _Misfit(Exception):  # noqa: N818 (it never leaves this module)
    """A sample is not laid out like the first."""


class _Layout(Protocol):
    """Where the large arrays are in a value."""

    def strip(self, value: Any, i: int) -> Any:
        """Copy the arrays into row `i`. Returns the value with `Rows` in their place.

        Raises:
            _Misfit: the value is laid out otherwise.
        """

    def restore(self, stripped: Any, i: int) -> Any:
        """The value again, with arrays over row `i`."""


class Rows:
    """The rows of one field, one array; in stripped samples it stands where their own arrays were."""

    __slots__ = ("_array", "_dtype", "_framework", "_is_tensor", "_kind", "_shape", "_strides", "row_bytes")

    def __init__(self, first: Array, kind: type) -> None:
        self._kind: Any = kind
        self._is_tensor = kind is not np.ndarray
        self._dtype, self._shape, self._strides = first.dtype, first.shape, first.strides
        self.row_bytes = first.nbytes

    def allocate(self, n: int, framework: Framework) -> None:
        """Get the memory for `n` rows; needed before anything else."""
        self._array = framework.allocate((n, *self._shape), self._dtype)
        self._framework = framework

    def strip(self, value: Any, i: int) -> Rows:
        if type(value) is not self._kind:
            raise _Misfit
        try:
            array = value.numpy() if self._is_tensor else value
            if array.shape != self._shape or array.dtype != self._dtype:
                raise _Misfit
            if array.strides != self._strides and not _is_plain(array, self._is_tensor):
                raise _Misfit
            self._array[i] = array
        except (TypeError, RuntimeError, IndexError):  # a tensor that NumPy cannot read, or more samples than expected
            raise _Misfit from None
        return self

    def restore(self, stripped: Any, i: int) -> Any:
        array = self._array[i, ...]  # an array in any case; `[i]` may be a scalar
        return self._as_tensor(array) if self._is_tensor else array

    def batch(self, n: int) -> Any:
        """The framework's array over the first `n` rows."""
        array = self._array if n == len(self._array) else self._array[:n]
        return self._framework.wrap_host(array) if self._is_tensor else self._framework.wrap(array)

    @staticmethod
    def _as_tensor(array: Array) -> Any:
        return loaded("torch").from_numpy(array)  # type: ignore[union-attr]


def _collate_rows(samples: Sequence[Any], collator: Collator) -> Any:
    rows: Rows = samples[0]
    return rows.batch(len(samples))


register_own(Rows, _collate_rows)


class _Fields:
    """The layout of a dict, list, tuple or named tuple, by the keys or positions of what has large arrays in it."""

    def __init__(self, kind: type, layouts: list[tuple[Any, _Layout]]) -> None:
        self._kind = kind
        self._layouts = layouts
        self._open: Callable[[Any], Any] = dict if kind is dict else list
        self._close = partial(tuple.__new__, kind) if issubclass(kind, tuple) else None

    def strip(self, value: Any, i: int) -> Any:
        if type(value) is not self._kind:
            raise _Misfit
        contents = self._open(value)
        try:
            for key, layout in self._layouts:
                contents[key] = layout.strip(contents[key], i)
        except LookupError:
            raise _Misfit from None
        return contents if self._close is None else self._close(contents)

    def restore(self, stripped: Any, i: int) -> Any:
        contents = self._open(stripped)
        for key, layout in self._layouts:
            contents[key] = layout.restore(contents[key], i)
        return contents if self._close is None else self._close(contents)


def _layout_with_memory(first: Any, size: int, framework: Framework) -> _Layout | None:
    """The layout of samples like the first, with memory for `size` of them; None if that would not pay."""
    found: list[Rows] = []
    layout = _layout_of(first, _DEPTH, found)
    if size * sum(rows.row_bytes for rows in found) < _WORTHWHILE:
        return None
    try:
        for rows in found:
            rows.allocate(size, framework)
    except MemoryError:  # `size` may be far more than will come
        return None
    return layout


def _layout_of(value: Any, depth: int, found: list[Rows]) -> _Layout | None:
    """The layout of values like this one, or None if it has no large arrays; the rows in it are added to `found`."""
    kind = type(value)
    return (_finders.get(kind) or _finder_of(kind))(value, depth, found)


def _finder_of(kind: type) -> _Finder:
    finder: _Finder = _find_nothing
    if kind_of(kind) is Kind.NAMED_TUPLE and kind.__bases__ == (tuple,) and "__iter__" not in vars(kind):
        finder = _find_in_sequence
    elif kind is tensor_type():
        finder = _find_in_tensor
    return _finders.setdefault(kind, finder)


def _find_nothing(value: Any, depth: int, found: list[Rows]) -> None:
    return None


def _find_in_array(value: Array, depth: int, found: list[Rows]) -> Rows | None:
    return _rows_of(value, np.ndarray, found) if value.nbytes >= _LARGE else None


def _find_in_tensor(value: Any, depth: int, found: list[Rows]) -> Rows | None:
    try:
        return _rows_of(value.numpy(), type(value), found) if value.nbytes >= _LARGE else None
    except (TypeError, RuntimeError):  # on a device, sparse, in a graph, or of a type that NumPy lacks
        return None


def _find_in_dict(value: dict[Any, Any], depth: int, found: list[Rows]) -> _Layout | None:
    return _fields_of(dict, value.items(), depth, found)


def _find_in_sequence(value: Any, depth: int, found: list[Rows]) -> _Layout | None:
    return _fields_of(type(value), enumerate(value), depth, found)


def _fields_of(kind: type, items: Iterable[tuple[Any, Any]], depth: int, found: list[Rows]) -> _Layout | None:
    if depth == 0 or not is_collated_by_default(kind):
        return None
    layouts = []
    for key, item in items:
        layout = _layout_of(item, depth - 1, found)
        if layout is not None:
            layouts.append((key, layout))
    return _Fields(kind, layouts) if layouts else None


_Finder: TypeAlias = Callable[[Any, int, list[Rows]], "_Layout | None"]
# Exact types only: what is derived from them may iterate, or look, in its own way.
_finders: dict[type, _Finder] = {
    np.ndarray: _find_in_array,
    dict: _find_in_dict,
    tuple: _find_in_sequence,
    list: _find_in_sequence,
}


def _rows_of(array: Array, kind: type, found: list[Rows]) -> Rows | None:
    dtype = array.dtype
    if dtype.char not in _DTYPES or not dtype.isnative or not _is_plain(array, kind is not np.ndarray):
        return None
    if not is_collated_by_default(kind):
        return None
    found.append(Rows(array, kind))
    return found[-1]


def _is_plain(array: Array, is_tensor: bool) -> bool:
    """Whether stacking makes a C-contiguous batch of such arrays.

    torch keeps the layout of tensors of four and more dimensions, and where a dimension has size 1, the strides may
    tell of another layout although the memory is the same.
    """
    if not array.flags.c_contiguous:
        return False
    return not is_tensor or array.ndim < 4 or array.strides == array.reshape(-1).reshape(array.shape).strides

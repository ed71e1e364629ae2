"""Sequences of different lengths as one batch: padded, or packed into rows of one length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from headrace.base.containers import Kind, kind_of
from headrace.base.errors import CollateError, CollateTypeError
from headrace.batch.collate import Collator, FrameworkCollate
from headrace.frameworks.framework import Allocate, Array, empty_aligned, tensor_type
from headrace.frameworks.numpy_arrays import as_array

Path = tuple[Any, ...]


class Padded(NamedTuple):
    """A padded batch of sequences, and how long each of them really is."""

    values: Any
    lengths: Any


def pad_collate(
    *,
    fields: Iterable[Any] | None = None,
    sort: bool = False,
    lengths: bool = True,
    padding_value: float = 0,
    batch_first: bool = True,
    multiple_of: int = 1,
) -> PadCollate:
    """A `collate_fn` that pads each batch to its own longest sequence, along the first dimension of the samples.

    Sequences are arrays and tensors of one or more dimensions, and lists of numbers; they may lie anywhere in tuples,
    dicts and named tuples. Everything else is collated as by default.

    Args:
        fields: which fields to pad, each a key (`"tokens"`, `0`) or a tuple of keys that leads to a nested one
            (`("text", "tokens")`). All sequences if None. Sequences not named are stacked.
        sort: order the samples of the batch by the length of the first padded field, longest first.
        lengths: give each padded field as `Padded(values, lengths)`, or as its values alone.
        padding_value: what the missing places are filled with.
        batch_first: the result's first two dimensions are (batch, time), or else (time, batch).
        multiple_of: round the padded length up to a multiple of this.

    Raises:
        ValueError: `multiple_of` is less than 1, or a position in `fields` is negative.

    Examples:
        >>> batch = pad_collate(sort=True)([[7], [1, 2, 3]])
        >>> batch.values.tolist(), batch.lengths.tolist()
        ([[1, 2, 3], [7, 0, 0]], [3, 1])
    """
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}.")
    if isinstance(fields, str):
        fields = [fields]
    paths = None if fields is None else tuple(f if isinstance(f, tuple) else (f,) for f in fields)
    if any(isinstance(key, int) and key < 0 for path in paths or () for key in path):
        raise ValueError(f"fields must be counted from the front, got {paths}.")
    return PadCollate(paths, sort, lengths, padding_value, batch_first, multiple_of)


@dataclass(frozen=True)
class PadCollate(FrameworkCollate):
    """See `pad_collate`, which makes it."""

    fields: tuple[Path, ...] | None
    sort: bool
    lengths: bool
    padding_value: float
    batch_first: bool
    multiple_of: int

    def collate_into(self, samples: Sequence[Any], collator: Collator) -> Any:
        first = samples[0]
        paths = list(_sequence_paths(first)) if self.fields is None else self.fields
        for path in paths:
            _follow(first, path)
        if self.sort:
            if not paths:
                raise CollateError(f"pad_collate(sort=True) must find a sequence in each sample, got {first!r}.")
            samples = sorted(samples, key=lambda sample: len(_follow(sample, paths[0])), reverse=True)
        return _PaddingCollator(collator, self, self.fields)(samples)


class _PaddingCollator(Collator):
    """The default collation, except that the fields to pad are padded. `fields` are seen from where it stands."""

    def __init__(self, collator: Collator, options: PadCollate, fields: tuple[Path, ...] | None) -> None:
        super().__init__(collator.framework)
        self._options = options
        self._fields = fields

    def __call__(self, samples: Sequence[Any]) -> Any:
        if _is_sequence(samples[0]) if self._fields is None else () in self._fields:
            return self._pad(samples)
        return super().__call__(samples)

    def at(self, key: Any) -> Collator:
        if self._fields is None:
            return self
        return _PaddingCollator(self, self._options, tuple(path[1:] for path in self._fields if path[:1] == (key,)))

    def _pad(self, samples: Sequence[Any]) -> Any:
        sequences = [_as_sequence(sample) for sample in samples]
        filled = next((sequence for sequence in sequences if len(sequence)), None)
        if filled is not None:  # an empty list has neither a type nor a shape of its own
            is_empty_list = [isinstance(sample, list) and not sample for sample in samples]
            sequences = [filled[:0] if e else s for s, e in zip(sequences, is_empty_list, strict=True)]
        options = self._options
        values, lengths = self.framework.pad(sequences, options.multiple_of, options.padding_value, options.batch_first)
        return Padded(values, self.framework.join_numbers(lengths, None)) if options.lengths else values


def _is_sequence(value: Any) -> bool:
    """Whether a field is padded if nobody names fields: arrays and tensors, and lists of numbers."""
    if isinstance(value, list):
        return not value or isinstance(value[0], Number) or (isinstance(value[0], list) and _is_sequence(value[0]))
    tensor = tensor_type()
    is_array = isinstance(value, np.ndarray) or (tensor is not None and isinstance(value, tensor))
    return is_array and value.ndim > 0


def _as_sequence(value: Any) -> Any:
    try:
        sequence = np.asarray(value) if isinstance(value, (list, tuple)) else value
    except ValueError as error:
        raise CollateError(f"a padded field must be a regular list of numbers, got {value!r:.200}.") from error
    if getattr(sequence, "ndim", 0) == 0:
        raise CollateError(f"a padded field must be a sequence: an array, tensor or list of numbers, got {value!r}.")
    return sequence


def _sequence_paths(sample: Any) -> Iterator[Path]:
    """Where the sequences of a sample are, in order."""
    if _is_sequence(sample):
        yield ()
    elif isinstance(sample, Mapping):
        for key in sample:
            yield from ((key, *rest) for rest in _sequence_paths(sample[key]))
    elif isinstance(sample, (tuple, list)):
        for key, value in zip(getattr(sample, "_fields", range(len(sample))), sample, strict=True):
            yield from ((key, *rest) for rest in _sequence_paths(value))


def _follow(sample: Any, path: Path) -> Any:
    """The field of a sample that `path` leads to.

    Raises:
        KeyError: there is none.
    """
    value = sample
    for key in path:
        try:
            value = getattr(value, key) if kind_of(type(value)) is Kind.NAMED_TUPLE else value[key]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise KeyError(
                f"pad_collate(fields=…) names {path!r}, which a sample lacks (fields of named tuples go by "
                f"name): {sample!r:.200}"
            ) from None
    return value


class Packed(NamedTuple):
    """A batch of packed sequences; all but the last are of shape (rows, length)."""

    tokens: Any
    segments: Any
    """Which sequence each token is of, counted from 1 in the order of the batch; 0 where there is none."""
    positions: Any
    """The place of each token in its piece of a sequence: from 0 on, also where a row continues a sequence."""
    targets: Any = None
    """The token that follows each one in its sequence, in the next row too; `ignore_index` where none does."""
    cu_seqlens: Any = None
    """Where the pieces end in the flattened rows, after a 0; runs of padding count as pieces. int32."""


def pack_collate(
    length: int,
    *,
    field: Any = None,
    drop_others: bool = False,
    split: bool = True,
    padding_value: int = 0,
    targets: bool = False,
    ignore_index: int = -100,
    cu_seqlens: bool = False,
) -> PackCollate:
    """A `collate_fn` that packs the sequences of a batch into rows of `length` tokens: for language models.

    A batch gives as many rows as it needs. Sequences are arrays and tensors of one dimension, and lists, of ints.

    Guarantees: no token is lost: `unpack_sequences` gives the sequences back.

    Args:
        field: where the sequence is in a sample, if the sample is a dict (a key), tuple (a position) or named tuple (a
            name).
        drop_others: leave out the other fields of such samples, which have no place in a row of many samples.
        split: put one sequence after the other and cut them where a row is full, so that only the last row is padded.
            Else put each, longest first, into the first row that has room; only what is longer than a row is cut.
        padding_value: what the rest of a row is filled with.
        targets: give the next tokens too, with `ignore_index` after the end of a sequence.
        cu_seqlens: give the borders too, as FlashAttention's functions for variable lengths take them.

    Raises:
        TypeError: `length` is not an int.
        ValueError: `length` is less than 1.

    Examples:
        >>> batch = pack_collate(4, targets=True)([[1, 2, 3], [4, 5, 6]])
        >>> batch.tokens.tolist(), batch.segments.tolist()
        ([[1, 2, 3, 4], [5, 6, 0, 0]], [[1, 1, 1, 2], [2, 2, 0, 0]])
        >>> batch.targets.tolist()
        [[2, 3, -100, 5], [6, -100, -100, -100]]
    """
    if not isinstance(length, int) or isinstance(length, bool):
        raise TypeError(f"length must be an int, the number of tokens in a row, got {length!r:.200}.")
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}.")
    return PackCollate(length, field, drop_others, split, padding_value, targets, ignore_index, cu_seqlens)


def unpack_sequences(packed: Packed) -> list[Array]:
    """The sequences of a packed batch, as NumPy arrays, in their order. Empty ones have left no trace.

    Examples:
        >>> [sequence.tolist() for sequence in unpack_sequences(pack_collate(4)([[1, 2, 3], [4, 5, 6]]))]
        [[1, 2, 3], [4, 5, 6]]
    """
    tokens, segments = as_array(packed.tokens).ravel(), as_array(packed.segments).ravel()
    order = np.argsort(segments, kind="stable")
    borders = np.flatnonzero(np.diff(segments[order], prepend=0))
    return np.split(tokens[order], borders)[1:]


class Piece(NamedTuple):
    """A part of a sequence, and where it goes."""

    sequence: int
    start: int
    size: int
    row: int
    column: int


def lay_out(sizes: Sequence[int], length: int, split: bool) -> list[Piece]:
    """Where sequences of these sizes go in rows of `length`; see `pack_collate`.

    Guarantees: the pieces of a sequence follow each other in the order of the rows.
    """
    return list(_lay_end_to_end(sizes, length) if split else _lay_whole(sizes, length))


def _lay_end_to_end(sizes: Sequence[int], length: int) -> Iterator[Piece]:
    place = 0
    for i, size in enumerate(sizes):
        start = 0
        while start < size:
            row, column = divmod(place, length)
            part = min(size - start, length - column)
            yield Piece(i, start, part, row, column)
            start += part
            place += part


def _lay_whole(sizes: Sequence[int], length: int) -> Iterator[Piece]:
    parts = [(i, start, min(size - start, length)) for i, size in enumerate(sizes) for start in range(0, size, length)]
    parts.sort(key=lambda part: -part[2])
    filled = np.zeros(len(parts), dtype=np.int64)
    for i, start, size in parts:
        row = int(np.argmax(filled <= length - size))
        yield Piece(i, start, size, row, int(filled[row]))
        filled[row] += size


@dataclass(frozen=True)
class PackCollate(FrameworkCollate):
    """See `pack_collate`, which makes it."""

    length: int
    field: Any
    drop_others: bool
    split: bool
    padding_value: int
    targets: bool
    ignore_index: int
    cu_seqlens: bool

    def collate_into(self, samples: Sequence[Any], collator: Collator) -> Packed:
        framework = collator.framework
        packed = self.pack([_as_tokens(self._sequence_of(sample)) for sample in samples], framework.allocate)
        return Packed(*(None if array is None else framework.wrap(array) for array in packed))

    def pack(self, sequences: Sequence[Array], allocate: Allocate = empty_aligned) -> Packed:
        """The sequences packed, as NumPy arrays in memory from `allocate`."""
        pieces = lay_out([len(sequence) for sequence in sequences], self.length, self.split)
        shape = (1 + max((piece.row for piece in pieces), default=-1), self.length)

        def filled_with(value: int, dtype: np.dtype[Any]) -> Array:
            array = allocate(shape, dtype)
            array.fill(value)
            return array

        tokens = filled_with(self.padding_value, self._token_type(sequences))
        segments, positions = filled_with(0, _INT64), filled_with(0, _INT64)
        targets = filled_with(self.ignore_index, _INT64) if self.targets else None
        for i, start, size, row, column in pieces:
            place = (row, slice(column, column + size))
            tokens[place] = sequences[i][start : start + size]
            segments[place] = i + 1
            positions[place] = np.arange(size)
            if targets is not None:
                following = sequences[i][start + 1 : start + 1 + size]
                targets[row, column : column + len(following)] = following
        return Packed(tokens, segments, positions, targets, _borders(pieces, shape) if self.cu_seqlens else None)

    def _token_type(self, sequences: Sequence[Array]) -> np.dtype[Any]:
        dtype = np.result_type(*({sequence.dtype for sequence in sequences if len(sequence)} or {_INT64}))
        if dtype.kind not in "iu" or not np.iinfo(dtype).min <= self.padding_value <= np.iinfo(dtype).max:
            raise CollateError(f"padding_value={self.padding_value} does not fit {dtype}, the type of the tokens.")
        return dtype

    def _sequence_of(self, sample: Any) -> Any:
        if self.field is None:
            return sample
        fields = _fields_of(sample)
        if self.field not in fields:
            raise KeyError(f"pack_collate(field={self.field!r}) names a field that a sample lacks: {sample!r:.200}")
        others = [key for key in fields if key != self.field]
        if others and not self.drop_others:
            raise CollateError(
                f"pack_collate(field={self.field!r}) packs one field, but samples also have {others}. A row holds "
                "parts of several samples, where those have no place: pass drop_others=True to leave them out."
            )
        return fields[self.field]


_INT64 = np.dtype(np.int64)


def _as_tokens(value: Any) -> Array:
    try:
        array = np.asarray(value, dtype=None if value else _INT64) if isinstance(value, list) else as_array(value)
    except (ValueError, CollateTypeError):
        array = None
    if array is None or isinstance(value, tuple) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise CollateError(
            "pack_collate must get a sequence of ints per sample: an array or tensor of one dimension, or a list; got "
            f"{value!r:.200}. For a sequence within a dict or tuple, pass field=…"
        )
    return array


def _fields_of(sample: Any) -> Mapping[Any, Any]:
    match kind_of(type(sample)):
        case Kind.MAPPING:
            return sample  # type: ignore[no-any-return]
        case Kind.NAMED_TUPLE:
            return dict(zip(sample._fields, sample, strict=True))
        case Kind.TUPLE:
            return dict(enumerate(sample))
        case _:
            return {}


def _borders(pieces: Iterable[Piece], shape: tuple[int, int]) -> Array:
    """Where pieces and runs of padding begin and end in the flattened rows."""
    starts = [row * shape[1] + column for _, _, _, row, column in pieces]
    ends = [start + piece.size for start, piece in zip(starts, pieces, strict=True)]
    return np.unique(np.array([0, *starts, *ends, shape[0] * shape[1]], dtype=np.int32))

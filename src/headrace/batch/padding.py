"""Sequences of different lengths into one padded batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from headrace.base.containers import Kind, kind_of
from headrace.base.errors import CollateError
from headrace.batch.collate import Collator, FrameworkCollate
from headrace.frameworks.framework import tensor_type

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

"""Opened sequences, read from front to back, whatever they are made of."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from os import PathLike
from typing import Any, Protocol, TypeAlias

import numpy as np

from headrace.base.errors import CollateTypeError, StateError
from headrace.base.messages import IterableStart
from headrace.base.world import WorkerInfo, enter_worker_process, enter_worker_thread, get_worker_info
from headrace.batch.iterable_state import begin_stream, stream_state
from headrace.data.dataset import is_iterable_dataset
from headrace.frameworks.framework import tensor_type
from headrace.frameworks.numpy_arrays import as_array
from headrace.streams.stream import Recipe, Stream

Run: TypeAlias = "np.ndarray[Any, Any] | Mapping[Any, Any] | list[Any]"
"""Items that follow each other: rows of an array, rows of columns, or one by one."""
Ticks: TypeAlias = Iterable[Any]
"""One for each item that may be made; what is drawn after a tick belongs to its item."""

_END = object()
_SKIPPED = 1024  # items at a time


class SequenceReader(Protocol):
    """A sequence that is being read."""

    at: int
    """How many items have been taken or skipped."""

    def take(self, n: int, ticks: Ticks) -> Run:
        """The next n items; fewer at the end only."""

    def peek(self, ticks: Ticks) -> Run:
        """The next item, which stays the next; nothing at the end."""

    def skip(self, n: int, ticks: Ticks) -> None:
        """Go on by n items, or to the end."""

    def mark(self) -> Any:
        """What brings another reader here at once, plain enough for JSON; None if there is no such thing."""

    def begin(self, mark: Any) -> None:
        """Go to a mark, before anything is taken."""


class SlicedReader:
    """A sequence of known length, parts of which can be had at once.

    Args:
        read: gives the items from a place up to another; ticks once for each, if it runs code of the user's.
    """

    def __init__(self, length: int, read: Callable[[int, int, Ticks], Run]) -> None:
        self.at = 0
        self._length = length
        self._read = read

    def take(self, n: int, ticks: Ticks) -> Run:
        end = min(self.at + n, self._length)
        run = self._read(self.at, end, ticks)
        self.at = end
        return run

    def peek(self, ticks: Ticks) -> Run:
        return self._read(self.at, min(self.at + 1, self._length), ticks)

    def skip(self, n: int, ticks: Ticks) -> None:
        self.at = min(self.at + n, self._length)

    def mark(self) -> Any:
        """Every place is as near."""
        return None

    def begin(self, mark: Any) -> None:
        """There are no marks."""


class IteratedReader:
    """Whatever can be iterated: read once, from its beginning or from a state that its iterator told."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.at = 0
        self._source = items
        self._iterator: Iterator[Any] = iter(())
        self._peeked: list[Any] = []
        self._mark: Any = None  # before that
        self._error: Exception | None = None  # that comes after what was taken

    def begin(self, mark: Any) -> None:
        state = None if mark is None else {"iterator": _part(mark, "state")}
        self.at = 0 if mark is None else mark["at"]
        self._iterator = begin_stream(self._source, IterableStart(state=state))
        # `islice` calls `__iter__` again, with which an iterator of the user's may start over.
        self._is_built_in = type(self._iterator).__module__ in ("builtins", "itertools")

    def take(self, n: int, ticks: Ticks) -> Run:
        error, self._error = self._error, None
        if error is not None:
            raise error
        items, self._peeked = self._peeked, []
        try:
            self._pull(items, ticks[len(items) :] if isinstance(ticks, range) else islice(ticks, len(items), None))
        except Exception as failure:
            if not items:
                raise
            self._error = failure  # the items before it are good
        self.at += len(items)
        return items

    def peek(self, ticks: Ticks) -> Run:
        if not self._peeked:
            self._mark = self.mark()
            if self._error is not None:
                raise self._error
            try:
                self._pull(self._peeked, ticks)
            except Exception as error:
                self._error = error  # it is still to come
                raise
        return list(self._peeked)

    def skip(self, n: int, ticks: Ticks) -> None:
        _skip_by_taking(self, n, ticks)

    def mark(self) -> Any:
        if self._peeked:
            return self._mark
        state = stream_state(None, self._iterator)
        return None if state is None else {"at": self.at, "state": state["iterator"]}

    def _pull(self, items: list[Any], ticks: Ticks) -> None:
        """Add the next ones; those before an error are among them."""
        if isinstance(ticks, range) and self._is_built_in:
            items.extend(islice(self._iterator, len(ticks)))
            return
        for _ in ticks:
            item = next(self._iterator, _END)
            if item is _END:
                break
            items.append(item)


class StreamRowReader:
    """All rows of a `Stream`, whichever rank or worker this is; a mark is the window at hand."""

    def __init__(self, recipe: Recipe, first: int = 0, end: int | None = None) -> None:
        if recipe.packed_steps or (recipe.packing is not None and recipe.packing.segments):
            raise ValueError(
                "A stream that is read side by side gives its tokens one by one, so map() after pack(), and segments, "
                "have no place: leave out pack() and pass seq_len= to the loader."
            )
        self.at = 0
        self._recipe = recipe
        self._plan = recipe.plan(None, 0)
        self._windows = range(self._plan.n_windows or 0)[first:end]
        self._next = 0  # window
        self._first = 0  # window of those that were read last: all but the last are empty
        self._rows: list[Any] = []
        self._place = 0  # in these rows

    def begin(self, mark: Any) -> None:
        self.at, self._next = (0, 0) if mark is None else (mark["at"], _part(mark, "window"))

    def take(self, n: int, ticks: Ticks) -> Run:
        items: list[Any] = []
        turns = _Turns(ticks)
        while len(items) < n and self._has_row_after(items, turns):
            part = self._rows[self._place : self._place + n - len(items)]
            self._place += len(part)
            items += part
        self.at += len(items)
        return items

    def peek(self, ticks: Ticks) -> Run:
        return self._rows[self._place : self._place + 1] if self._has_row(_Turns(ticks), 0) else []

    def skip(self, n: int, ticks: Ticks) -> None:
        _skip_by_taking(self, n, ticks)

    def mark(self) -> Any:
        return {"at": self.at - self._place, "window": self._first}

    def _has_row_after(self, items: list[Any], turns: _Turns) -> bool:
        """Whether there is another row; an error comes after the items that were taken before it."""
        try:
            return self._has_row(turns, len(items))
        except Exception:
            if not items:
                raise
            return False

    def _has_row(self, turns: _Turns, number: int) -> bool:
        """Whether there is another row, which is this one of those that are asked for.

        What a window draws belongs to the row that it begins with, however many are asked for at a time; what the first
        one draws, to the sequence.
        """
        if self._place == len(self._rows) and self._next < len(self._windows):
            self._first = self._next
            if self._next:
                turns.go_to(number)
        while self._place == len(self._rows) and self._next < len(self._windows):
            window = self._plan.window(self._windows[self._next])
            self._rows, self._place = self._recipe.read(window).rows(), 0
            self._next += 1
        return self._place < len(self._rows)


class _Turns:
    """Goes from tick to tick, as far as it must."""

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = iter(ticks)
        self._n = 0

    def go_to(self, number: int) -> None:
        """What is drawn from here on belongs to item `number`."""
        for _ in islice(self._ticks, max(0, number + 1 - self._n)):
            self._n += 1


def _part(mark: Mapping[str, Any], name: str) -> Any:
    """What a mark says.

    Raises:
        StateError: it is one of another kind of sequence.
    """
    if name not in mark:
        raise StateError("The state was taken of another kind of sequence. Load it with the sequences of then.")
    return mark[name]


def _skip_by_taking(reader: SequenceReader, n: int, ticks: Ticks) -> None:
    """Take some at a time, so that they need not all be in memory."""
    following = iter(ticks)
    while n > 0:
        size = min(n, _SKIPPED)
        before = reader.at
        some: Ticks = range(size) if isinstance(ticks, range) else islice(following, size)
        reader.take(size, some)
        deque(some, 0)  # those of items for which nothing was drawn
        if reader.at - before < size:
            return
        n -= size


def open_sequence(sequence: Any, start: int = 0, stop: int | None = None) -> SequenceReader:
    """Whatever a user calls a sequence, or a part of it; `begin` comes first.

    Raises:
        TypeError: it is none.
    """
    sequence = made(sequence)
    if isinstance(sequence, (str, bytes, PathLike)):
        raise TypeError(
            f"A sequence must be read before it is one, got {sequence!r:.80}. Pass read=, a function that makes a "
            "sequence of it: of a file, for instance, its tokens; or read=list for the characters of a text."
        )
    if isinstance(sequence, Stream):
        return StreamRowReader(sequence.recipe)
    if is_iterable_dataset(sequence):
        _stand_alone()
    read = reader_of(sequence)
    if read is not None:
        length = length_of(sequence) or 0
        return SlicedReader((length if stop is None else min(stop, length)) - start, _shifted(read, start))
    if not isinstance(sequence, Iterable):
        raise TypeError(
            f"A sequence must be an array, a list, an iterable or a function that makes one, got {sequence!r:.80}. One "
            "long sequence, and not a list of them, needs assign='offset'."
        )
    return IteratedReader(sequence if stop is None else islice(sequence, start, stop))


def _stand_alone() -> None:
    """A dataset that deals its samples to workers must not do that here, as each sequence is read by one alone."""
    info = get_worker_info()
    if info is not None and info.num_workers > 1:
        is_thread = threading.current_thread() is not threading.main_thread()
        enter = enter_worker_thread if is_thread else enter_worker_process
        enter(WorkerInfo(0, 1, info.seed, info.dataset))


def made(sequence: Any) -> Any:
    """What a function makes, if the sequence is given as one."""
    is_function = callable(sequence) and not hasattr(sequence, "__getitem__") and not hasattr(sequence, "__iter__")
    return sequence() if is_function else sequence


def check_repeatable(sequence: Any) -> None:
    """See that a sequence can be read anew.

    Raises:
        TypeError: it is an iterator.
    """
    if isinstance(sequence, Iterator):
        raise TypeError(
            f"A sequence is read several times, and a {type(sequence).__name__} can be read only once. Pass the "
            "function that makes it, and not what it returns."
        )


def _shifted(read: Callable[[int, int, Ticks], Run], by: int) -> Callable[[int, int, Ticks], Run]:
    return read if not by else lambda start, stop, ticks: read(start + by, stop + by, ticks)


def reader_of(sequence: Any) -> Callable[[int, int, Ticks], Run] | None:
    """What reads any part of a sequence at once; None if it can only be iterated."""
    if isinstance(sequence, Mapping):
        columns = {name: reader_of(column) for name, column in sequence.items()}
        if not columns or None in columns.values():
            raise TypeError(f"A sequence of columns must be a dict of arrays or lists, got {sequence!r:.80}.")
        return lambda start, stop, ticks: {name: read(start, stop, ticks) for name, read in columns.items()}  # type: ignore[misc]
    if isinstance(sequence, list):
        return lambda start, stop, ticks: sequence[start:stop]
    if isinstance(sequence, (tuple, range)):
        return lambda start, stop, ticks: list(sequence[start:stop])
    values = plain_values(sequence)
    if values is not None:
        return lambda start, stop, ticks: values[start:stop]
    if not _is_indexed(sequence):
        return None
    is_array = isinstance(sequence, np.ndarray) or _is_tensor(sequence)
    if hasattr(sequence, "shape") and hasattr(sequence, "dtype") and not is_array:
        return lambda start, stop, ticks: np.asarray(sequence[start:stop])  # of h5py, for instance
    return lambda start, stop, ticks: [sequence[i] for _, i in zip(ticks, range(start, stop), strict=False)]


def plain_values(sequence: Any) -> Any:
    """Arrays and tensors as an array of numbers over the same memory; None for all else."""
    if _is_tensor(sequence):
        try:
            sequence = as_array(sequence)
        except CollateTypeError:  # a type that NumPy lacks
            return None
    is_plain = isinstance(sequence, np.ndarray) and sequence.ndim > 0 and sequence.dtype.kind in "biufc"
    return sequence if is_plain else None


def _is_tensor(sequence: Any) -> bool:
    tensor = tensor_type()
    return tensor is not None and isinstance(sequence, tensor)


def length_of(sequence: Any) -> int | None:
    """The number of items, if it is known without reading."""
    if isinstance(sequence, Mapping):
        lengths = {name: len(column) for name, column in sequence.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"The columns of a sequence must have one length, got {lengths}.")
        return next(iter(lengths.values()))
    return len(sequence) if _is_indexed(sequence) else None


def _is_indexed(sequence: Any) -> bool:
    if is_iterable_dataset(sequence) or isinstance(sequence, (str, bytes)):
        return False
    return hasattr(sequence, "__getitem__") and hasattr(sequence, "__len__")

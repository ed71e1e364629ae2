"""A list of Python objects in memory that processes share, so that reading it in workers copies nothing."""

from __future__ import annotations

import operator
import os
import pickle
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeVar, final, overload

from headrace.base.optional import loaded

T_co = TypeVar("T_co", covariant=True)

_PROTOCOL = 5
_WRITE_BYTES = 1 << 20
_OFFSET_BYTES = 8


@final
class SharedList(Sequence[T_co]):
    """A list that cannot be changed, of any objects that pickle or cloudpickle can take, packed once.

    A worker that reads an object of a plain list writes its reference count, and so gets its own copy of the page. Here
    the objects lie as bytes in one block of shared memory, which every process reads, forked or spawned.

    Guarantees: the memory has no name, is not limited by the size of /dev/shm, and is freed with the last process that
    holds the list. While packing, one object at a time is held besides the packed bytes. Each access gives a fresh
    object: changing it does not change the list. Pickled while a process is being spawned, the list is shared; pickled
    otherwise, its bytes are copied.

    Raises:
        TypeError: an item can be pickled neither by pickle nor by cloudpickle.

    Examples:
        >>> boxes = SharedList({"path": f"{i}.jpg", "box": (i, i + 1)} for i in range(1000))
        >>> boxes[-1]
        {'path': '999.jpg', 'box': (999, 1000)}
        >>> boxes
        SharedList(1000 items, 54.4 kB)
    """

    def __init__(self, items: Iterable[T_co]) -> None:
        self._own(_anonymous_file())
        self._read(_pack(items, self._descriptor), fully_mapped=True)

    def _own(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def _read(self, count: int, *, fully_mapped: bool) -> None:
        """Map the file that was packed: the pickled items, then the `count` + 1 offsets between which they lie."""
        self._memory = _map(self._descriptor, fully_mapped)
        offsets = self._memory[len(self._memory) - _OFFSET_BYTES * (count + 1) :].cast("q")
        # Item i lies from starts[i] to ends[i], for negative i too: memoryviews check and count like lists.
        self._starts, self._ends = offsets[:-1], offsets[1:]

    @property
    def nbytes(self) -> int:
        """The size of the shared memory."""
        return len(self._memory)

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"SharedList({len(self)} items, {_readable(self.nbytes)})"

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...

    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...

    def __getitem__(self, index: Any) -> Any:
        """One item; a slice gives a plain list.

        Raises:
            IndexError: there is no such item.
        """
        if isinstance(index, slice):
            return list(self._load(self._starts[index], self._ends[index]))
        place = operator.index(index)
        try:
            start, end = self._starts[place], self._ends[place]
        except IndexError:
            raise self._no_item(place) from None
        return pickle.loads(self._memory[start:end])

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[T_co]:
        """The items at these indices, faster than one by one.

        Raises:
            IndexError: there is no item at one of them.
        """
        memory, starts, ends, loads = self._memory, self._starts, self._ends, pickle.loads
        places = list(map(operator.index, indices))
        try:
            return [loads(memory[starts[place] : ends[place]]) for place in places]
        except IndexError:
            n = len(self)
            outside = next((place for place in places if not -n <= place < n), None)
            if outside is None:
                raise  # by an item that was being unpickled
            raise self._no_item(outside) from None

    def __iter__(self) -> Iterator[T_co]:
        return self._load(self._starts, self._ends)

    def _load(self, starts: memoryview, ends: memoryview) -> Iterator[T_co]:
        memory, loads = self._memory, pickle.loads
        return (loads(memory[start:end]) for start, end in zip(starts, ends, strict=True))

    def _no_item(self, index: int) -> IndexError:
        return IndexError(f"SharedList index {index} is out of range: the list has {len(self)} items.")

    def __copy__(self) -> SharedList[T_co]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedList[T_co]:
        return self  # neither the list nor the packed items can change

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        context = loaded("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:
            from multiprocessing.reduction import DupFd

            return _from_descriptor, (DupFd(self._descriptor), len(self))
        content = pickle.PickleBuffer(self._memory) if operator.index(protocol) >= 5 else bytes(self._memory)
        return _from_bytes, (content, len(self))


def _from_descriptor(duplicate: Any, count: int) -> SharedList[Any]:
    """The list whose memory the parent passed on to this process."""
    shared: SharedList[Any] = SharedList.__new__(SharedList)
    shared._own(duplicate.detach())
    os.set_inheritable(shared._descriptor, False)
    shared._read(count, fully_mapped=False)
    return shared


def _from_bytes(content: Any, count: int) -> SharedList[Any]:
    """A list in new memory with a copy of another's content."""
    shared: SharedList[Any] = SharedList.__new__(SharedList)
    shared._own(_anonymous_file())
    with open(shared._descriptor, "wb", closefd=False) as file:
        file.write(content)
    shared._read(count, fully_mapped=True)
    return shared


def _anonymous_file() -> int:
    """The descriptor of a file without a name: in memory where the system has that, else on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace")
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="headrace")
    os.unlink(path)
    return descriptor


def _pack(items: Iterable[Any], descriptor: int) -> int:
    """Write the pickled items and their offsets; return the number of items."""
    offsets = array("q", [0])
    end = 0
    with open(descriptor, "wb", buffering=_WRITE_BYTES, closefd=False) as file:
        for i, item in enumerate(items):
            end += file.write(_dumps(item, i))
            offsets.append(end)
        file.write(offsets)
    return len(offsets) - 1


def _dumps(item: Any, position: int) -> bytes:
    try:
        return pickle.dumps(item, _PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle

        try:
            return cloudpickle.dumps(item, _PROTOCOL)  # type: ignore[no-any-return]
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"Items of a SharedList must be picklable, but item {position}, a {type(item).__name__}, is not: "
                f"{error}. Keep what it holds out of the list, and make it where the item is read."
            ) from error


def _map(descriptor: int, fully: bool) -> memoryview:
    """The content of a file; `fully` where this process made it, so that it shows as this process's memory."""
    import mmap

    flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if fully else 0)
    return memoryview(mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ))


def _readable(nbytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"

"""A list of Python objects in shared memory, and a warning where a dataset needs one."""

from __future__ import annotations

import gc
import operator
import os
import pickle
import sys
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, SupportsIndex, TypeVar, final, overload

import numpy as np

from headrace.base.errors import warn_user
from headrace.base.optional import loaded
from headrace.data.dataset import Dataset

T_co = TypeVar("T_co", covariant=True)

_PROTOCOL = 5
_WRITE_BYTES = 1 << 20
_OFFSET_BYTES = 8


# By their descriptors, which go with them. The callbacks are in C, `next(closing, reference)`: an interrupt that is
# raised in one in Python, such as those of `weakref.finalize`, is lost.
_owners: dict[int, weakref.ref[SharedList[Any]]] = {}


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
        _owners[descriptor] = weakref.ref(self, partial(next, map(os.close, [descriptor])))

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


LEAST_ITEMS = 100_000
LEAST_BYTES = 64 * 10**6

_CONTAINERS = (list, tuple, dict, set, frozenset)
_WITHOUT_PARTS = frozenset({str, int, float, bytes})
_PAGE_BYTES = 4096
# These bound the time: a search takes well below a millisecond, however large the dataset.
_MOST_DATASETS = 32
_MOST_CONTAINERS = 4
_SAMPLED_ITEMS = 24
_SAMPLED_PARTS = 4
_DEPTH = 2


@dataclass(frozen=True)
class HugeContainer:
    """A container with enough Python objects that a copy in each worker would matter.

    Attributes:
        owner: the class of the dataset that holds it; None if the container is the dataset itself.
        attribute: where the dataset holds it; "" if it is the dataset itself.
        nbytes: what reading all of it makes a forked process copy: an estimate.
    """

    owner: type | None
    attribute: str
    kind: type
    count: int
    nbytes: int

    def __str__(self) -> str:
        name = f"{self.owner.__name__}.{self.attribute}" if self.owner else "The dataset"
        return f"{name} is a {self.kind.__name__} of {self.count:,} Python objects, about {_roughly(self.nbytes)}"

    @property
    def cure(self) -> str:
        """The line that puts its items into shared memory."""
        name = f"self.{self.attribute}" if self.owner else "dataset"
        if self.kind is dict:
            return f"{name} = headrace.SharedList({name}.values())"
        return f"{name} = headrace.SharedList({name})"


_told: set[tuple[type | None, str]] = set()


def warn_of_huge_containers(dataset: Any, num_workers: int) -> None:
    """Warn of containers in `dataset` that `num_workers` forked processes would copy by reading them.

    Warns once per process for each class and attribute. Spawned processes get a copy in any case: call this for forked
    ones only.
    """
    for found in _huge_containers(dataset) if num_workers > 0 else ():
        if (found.owner, found.attribute) in _told:
            continue
        _told.add((found.owner, found.attribute))
        by_position = "" if found.kind in (list, tuple) else " and look its items up by position"
        warn_user(
            f"{found}. Reading a Python object writes its reference count, so each forked worker copies it page by "
            f"page as it reads: up to {num_workers} x {_roughly(found.nbytes)} more memory. To share one copy among "
            f"all workers, write `{found.cure}`{by_position}."
        )


def huge_python_container(dataset: Any) -> HugeContainer | None:
    """The first container of at least 100,000 Python objects, and at least 64 MB, that is found in `dataset`; or None.

    Looks at the dataset itself, its attributes, and those of the datasets that it wraps. Takes less than a millisecond,
    calls no method of theirs, and estimates sizes from a few items.
    """
    return next(_huge_containers(dataset), None)


def _huge_containers(dataset: Any) -> Iterator[HugeContainer]:
    many = ((*place, value) for *place, value in _values(dataset) if _length(value) >= LEAST_ITEMS)
    for owner, attribute, value in islice(many, _MOST_CONTAINERS):
        nbytes = _estimated_bytes(value)
        if nbytes >= LEAST_BYTES:
            yield HugeContainer(owner, attribute, _base(value), _length(value), nbytes)


def _values(dataset: Any) -> Iterator[tuple[type | None, str, Any]]:
    """The dataset itself, then the attributes of it and of every dataset in it: owner, name and value."""
    yield None, "", dataset
    datasets, seen = [dataset], {id(dataset)}
    for owner in islice(datasets, _MOST_DATASETS):  # which grows meanwhile
        for name, value in _variables(owner):
            yield type(owner), name, value
            if _leads_on(name, value) and id(value) not in seen:
                seen.add(id(value))
                datasets.append(value)


def _variables(dataset: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a dataset, and each of the datasets that it holds as `datasets`."""
    variables = getattr(dataset, "__dict__", None)
    if not isinstance(variables, dict):
        return
    yield from variables.items()
    parts = variables.get("datasets")
    if isinstance(parts, list | tuple | dict):
        named = parts.items() if isinstance(parts, dict) else enumerate(parts)
        yield from ((f"datasets[{key!r}]", part) for key, part in islice(named, _MOST_DATASETS))


def _leads_on(name: str, value: Any) -> bool:
    """Whether an attribute holds a dataset to look into."""
    torch_data = loaded("torch.utils.data")
    return (
        name == "dataset"
        or name.startswith("datasets[")
        or isinstance(value, Dataset)
        or (torch_data is not None and isinstance(value, torch_data.Dataset))
    )


def _estimated_bytes(container: Any) -> int:
    """What reading every item of `container` makes a forked process copy."""
    sizes: dict[int, float] = {}
    for item in _sample(container, _SAMPLED_ITEMS):
        _measure(item, 1.0, _DEPTH, sizes)
    n = _length(container)
    return int(sum(sizes.values()) * n / max(1, min(n, _SAMPLED_ITEMS)))


def _measure(item: Any, weight: float, depth: int, sizes: dict[int, float]) -> None:
    """Add the sizes of an object and its parts to `sizes`, by identity.

    What comes up twice among so few is shared by many, such as a key or a small number, and counts for nothing.
    """
    kind = type(item)
    if kind not in _WITHOUT_PARTS and (kind is SharedList or isinstance(item, (type, ModuleType)) or _is_array(item)):
        return
    # Only the page with the reference count is copied, so a long string counts for no more than that.
    sizes[id(item)] = 0.0 if id(item) in sizes else weight * min(sys.getsizeof(item, 0), _PAGE_BYTES)
    if depth and kind not in _WITHOUT_PARTS:
        parts, n = _parts(item)
        for part in parts:
            _measure(part, weight * n / len(parts), depth - 1, sizes)


def _parts(item: Any) -> tuple[list[Any], int]:
    """Some of the objects that `item` holds, and how many it holds in all."""
    if type(item) in _CONTAINERS:
        return list(_sample(item, _SAMPLED_PARTS)), len(item) * (2 if type(item) is dict else 1)
    if sys.getsizeof(item, 0) > _PAGE_BYTES:
        return [], 0
    referents = gc.get_referents(item)  # of any class, with slots or not, and without running its code
    return referents[:_SAMPLED_PARTS], len(referents)


def _sample(container: Any, count: int) -> Iterator[Any]:
    """Evenly spaced items of a sequence; keys and values, or items, from the front of a dict or set."""
    base = _base(container)
    n = _length(container)
    if base is dict:
        yield from islice(dict.keys(container), count)
        yield from islice(dict.values(container), count)
    elif base in (list, tuple):
        count = min(n, count)
        yield from (base.__getitem__(container, i * n // count) for i in range(count))
    else:
        yield from islice(base.__iter__(container), count)


def _base(container: Any) -> Any:
    """The built-in type of a container, whose methods a subclass may have overridden; None if it is no container."""
    return next((base for base in _CONTAINERS if isinstance(container, base)), None)


def _length(container: Any) -> int:
    base = _base(container)
    return base.__len__(container) if base is not None else 0


def _is_array(item: Any) -> bool:
    """Whether `item` holds numbers that have no reference counts: arrays and tensors of any library."""
    return hasattr(type(item), "__array__") and not isinstance(item, np.generic)


def _roughly(nbytes: int) -> str:
    return f"{nbytes / 10**9:.1f} GB" if nbytes >= 10**9 else f"{nbytes / 10**6:.0f} MB"

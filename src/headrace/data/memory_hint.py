"""Finds the Python containers of a dataset that forked workers would copy, and tells how to share them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from headrace.base.optional import loaded
from headrace.base.warning import warn_user
from headrace.data.dataset import Dataset
from headrace.data.shared_list import SharedList

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
    """A container of so many Python objects that a copy in each worker would matter.

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
        return f"{name} is a {self.kind.__name__} of {self.count:,} Python objects, about {_readable(self.nbytes)}"

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
            f"page as it reads: up to {num_workers} x {_readable(found.nbytes)} more memory. To share one copy among "
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


def _readable(nbytes: int) -> str:
    return f"{nbytes / 10**9:.1f} GB" if nbytes >= 10**9 else f"{nbytes / 10**6:.0f} MB"

"""Many samples into one batch, by type, with the results of `torch.utils.data.default_collate`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from headrace.base.containers import Kind, kind_of, map_leaves, mapping_like, sequence_like
from headrace.base.errors import CollateError, CollateTypeError
from headrace.base.optional import loaded
from headrace.frameworks.framework import Framework, framework_of, tensor_type

Collate: TypeAlias = Callable[[Sequence[Any]], Any]
TypeCollate: TypeAlias = Callable[[Sequence[Any], "Collator"], Any]


class Collator:
    """Collates into the arrays of one framework.

    Calling it collates the samples of a batch; the functions in the registry call it again for what samples contain.
    Types that torch's own registry was taught by then are collated by torch.
    """

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        _look_at_torch()

    def __call__(self, samples: Sequence[Any]) -> Any:
        try:
            first = samples[0]
        except IndexError:
            raise IndexError("A batch must have a sample, got none. Does a sampler give empty lists?") from None
        return collate_function_of(type(first))(samples, self)

    def at(self, key: Any) -> Collator:
        """The collator of the field `key` of the samples."""
        return self

    def convert(self, data: Any, *, tuples_to_lists: bool = True) -> Any:
        """Every array in `data` as the framework's; what is no array stays as it is."""
        return map_leaves(self._convert_leaf, data, tuples_to_lists=tuples_to_lists)

    def _convert_leaf(self, value: Any) -> Any:
        tensor = tensor_type()
        if tensor is not None and isinstance(value, tensor):
            return self.framework.convert(value)
        if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (str, bytes)):
            is_plain = type(value).__module__ == "numpy" and value.dtype.kind not in "OSU"
            return self.framework.convert(value) if is_plain else value
        return value


class FrameworkCollate(ABC):
    """A `collate_fn` that makes the arrays the loader is asked for; called by itself, those of the default output."""

    @abstractmethod
    def collate_into(self, samples: Sequence[Any], collator: Collator) -> Any:
        """The batch of these samples, in arrays of `collator.framework`."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self.collate_into(samples, _auto_collator())


def register_collate(kind: type, collate: TypeCollate) -> None:
    """Teach the default collation a type, and everything derived from it.

    Args:
        collate: gets the list of values and the collator, which it may call to collate what the values contain.

    Raises:
        TypeError: `kind` is not a type, or `collate` not a function.

    Examples:
        >>> from fractions import Fraction
        >>> register_collate(Fraction, lambda values, collator: collator([float(value) for value in values]))
        >>> default_collate([Fraction(1, 2), Fraction(1, 4)]).tolist()
        [0.5, 0.25]
    """
    if not isinstance(kind, type) or not callable(collate):
        raise TypeError(f"register_collate must get a type and a function, got {kind!r} and {collate!r}.")
    _taught[kind] = collate
    register_own(kind, collate)


def register_own(kind: type, collate: TypeCollate) -> None:
    """Register a function of headrace itself, which every process has."""
    _registry[kind] = collate
    _resolved.clear()


def taught_types() -> dict[type, TypeCollate]:
    """What users have registered in this process."""
    return dict(_taught)


def teach(functions: Mapping[type, TypeCollate]) -> None:
    """Register what users have registered in another process."""
    for kind, collate in functions.items():
        if _taught.get(kind) is not collate:
            register_collate(kind, collate)


def collate_function_of(kind: type) -> TypeCollate:
    """The function for the nearest registered class of `kind`; containers and tensors come after those."""
    found = _resolved.get(kind)
    if found is None:
        found = _resolved[kind] = _resolve(kind)
    return found


def is_collated_by_default(kind: type) -> bool:
    """Whether values of this type are left to headrace, and not to a registered function."""
    return collate_function_of(kind) in _OWN


def collates_rows_by_default() -> bool:
    """Whether whole batches of rows may be gathered from arrays: nobody registered a function for what rows are."""
    kinds = (np.ndarray, np.bool_, np.number, tuple, dict, tensor_type())
    return all(kind is None or is_collated_by_default(kind) for kind in kinds)


def _resolve(kind: type) -> TypeCollate:
    own = _resolve_here(kind)
    return _collate_by_torch if own in _OWN and _is_taught_to_torch(kind) else own


def _resolve_here(kind: type) -> TypeCollate:
    for base in kind.__mro__:
        if base in _registry:
            return _registry[base]
    for registered, collate in _registry.items():  # abstract classes with virtual subclasses
        if issubclass(kind, registered):
            return collate
    tensor = tensor_type()
    if tensor is not None and issubclass(kind, tensor):
        return _collate_arrays
    return _BY_KIND[kind_of(kind)]


def _collate_arrays(samples: Sequence[Any], collator: Collator) -> Any:
    return collator.framework.stack(samples)


def _collate_records(samples: Sequence[Any], collator: Collator) -> Any:
    return collator.framework.stack([np.asarray(sample) for sample in samples])


def _collate_numbers(samples: Sequence[Any], collator: Collator) -> Any:
    return collator.framework.join_numbers(samples, None)


def _collate_floats(samples: Sequence[Any], collator: Collator) -> Any:
    return collator.framework.join_numbers(samples, np.dtype(np.float64))


def _keep(samples: Sequence[Any], collator: Collator) -> Any:
    return samples


def _collate_mappings(samples: Sequence[Any], collator: Collator) -> Any:
    first = samples[0]
    return mapping_like(first, {key: _collate_field(key, _values_at(key, samples), collator) for key in first})


def _values_at(key: Any, samples: Sequence[Any]) -> list[Any]:
    get = itemgetter(key)
    try:
        return list(map(get, samples))
    except KeyError as error:
        values: list[Any] = []
        with suppress(KeyError):
            values.extend(map(get, samples))  # as far as it goes
        raise KeyError(f"Sample {len(values)} of the batch lacks the key {key!r} that sample 0 has.") from error


def _collate_named_tuples(samples: Sequence[Any], collator: Collator) -> Any:
    first = samples[0]
    fields = zip(first._fields, zip(*samples, strict=False), strict=False)
    return type(first)(*(_collate_field(name, values, collator) for name, values in fields))


def _collate_sequences(samples: Sequence[Any], collator: Collator) -> Any:
    first = samples[0]
    size = len(first)
    for i, sample in enumerate(samples):
        if len(sample) != size:
            raise CollateError(
                f"each element in list of batch should be of equal size, but got {size} at entry 0 and {len(sample)} "
                f"at entry {i}. For sequences of different lengths use arrays or lists of numbers, and "
                "collate_fn=headrace.pad_collate(), or one of your own."
            )
    contents = [_collate_field(i, values, collator) for i, values in enumerate(zip(*samples, strict=False))]
    return contents if isinstance(first, tuple) else sequence_like(first, contents)


def _collate_field(key: Any, values: Sequence[Any], collator: Collator) -> Any:
    try:
        return collator.at(key)(values)
    except (CollateError, CollateTypeError) as error:
        raise error.within(key) from error.__cause__


def _collate_foreign(samples: Sequence[Any], collator: Collator) -> Any:
    first = samples[0]
    jax = loaded("jax")
    if jax is not None and isinstance(first, jax.Array):
        return collator.framework.stack([np.asarray(sample) for sample in samples])
    raise CollateTypeError(
        "batch must contain tensors, numpy arrays, numbers, strings, dicts or lists; found "
        f"{type(first).__module__}.{type(first).__qualname__}. Teach the default collation this type with "
        "headrace.register_collate, or pass a collate_fn."
        + (" Does __getitem__ forget to return something?" if first is None else "")
    )


_resolved: dict[type, TypeCollate] = {}
_taught: dict[type, TypeCollate] = {}
_registry: dict[type, TypeCollate] = {
    np.ndarray: _collate_arrays,
    np.bool_: _collate_numbers,
    np.number: _collate_numbers,
    np.void: _collate_records,
    float: _collate_floats,
    int: _collate_numbers,
    str: _keep,
    bytes: _keep,
}


_TORCH_COLLATE = "torch.utils.data._utils.collate"
_TorchFunctions: TypeAlias = dict[Any, Callable[..., Any]]
_taught_to_torch: tuple[_TorchFunctions, _TorchFunctions] | None = None
"""torch's registry as torch fills it, and as it is; None if that is the same."""


def _look_at_torch() -> None:
    """See whether somebody changed `default_collate_fn_map`, as torch's documentation shows, and some libraries do."""
    global _taught_to_torch
    module = loaded(_TORCH_COLLATE)
    if module is None:
        return
    by_default = {
        tensor_type(): module.collate_tensor_fn,
        np.ndarray: module.collate_numpy_array_fn,
        (np.bool_, np.number, np.object_): module.collate_numpy_scalar_fn,
        float: module.collate_float_fn,
        int: module.collate_int_fn,
        str: module.collate_str_fn,
        bytes: module.collate_str_fn,
    }
    by_now = module.default_collate_fn_map
    taught = None if by_now == by_default else (by_default, dict(by_now))
    if taught != _taught_to_torch:
        _taught_to_torch = taught
        _resolved.clear()


def _is_taught_to_torch(kind: type) -> bool:
    if _taught_to_torch is None:
        return False
    tensor = tensor_type()
    if tensor is not None and issubclass(kind, np.ndarray) and _is_taught_to_torch(tensor):
        return True  # torch makes tensors of them first
    by_default, by_now = (_torch_function(functions, kind) for functions in _taught_to_torch)
    return by_default is not by_now


def _torch_function(functions: _TorchFunctions, kind: type) -> Callable[..., Any] | None:
    """The function that torch takes for values of this type; None if it looks at what kind of container they are."""
    if kind in functions:
        return functions[kind]
    return next((function for known, function in functions.items() if issubclass(kind, known)), None)


def _collate_by_torch(samples: Sequence[Any], collator: Collator) -> Any:
    collate: Callable[[Any], Any] = loaded(_TORCH_COLLATE).default_collate  # type: ignore[union-attr]
    return collator.convert(collate(samples), tuples_to_lists=False)


_BY_KIND: dict[Kind, TypeCollate] = {
    Kind.MAPPING: _collate_mappings,
    Kind.NAMED_TUPLE: _collate_named_tuples,
    Kind.TUPLE: _collate_sequences,
    Kind.SEQUENCE: _collate_sequences,
    Kind.LEAF: _collate_foreign,
}
_OWN = frozenset({*_registry.values(), *_BY_KIND.values()})


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples into one batch: tensors if torch is installed, else NumPy arrays, with a new first dimension.

    Numbers become vectors (`float` float64, `int` int64); arrays and tensors are stacked; strings and bytes stay as
    they are; mappings, named tuples and sequences are collated field by field and keep their type, except that plain
    tuples become lists.

    Raises:
        CollateError: a `RuntimeError`: shapes or lengths differ. Names the field and the shapes.
        CollateTypeError: a `TypeError`: some type is not known; see `register_collate`.

    Examples:
        >>> default_collate([{"a": 0, "b": "x"}, {"a": 1, "b": "y"}])["b"]
        ['x', 'y']
    """
    return _auto_collator()(batch)


def default_convert(data: Any) -> Any:
    """The arrays in one sample as tensors (if torch is installed), without a new dimension; the rest as it is."""
    return _auto_collator().convert(data)


def _auto_collator() -> Collator:
    return Collator(framework_of("auto"))

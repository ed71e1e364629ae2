"""`default_collate` and `default_convert` give what torch's give: the same bits, containers and errors."""

from __future__ import annotations

import array
import enum
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data._utils.collate import default_collate_fn_map

import headrace

from . import samples
from .equality import fingerprint, outcome
from .exploring import explore

pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental",
    "ignore:The given NumPy array is not writable",
)


def assert_same(action: Callable[[ModuleType], Any]) -> None:
    assert outcome(lambda: action(headrace)) == outcome(lambda: action(torch_data))


@explore(300)
@given(samples.structures, st.integers(1, 5))
def test_collate(structure: Any, n: int) -> None:
    assert_same(lambda library: library.default_collate([structure(i) for i in range(n)]))


@explore(200)
@given(samples.structures)
def test_convert(structure: Any) -> None:
    assert_same(lambda library: library.default_convert(structure(3)))


@explore(250)
@given(st.lists(samples.structures, min_size=1, max_size=3))
def test_samples_that_do_not_match(structures: list[Any]) -> None:
    assert_same(lambda library: library.default_collate([structure(i) for i, structure in enumerate(structures)]))


mixed_shapes = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)


@explore(150)
@given(st.lists(st.builds(samples.Array, st.sampled_from(samples.NUMPY_DTYPES), mixed_shapes), min_size=2, max_size=3))
def test_arrays_of_mixed_types_and_shapes(leaves: list[samples.Array]) -> None:
    assert_same(lambda library: library.default_collate([leaf(i) for i, leaf in enumerate(leaves)]))


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Pair(tuple):
    pass


class Tagged(torch.Tensor):
    pass


IMAGE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
VOLUME = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
Empty = namedtuple("Empty", [])
THING = object()

BATCHES: dict[str, Callable[[], Any]] = {
    "int and float": lambda: [1, 2.5],
    "float and int": lambda: [2.5, 1],
    "bool and int": lambda: [True, 2],
    "int and bool": lambda: [2, True],
    "huge ints": lambda: [2**62, -(2**63)],
    "an int of 64 bits": lambda: [2**63],
    "an int of 65 bits": lambda: [2**64],
    "a far too large int": lambda: [1, 2**70],
    "a large int and a float": lambda: [1.5, 2**70],
    "number and string": lambda: [1, "a"],
    "float and string": lambda: [1.5, "a"],
    "string and number": lambda: ["a", 1],
    "number and None": lambda: [1, None],
    "number and list": lambda: [1, [2]],
    "list and number": lambda: [[1], 2],
    "NumPy types": lambda: [np.float32(1), np.float64(2)],
    "NumPy and Python": lambda: [np.float32(1), 2],
    "Python and NumPy": lambda: [1, np.float32(1)],
    "None": lambda: [None, None],
    "sets": lambda: [{1}, {2}],
    "complex": lambda: [1j, 2j],
    "objects": lambda: [THING, THING],
    "fractions": lambda: [Fraction(1, 2)],
    "dates": lambda: [np.datetime64("2020")],
    "durations": lambda: [np.timedelta64(1, "s")],
    "long doubles": lambda: [np.longdouble(1)],
    "nothing": list,
    "no batch": lambda: None,
    "an iterator": lambda: iter([1]),
    "tuple of strings": lambda: ("a", "b"),
    "array as batch": lambda: np.ones((3, 2)),
    "tensor as batch": lambda: torch.ones(3, 2),
    "ragged lists": lambda: [[1, 2], [1]],
    "ragged tuples": lambda: [(1, 2), (1,)],
    "ragged named tuples": lambda: [samples.Point(1, 2), (1,)],
    "missing key": lambda: [{"a": 1, "b": 2}, {"a": 1}],
    "surplus key": lambda: [{"a": 1}, {"a": 1, "b": 2}],
    "unequal shapes": lambda: [np.ones(2), np.ones(3)],
    "unequal tensors": lambda: [torch.ones(2), torch.ones(3)],
    "nested unequal shapes": lambda: [{"a": [np.ones(2)]}, {"a": [np.ones(3)]}],
    "array and number": lambda: [np.ones(2), 2],
    "array and None": lambda: [np.ones(2), None],
    "array and tensor": lambda: [np.ones(2), torch.ones(2)],
    "tensor and array": lambda: [torch.ones(2), np.ones(2)],
    "array and list": lambda: [np.ones(2), [0.1, 0.2]],
    "tensors of mixed types": lambda: [torch.ones(2), torch.ones(2, dtype=torch.int64)],
    "0-d arrays": lambda: [np.array(1.5), np.array(2.5)],
    "0-d and 1-d": lambda: [np.array(1.5), np.array([2.5])],
    "object arrays": lambda: [np.array([None])],
    "string arrays": lambda: [np.array(["a"])],
    "bytes arrays": lambda: [np.array([b"a"])],
    "void arrays": lambda: [np.zeros(2, "V3")],
    "date arrays": lambda: [np.zeros(2, "M8[s]")],
    "foreign byte order": lambda: [np.ones(2, ">f4")],
    "foreign byte order, 0-d": lambda: [np.ones((), ">f4")],
    "long double arrays": lambda: [np.ones(2, "g")],
    "masked arrays": lambda: [np.ma.masked_array([1, 2], [False, True])],
    "matrices": lambda: [np.asmatrix([[1, 2]])],
    "images, channels last": lambda: [IMAGE.transpose(2, 0, 1)] * 2,
    "volumes, channels last": lambda: [VOLUME.transpose(0, 3, 1, 2)] * 2,
    "volumes, reversed": lambda: [VOLUME.T] * 2,
    "volumes, mixed layouts": lambda: [VOLUME, np.asfortranarray(VOLUME)],
    "tensor volumes": lambda: [torch.from_numpy(VOLUME).contiguous(memory_format=torch.channels_last)] * 2,
    "enums": lambda: [Colour.RED, Colour.RED],
    "str subclass": lambda: [Text("a"), Text("b")],
    "int subclass": lambda: [Whole(1), Whole(2)],
    "float subclass": lambda: [Real(1), Real(2)],
    "tuple subclass": lambda: [Pair((1, 2)), Pair((3, 4))],
    "empty named tuple": lambda: [Empty(), Empty()],
    "np.str_": lambda: [np.str_("a")],
    "np.bytes_": lambda: [np.bytes_(b"a")],
    "bytearray": lambda: [bytearray(b"ab")] * 2,
    "memoryview": lambda: [memoryview(b"ab")] * 2,
    "array.array": lambda: [array.array("d", [1, 2])] * 2,
    "Counter": lambda: [Counter("aab"), Counter("aab")],
    "torch.Size": lambda: [torch.Size([1, 2])] * 2,
    "Parameter": lambda: [torch.nn.Parameter(torch.ones(2))] * 2,
    "requires grad": lambda: [torch.ones(2, requires_grad=True)] * 2,
    "subclass of Tensor": lambda: [torch.ones(2).as_subclass(Tagged)] * 2,
    "sparse": lambda: [torch.ones(2, 2).to_sparse()] * 2,
    "sparse CSR": lambda: [torch.ones(2, 2).to_sparse_csr()] * 2,
    "dense and sparse": lambda: [torch.ones(2, 2), torch.ones(2, 2).to_sparse()],
    "nested": lambda: [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] * 2,
    "conjugate views": lambda: [torch.ones(2, dtype=torch.complex64).conj()] * 2,
    "types inside a dict": lambda: [{"a": {1}}, {"a": {2}}],
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_edge_cases(batch: Callable[[], Any]) -> None:
    assert_same(lambda library: library.default_collate(batch()))


# np.bytes_ is an intended difference.
SINGLES = {name: make for name, make in BATCHES.items() if name != "np.bytes_"}


@pytest.mark.parametrize("batch", SINGLES.values(), ids=SINGLES.keys())
def test_edge_cases_converted(batch: Callable[[], Any]) -> None:
    assert_same(lambda library: [library.default_convert(item) for item in batch()])


def test_numbers_go_to_the_default_device() -> None:
    for batch in ([1, 2], [1.5, 2.5], [np.float32(1)] * 2, [np.ones(2)] * 2, [np.array(1)] * 2):
        with torch.device("meta"):
            ours, theirs = (library.default_collate(batch) for library in (headrace, torch_data))
        assert (ours.device, ours.dtype, ours.shape) == (theirs.device, theirs.dtype, theirs.shape)


def test_converted_arrays_share_memory() -> None:
    rows = np.zeros(3)
    headrace.default_convert({"a": [rows]})["a"][0].fill_(1)
    assert rows.tolist() == [1, 1, 1]


def test_mutable_containers_keep_their_attributes() -> None:
    first = samples.RichDict(a=samples.RichList([1]))
    first.note = first["a"].note = "kept"
    for collated in (headrace.default_collate([first, first]), headrace.default_convert(first)):
        assert (collated.note, collated["a"].note) == ("kept", "kept")
    assert first == {"a": [1]}


@pytest.fixture
def taught() -> Iterator[dict[Any, Any]]:
    """torch's registry of collate functions, put back afterwards."""
    before = dict(default_collate_fn_map)
    yield default_collate_fn_map
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


class Document:
    pass


class Letter(Document):
    pass


class Record(dict):
    pass


class LongRecord(Record):
    pass


def count(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return ("counted", len(batch))


TAUGHT: dict[str, tuple[Any, Any]] = {
    "class": (Document, Document()),
    "subclass": (Document, Letter()),
    "dict class": (Record, Record(a=1)),
    "subclass of a dict class": (Record, LongRecord(a=1)),
    "one of several": ((Document, Record), LongRecord(a=1)),
    "standard class": (Fraction, Fraction(1, 2)),
    "array": (np.ndarray, np.ones(2)),
    "tensor": (torch.Tensor, torch.ones(2)),
    "tensor, seen as array": (torch.Tensor, np.ones(2)),
    "int": (int, 3),
    "float": (float, 3.5),
    "str": (str, "text"),
}


@pytest.mark.parametrize(("registered", "sample"), TAUGHT.values(), ids=TAUGHT.keys())
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_types_taught_to_torch(taught: dict[Any, Any], registered: Any, sample: Any, nested: bool) -> None:
    batch = [{"field": sample}] * 3 if nested else [sample] * 3
    assert_same(lambda library: library.default_collate(batch))
    known = dict(taught)
    taught[registered] = count  # from now on, whatever was collated before
    assert_same(lambda library: library.default_collate(batch))
    taught.clear()
    taught.update(known)
    assert_same(lambda library: library.default_collate(batch))


def test_a_type_may_be_taught_to_torch_with_a_function_of_its_own(taught: dict[Any, Any]) -> None:
    taught[Document] = taught[str]  # keep them as they are
    documents = [Document(), Document()]
    assert_same(
        lambda library: [
            part is document for part, document in zip(library.default_collate(documents), documents, strict=True)
        ]
    )


def test_types_taught_to_torch_count_for_whole_batches_too(taught: dict[Any, Any]) -> None:
    taught[torch.Tensor] = count
    for data in (torch.arange(4), np.ones((4, 2)), torch_data.TensorDataset(torch.arange(4))):
        assert_same(lambda library, data=data: list(library.DataLoader(data, 2)))


def test_errors_name_the_field_and_the_shapes() -> None:
    with pytest.raises(RuntimeError, match=r"sample\['a'\]\[1\].*\(2,\).*\(3,\).*pad_collate"):
        headrace.default_collate([{"a": (1, np.ones(2))}, {"a": (1, np.ones(3))}])
    with pytest.raises(TypeError, match=r"sample\['x'\].*set.*register_collate"):
        headrace.default_collate([{"x": {1}}])


def test_the_batch_has_its_own_memory() -> None:
    row = np.zeros(3)
    batch = headrace.default_collate([row])
    batch += 1
    assert row.tolist() == [0, 0, 0]
    assert fingerprint(batch) == fingerprint(torch.ones(1, 3, dtype=torch.float64))

"""Collating as samples arrive gives what collating all of them gives: values, layout, containers and errors."""

from __future__ import annotations

from collections import OrderedDict, UserList, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Collator, pad_collate, register_collate
from headrace.batch import collate as collate_module
from headrace.batch import rows
from headrace.batch.rows import RowBuilder
from headrace.batch.sequences import _PaddingCollator
from headrace.frameworks import framework_of
from headrace.frameworks.framework import empty_aligned
from tests.needs import HAS_JAX, HAS_TORCH, needs_jax, needs_torch

if HAS_TORCH:
    import torch

pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental",
    "ignore:The given NumPy array is not writable",
    "ignore:Explicitly requested dtype",
)

OUTPUTS = ["numpy", *["torch"] * HAS_TORCH, *["jax"] * HAS_JAX]
Point = namedtuple("Point", ["x", "y"])


class PointAndMore(Point):
    def __iter__(self):
        return reversed((self[0], self[1]))


@dataclass
class Wrapped:
    value: Any


class Tagged(np.ndarray):
    pass


@pytest.fixture(autouse=True, scope="module")
def small_is_large():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_LARGE", 16)
        patch.setattr(rows, "_WORTHWHILE", 1)
        yield


@pytest.fixture(autouse=True, scope="module")
def a_registered_type():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collate_module, "_registry", dict(collate_module._registry))
        patch.setattr(collate_module, "_taught", dict(collate_module._taught))
        register_collate(Wrapped, lambda values, collator: Wrapped(collator([v.value for v in values])))
        yield
    collate_module._resolved.clear()


@pytest.fixture
def registry(monkeypatch):
    """Leaves the registry as it was."""
    monkeypatch.setattr(collate_module, "_registry", dict(collate_module._registry))
    monkeypatch.setattr(collate_module, "_taught", dict(collate_module._taught))
    yield
    collate_module._resolved.clear()


def collator_into(output: str = "numpy", allocate: Any = empty_aligned) -> Collator:
    return Collator(framework_of(output, allocate))


def build(collator: Collator, samples: Any, size: int | None = None) -> Any:
    builder = RowBuilder(collator, len(samples) if size is None else size)
    for sample in samples:
        builder.add(sample)
    return builder.finish()


def describe(value: Any) -> Any:
    """What a batch is, to the last bit and stride."""
    if HAS_TORCH and isinstance(value, torch.Tensor):
        bits = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        strides = value.stride() if value.numel() else None
        return (type(value), value.dtype, value.requires_grad, tuple(value.shape), strides, bits.numpy().tobytes())
    if hasattr(value, "dtype"):
        array = np.asarray(value)
        strides = array.strides if array.size else None
        return (type(value), array.dtype, array.shape, strides, array.tobytes())
    if isinstance(value, (dict, OrderedDict)):
        return (type(value), [(key, describe(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple, UserList)):
        return (type(value), [describe(item) for item in value])
    return (type(value), describe(value.value) if isinstance(value, Wrapped) else value)


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return describe(action())
    except Exception as error:  # noqa: BLE001 (whatever it is, it is to be the same)
        return (type(error), str(error))


# Samples are described by specs, from which the same sample can be made again.


def contents(seed: int, dtype: Any, shape: Any) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def arrange(array: np.ndarray, layout: str) -> np.ndarray:
    if layout == "read-only":
        array.flags.writeable = False
    elif layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array.T).T
    elif layout == "every second" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    elif layout == "stride 0":
        return array[None]
    elif layout == "tagged":
        return array.view(Tagged)
    return array


def make(spec: Any, seed: int) -> Any:
    match spec:
        case ("array", dtype, shape, layout):
            return arrange(contents(seed, dtype, shape), layout)
        case ("tensor", dtype, shape, layout):
            return torch.from_numpy(arrange(contents(seed, dtype, shape), layout))
        case ("grad", shape):
            return torch.from_numpy(contents(seed, "f4", shape)).requires_grad_()
        case ("bfloat16", shape):
            return torch.from_numpy(contents(seed, "f4", shape)).bfloat16()
        case ("channels last", shape):
            return torch.from_numpy(contents(seed, "f4", shape)).contiguous(memory_format=torch.channels_last)
        case ("conjugate", shape):
            return torch.from_numpy(contents(seed, "c8", shape)).conj()
        case ("sparse", shape):
            return torch.from_numpy(contents(seed, "f4", shape)).to_sparse()
        case ("scalar", number):
            return type(number)(number + seed) if not isinstance(number, str) else f"{number}{seed}"
        case ("none",):
            return None
        case ("wrapped", inner):
            return Wrapped(make(inner, seed))
        case ("dict", kind, items):
            return kind({key: make(item, seed + i) for i, (key, item) in enumerate(items)})
        case ("sequence", kind, items):
            return kind([make(item, seed + i) for i, item in enumerate(items)])
        case ("point", kind, x, y):
            return kind(make(x, seed), make(y, seed + 1))
    raise AssertionError(spec)


DTYPES = ["?", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", ">f4", "g", "O", "U3", "M8[s]", "i4,f8"]
common_dtypes = st.sampled_from(["f4", "f4", "u1", "i8", "f8"])
dtypes = common_dtypes | st.sampled_from(DTYPES)
shapes = st.sampled_from([(), (0,), (1,), (4,), (5,), (2, 4), (1, 8), (2, 3, 4), (1, 5, 5), (2, 1, 3, 3), (2, 4, 1, 1)])
layouts = st.sampled_from(["C", "C", "C", "read-only", "reversed", "every second", "stride 0", "tagged"])

arrays = st.tuples(st.just("array"), dtypes, shapes, layouts)
plain_arrays = st.tuples(st.just("array"), common_dtypes, shapes, st.just("C"))
leaves: st.SearchStrategy[Any] = (
    plain_arrays
    | arrays
    | st.tuples(st.just("scalar"), st.sampled_from([1, 2.5, True, "text", np.float32(1.5), np.int64(2)]))
    | st.just(("none",))
)
if HAS_TORCH:
    tensor_layouts = st.sampled_from(["C", "C", "reversed", "every second", "stride 0"])
    leaves |= st.tuples(st.just("tensor"), common_dtypes, shapes, tensor_layouts)
    leaves |= st.tuples(st.sampled_from(["grad", "bfloat16", "conjugate", "sparse"]), st.just((2, 4)))
    leaves |= st.tuples(st.just("channels last"), st.sampled_from([(2, 3, 3, 3), (2, 1, 3, 3), (2, 4, 1, 1)]))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
    items = keys.flatmap(lambda names: st.tuples(*(st.tuples(st.just(name), inner) for name in names)))
    return (
        st.tuples(st.just("sequence"), st.sampled_from([tuple, tuple, list, UserList]), st.lists(inner, max_size=3))
        | st.tuples(st.just("dict"), st.sampled_from([dict, dict, OrderedDict]), items)
        | st.tuples(st.just("point"), st.sampled_from([Point, PointAndMore]), inner, inner)
        | st.tuples(st.just("wrapped"), inner)
    )


specs = st.recursive(leaves, containers, max_leaves=6)


@st.composite
def near(draw: Any, spec: Any) -> Any:
    """A spec that differs from the given one in one place, or not at all."""
    match spec:
        case ("array" | "tensor" as kind, dtype, shape, layout) if draw(st.booleans()):
            changed = [
                (draw(dtypes if kind == "array" else common_dtypes), shape, layout),
                (dtype, draw(shapes), layout),
                (dtype, shape, "C"),
            ]
            return (kind, *draw(st.sampled_from(changed)))
        case ("sequence", kind, items) if items and draw(st.integers(0, 3)):
            i = draw(st.integers(0, len(items) - 1))
            return ("sequence", kind, [*items[:i], draw(near(items[i])), *items[i + 1 :]])
        case ("sequence", kind, items):
            kind = draw(st.sampled_from([tuple, list]))
            return ("sequence", kind, draw(st.sampled_from([items, items[:-1], [*items, ("scalar", 1)]])))
        case ("dict", kind, items) if draw(st.integers(0, 3)):
            i = draw(st.integers(0, len(items) - 1))
            return ("dict", kind, (*items[:i], (items[i][0], draw(near(items[i][1]))), *items[i + 1 :]))
        case ("dict", kind, items):
            return ("dict", kind, draw(st.sampled_from([items[1:], items[::-1], (*items, ("z", ("scalar", 1)))])))
        case ("point", kind, x, y):
            return draw(st.sampled_from([("point", kind, draw(near(x)), y), ("point", kind, x, draw(near(y)))]))
        case ("wrapped", inner):
            return ("wrapped", draw(near(inner)))
    return draw(leaves)


@st.composite
def batches(draw: Any) -> list[Any]:
    """The specs of a batch: all alike, or one or two of them a little different."""
    spec = draw(specs)
    batch = [spec] * draw(st.integers(1, 5))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        batch[draw(st.integers(0, len(batch) - 1))] = draw(near(spec))
    return batch


explore = settings(max_examples=400, deadline=None, derandomize=True, database=None)


@explore
@given(batches(), st.integers(-2, 3), st.sampled_from(OUTPUTS))
def test_the_batch_is_the_collators(batch, surplus, output):
    def samples():
        return [make(spec, 10 * i) for i, spec in enumerate(batch)]

    collator = collator_into(output)
    expected = outcome(lambda: collator(samples()))
    assert outcome(lambda: build(collator, samples(), len(batch) + surplus)) == expected


@needs_torch
@explore
@given(batches())
def test_the_batch_is_torchs(batch):
    from torch.utils.data import default_collate

    from tests.parity.equality import outcome

    batch = [known_to_torch(spec) for spec in batch]

    def samples():
        return [make(spec, 10 * i) for i, spec in enumerate(batch)]

    ours = outcome(lambda: build(collator_into("torch"), samples()))
    assert ours[:-1] == outcome(lambda: default_collate(samples()))[:-1]  # torch gives some warnings only once


def known_to_torch(spec: Any) -> Any:
    match spec:
        case ("wrapped", inner):
            return known_to_torch(inner)
        case ("array", "i4,f8", shape, layout):  # torch has no records; headrace makes dicts of them
            return ("array", "f8", shape, layout)
        case ("sequence", kind, items):
            return ("sequence", kind, [known_to_torch(item) for item in items])
        case ("dict", kind, items):
            return ("dict", kind, [(key, known_to_torch(item)) for key, item in items])
        case ("point", kind, x, y):
            return ("point", kind, known_to_torch(x), known_to_torch(y))
    return spec


# When arrays go by rows, and when not


class Memory:
    """Allocates, and remembers what."""

    def __init__(self) -> None:
        self.given: list[np.ndarray] = []

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.given.append(np.full(shape, 77, dtype))
        return self.given[-1]

    def holds(self, batch: Any) -> bool:
        return any(np.shares_memory(np.asarray(batch), given) for given in self.given)


def image(i: int) -> np.ndarray:
    return np.full((3, 4), i, np.float32)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "alone": image,
    "tuple": lambda i: (image(i), i),
    "list": lambda i: ["text", image(i)],
    "dict": lambda i: {"n": i, "x": image(i), "y": np.arange(20)},
    "named tuple": lambda i: Point(i, image(i)),
    "nested": lambda i: {"a": (i, image(i)), "b": Point(image(i), [i])},
    "a new axis": lambda i: (image(i)[None], i),
    "read-only": lambda i: np.broadcast_to(image(i), (3, 4)),
}
if HAS_TORCH:
    SAMPLES["tensor"] = lambda i: torch.full((3, 4), i)
    SAMPLES["tensor and array"] = lambda i: (torch.full((3, 4), i), image(i))
    SAMPLES["tensor of four dimensions"] = lambda i: torch.full((2, 1, 3, 3), i)


def arrays_in(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [array for item in batch.values() for array in arrays_in(item)]
    if isinstance(batch, (list, tuple)):
        return [array for item in batch for array in arrays_in(item)]
    return [batch] if np.asarray(batch).size >= 12 else []


@pytest.mark.parametrize("make_sample", SAMPLES.values(), ids=SAMPLES.keys())
@pytest.mark.parametrize("output", [output for output in OUTPUTS if output != "jax"])
@pytest.mark.parametrize("size", [3, 5])
def test_samples_are_written_where_the_batch_will_be(make_sample, output, size):
    memory = Memory()
    builder = RowBuilder(collator_into(output, memory.allocate), size)
    for i in range(3):
        builder.add(make_sample(i))
        assert len(memory.given) == len(arrays_in(make_sample(0)))
        for array in memory.given:
            assert (array[i + 1 :] == 77).all()
            assert (array[i] != 77).all()
    batch = builder.finish()
    assert describe(batch) == describe(collator_into(output)([make_sample(i) for i in range(3)]))
    assert all(memory.holds(array) for array in arrays_in(batch))


class NoCopies:
    """Fails if asked for memory."""

    @staticmethod
    def allocate(shape: Any, dtype: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "sample",
    [
        1,
        "text",
        [1.5, 2],
        np.ones(2, np.uint8),
        np.ones((8, 8), order="F")[:, 1:],
        np.ones(8, ">f4"),
        np.ones(8, "g"),
        np.ones(8, "i4,f4"),
        np.array(["text"] * 8),
        np.array([None] * 8),
        np.ones(8).view(Tagged),
        OrderedDict(a=np.ones(8)),
        PointAndMore(np.ones(8), 1),
        Wrapped(np.ones(8)),
        [[[np.ones(8)]]],
    ],
    ids=str,
)
def test_other_samples_are_only_kept(sample):
    builder = RowBuilder(collator_into("numpy", NoCopies.allocate), 4)
    builder.add(sample)
    assert builder.add == builder._samples.append
    builder.add(sample)
    assert all(kept is sample for kept in builder._samples)


@needs_torch
@pytest.mark.parametrize("kind", ["grad", "bfloat16", "conjugate", "sparse"])
def test_tensors_that_numpy_cannot_read_are_only_kept(kind):
    tensor = make((kind, (2, 4)), 0)
    builder = RowBuilder(collator_into("torch", NoCopies.allocate), 4)
    builder.add(tensor)
    assert builder._samples[0] is tensor


def test_small_batches_are_only_kept(monkeypatch):
    monkeypatch.setattr(rows, "_WORTHWHILE", 3 * 48)
    for size, kept in ((2, True), (3, False)):
        builder = RowBuilder(collator_into(), size)
        builder.add((image(0), 0))
        assert (builder.add == builder._samples.append) is kept
    builder = RowBuilder(collator_into(), 2)
    builder.add((image(0), image(1)))  # all arrays of a sample count
    assert builder.add != builder._samples.append


def test_too_large_a_batch_is_only_kept():
    def allocate(shape, dtype):
        raise MemoryError

    builder = RowBuilder(collator_into("numpy", allocate), 10**9)
    builder.add(image(1))
    assert builder._samples[0].tolist() == image(1).tolist()


def test_a_collator_of_another_class_sees_the_samples():
    padding = _PaddingCollator(collator_into(), pad_collate(lengths=False), None)
    assert build(padding, [np.ones(8), np.ones(4)]).sum(axis=1).tolist() == [8, 4]


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("kind", [np.ndarray, tuple, object])
def test_a_registered_function_sees_real_arrays(kind):
    register_collate(kind, lambda values, collator: [type(value) for value in values])
    for sample in (image(0), (image(0), 1)):
        assert describe(build(collator_into(), [sample] * 3)) == describe(collator_into()([sample] * 3))


@needs_torch
@pytest.mark.usefixtures("registry")
def test_a_function_registered_for_tensors_sees_tensors():
    register_collate(torch.Tensor, lambda values, collator: [type(value) for value in values])
    assert build(collator_into(), [(torch.ones(8),)] * 2) == [[torch.Tensor] * 2]


def test_samples_are_not_changed():
    arrays = [image(i) for i in range(3)]
    samples = [{"x": array, "y": [array]} for array in arrays]
    batch = build(collator_into(), samples)
    batch["x"] += 1
    for i, (sample, array) in enumerate(zip(samples, arrays, strict=True)):
        assert sample["x"] is sample["y"][0] is array
        assert (array == i).all()


def test_an_array_that_is_filled_again_gives_different_rows():
    array = np.zeros(8)
    builder = RowBuilder(collator_into(), 3)
    for i in range(3):
        array[:] = i
        builder.add(array)
    assert builder.finish()[:, 0].tolist() == [0, 1, 2]


def test_the_caller_may_hold_on_to_add():
    builder = RowBuilder(collator_into(), 3)
    add = builder.add
    for i in range(3):
        add((image(i), i))
    assert builder.finish()[1].tolist() == [0, 1, 2]


def test_memory_maps(tmp_path):
    np.arange(60, dtype=np.float32).tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", np.float32, "r", shape=(3, 20))
    for samples in (list(mapped), [np.asarray(row) for row in mapped], [mapped[0], mapped[1].copy()]):
        assert describe(build(collator_into(), samples)) == describe(collator_into()(samples))


@pytest.mark.parametrize("output", OUTPUTS)
def test_errors_are_the_collators(output):
    def samples(odd):
        return [{"x": (0, image(i))} for i in range(3)] + [{"x": (0, odd)}, {"x": (0, image(4))}]

    collator = collator_into(output)
    for odd in (np.ones((5, 2), np.float32), None, "text", 1.5, [1, 2]):
        expected = outcome(lambda odd=odd: collator(samples(odd)))
        assert outcome(lambda odd=odd: build(collator, samples(odd))) == expected
    with pytest.raises(RuntimeError, match=r"sample\['x'\]\[1\].* \(3, 4\) at entry 0 and \(5, 2\) at entry 3"):
        build(collator, samples(np.ones((5, 2), np.float32)))


def test_no_sample():
    with pytest.raises(IndexError, match="got none"):
        RowBuilder(collator_into(), 3).finish()


@needs_torch
def test_tensors_stay_on_their_device_and_arrays_go_to_the_default_one():
    with torch.device("meta"):
        collator = collator_into("torch")
        tensors = [torch.ones(8, device="cpu")] * 2
        assert build(collator, tensors).device.type == collator(tensors).device.type == "cpu"
        assert build(collator, [np.ones(8)] * 2).device.type == collator([np.ones(8)] * 2).device.type == "meta"


@needs_jax
def test_integers_that_jax_would_cut_are_refused():
    samples = [{"n": np.full(8, 2**40)} for _ in range(2)]
    collator = collator_into("jax")
    assert outcome(lambda: build(collator, samples)) == outcome(lambda: collator(samples))


@pytest.mark.parametrize("output", OUTPUTS)
def test_batches_of_the_size_that_pays(output, monkeypatch):
    monkeypatch.setattr(rows, "_LARGE", 2**15)
    monkeypatch.setattr(rows, "_WORTHWHILE", 2**23)
    samples = [(np.random.default_rng(i).random((3, 224, 224), np.float32), i) for i in range(16)]
    assert describe(build(collator_into(output), samples, 20)) == describe(collator_into(output)(samples))

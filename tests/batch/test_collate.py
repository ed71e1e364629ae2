"""The default collation: by type, field by field, and errors that say where and what to do."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

from headrace import (
    CollateError,
    CollateTypeError,
    Collator,
    DataLoader,
    StackDataset,
    TensorDataset,
    default_collate,
    default_convert,
    register_collate,
)
from headrace.batch import collate as collate_module
from headrace.batch.collate import collates_rows_by_default, is_collated_by_default
from headrace.batch.rows import RowBuilder
from headrace.frameworks import framework_of
from tests.needs import HAS_TORCH, needs_jax, needs_torch

Point = namedtuple("Point", "x y")
to_numpy = Collator(framework_of("numpy"))


@pytest.fixture
def registry(monkeypatch):
    """Leaves the registry as it was."""
    monkeypatch.setattr(collate_module, "_registry", dict(collate_module._registry))
    yield
    collate_module._resolved.clear()


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([1, 2], "int64"),
        ([1.0, 2.0], "float64"),
        ([True, False], "bool"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.uint8(1), np.uint8(2)], "uint8"),
        ([np.bool_(True), np.bool_(False)], "bool"),
        ([np.zeros((2, 3), np.int16)] * 2, "int16"),
        ([np.array(1.5, np.float16)] * 2, "float16"),
        ([np.zeros((0, 3), np.float32)] * 2, "float32"),
    ],
)
def test_numbers_and_arrays_keep_their_type(samples, dtype):
    for collate in (default_collate, to_numpy):
        batch = collate(samples)
        assert str(batch.dtype).removeprefix("torch.") == dtype
        np.testing.assert_array_equal(np.asarray(batch), np.stack([np.asarray(sample) for sample in samples]))


def test_the_default_output_is_torch_if_installed_and_numpy_otherwise():
    assert type(default_collate([1, 2])).__name__ == ("Tensor" if HAS_TORCH else "ndarray")
    assert type(to_numpy([1, 2])) is np.ndarray


def test_text_and_bytes_stay_as_they_are():
    assert default_collate(["a", "b"]) == ["a", "b"]
    assert default_collate([b"a", b"b"]) == [b"a", b"b"]
    assert default_collate([{"name": "a"}, {"name": "b"}]) == {"name": ["a", "b"]}


def test_containers_are_collated_field_by_field_and_keep_their_type():
    sample = {"p": Point(1, [2.0, ("t", np.zeros(2))]), "n": OrderedDict(a=1)}
    batch = to_numpy([sample, sample])
    assert type(batch["p"]) is Point
    assert batch["p"].x.tolist() == [1, 1]
    assert batch["p"].y[0].tolist() == [2.0, 2.0]
    assert type(batch["p"].y[1]) is list  # a plain tuple
    assert batch["p"].y[1][0] == ("t", "t")
    assert batch["p"].y[1][1].shape == (2, 2)
    assert type(batch["n"]) is OrderedDict


def test_mappings_and_sequences_of_other_types():
    batch = to_numpy([defaultdict(int, a=1), defaultdict(int, a=2)])
    assert type(batch) is defaultdict
    assert (batch["a"].tolist(), batch.default_factory) == ([1, 2], int)
    assert type(to_numpy([UserDict(a=1)] * 2)) is UserDict
    assert type(to_numpy([UserList([1])] * 2)) is UserList
    assert type(to_numpy([deque([1])] * 2)) is deque
    assert [column.tolist() for column in to_numpy([range(2), range(1, 3)])] == [[0, 1], [1, 2]]


def test_the_samples_are_not_changed():
    sample = defaultdict(int, a=1, b=[1, 2])
    default_collate([sample, sample])
    assert sample == {"a": 1, "b": [1, 2]}


def test_subclasses_are_collated_as_their_base():
    class Celsius(float):
        pass

    class Name(str):
        pass

    assert np.asarray(default_collate([Celsius(1), Celsius(2)])).tolist() == [1.0, 2.0]
    assert default_collate([Name("a")]) == ["a"]


def test_records_are_stacked_and_as_tensors_they_become_dicts():
    records = np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "i4"), ("x", "f8")])
    for samples in (list(records), [record.reshape(()) for record in records]):
        assert to_numpy(samples).tolist() == [(1, 2.0), (3, 4.0)]
        if HAS_TORCH:
            batch = default_collate(samples)
            assert {name: column.tolist() for name, column in batch.items()} == {"n": [1, 3], "x": [2.0, 4.0]}


def test_python_integers_that_do_not_fit_are_refused_not_rounded():
    for samples in ([2**63, -1], [2**70, 0]):
        with pytest.raises((OverflowError, RuntimeError, ValueError)):
            to_numpy(samples)
        with pytest.raises((OverflowError, RuntimeError, ValueError)):
            default_collate(samples)


# Errors


def test_unequal_shapes_name_the_field_the_shapes_and_the_cure():
    samples = [{"x": (0, np.zeros((3, 2)))}, {"x": (0, np.zeros((5, 2)))}, {"x": (0, np.zeros((3, 2)))}]
    for collate in (default_collate, to_numpy):
        with pytest.raises(CollateError) as caught:
            collate(samples)
        message = str(caught.value)
        assert message.startswith("In the field sample['x'][1]: stack expects each sample to be of equal size")
        assert "got (3, 2) at entry 0 and (5, 2) at entry 1" in message
        assert "shapes in this batch: (3, 2), (5, 2))" in message
        assert "collate_fn=headrace.pad_collate()" in message


def test_shapes_of_another_number_of_dimensions_are_named_too():
    with pytest.raises(CollateError, match=r"\(3,\) at entry 0 and \(\) at entry 1"):
        default_collate([np.zeros(3), np.zeros(())])


def test_lists_of_unequal_length_name_the_lengths_and_the_cure():
    with pytest.raises(CollateError, match=r"of equal size, but got 1 at entry 0 and 2 at entry 1.*pad_collate"):
        default_collate([[1], [1, 2]])
    with pytest.raises(CollateError, match=r"^In the field sample\['ids'\]: each element"):
        default_collate([{"ids": [1]}, {"ids": [1, 2]}])


def test_a_missing_key_names_the_sample():
    with pytest.raises(KeyError, match="Sample 1 of the batch lacks the key 'b' that sample 0 has"):
        default_collate([{"a": 1, "b": 2}, {"a": 1}])


def test_an_unknown_type_is_named_with_its_field():
    @dataclass
    class Unknown:
        value: int

    for samples, field in (([1j, 2j], ""), ([None, None], ""), ([(0, Unknown(1))] * 2, r"In the field sample\[1\]: ")):
        with pytest.raises(CollateTypeError, match=f"^{field}batch must contain tensors.*register_collate"):
            default_collate(samples)


def test_arrays_of_objects_are_refused():
    for collate in (default_collate, to_numpy):
        with pytest.raises(CollateTypeError, match="dtype object"):
            collate([np.array([None])] * 2)


def test_an_empty_batch_is_named():
    with pytest.raises(IndexError, match=r"got none\. Does a sampler give empty lists"):
        default_collate([])


# The registry


class Money:
    def __init__(self, cents):
        self.cents = cents


class Euro(Money):
    pass


@pytest.mark.usefixtures("registry")
def test_a_registered_type_and_what_derives_from_it():
    with pytest.raises(CollateTypeError):
        default_collate([Money(1)])
    register_collate(Money, lambda values, collator: collator([value.cents for value in values]))
    for cls in (Money, Euro):
        batch = default_collate([{"price": cls(1)}, {"price": cls(2)}])
        assert np.asarray(batch["price"]).tolist() == [1, 2]
    register_collate(Euro, lambda values, collator: "euros")
    assert default_collate([Euro(1)]) == "euros"
    assert np.asarray(default_collate([Money(1)])).tolist() == [1]


@pytest.mark.usefixtures("registry")
def test_known_types_can_be_taught_anew_and_errors_keep_their_path():
    register_collate(str, lambda values, collator: "".join(values))
    assert default_collate([("a",), ("b",)]) == ["ab"]
    register_collate(Money, lambda values, collator: collator([value.cents for value in values]))
    with pytest.raises(CollateError, match=r"^In the field sample\['price'\]: "):
        default_collate([{"price": Money(np.zeros(1))}, {"price": Money(np.zeros(2))}])


@pytest.mark.usefixtures("registry")
def test_abstract_classes_can_be_registered():
    from numbers import Complex

    register_collate(Complex, lambda values, collator: collator(np.array(values)))
    assert np.asarray(default_collate([1j, 2j])).tolist() == [1j, 2j]
    assert np.asarray(default_collate([1, 2])).tolist() == [1, 2]  # the nearer class wins


# One sample


def test_convert_leaves_what_is_no_array():
    sample = {"x": np.arange(3), "n": 1, "t": "text", "l": (1, np.float32(2))}
    converted = default_convert(sample)
    assert np.asarray(converted["x"]).tolist() == [0, 1, 2]
    assert (converted["n"], converted["t"]) == (1, "text")
    assert type(converted["l"]) is list
    strings, objects = np.array(["a"]), np.array([None])
    assert default_convert(strings) is strings
    assert default_convert(objects) is objects


@needs_torch
def test_tensors_become_arrays_of_the_framework_asked_for():
    import torch

    sample = {"x": torch.ones(2, requires_grad=True), "n": 1}
    batch = to_numpy([sample, sample])
    assert type(batch["x"]) is np.ndarray
    assert batch["x"].tolist() == [[1, 1], [1, 1]]
    assert type(to_numpy.convert(sample)["x"]) is np.ndarray
    with pytest.raises(CollateTypeError, match="Tensor cannot become a NumPy array"):
        to_numpy([torch.ones(2, dtype=torch.bfloat16)])


@needs_torch
def test_sparse_and_nested_tensors_say_what_to_do():
    import torch

    with pytest.raises(CollateError, match="sparse tensors have no default batch; pass a collate_fn"):
        default_collate([torch.eye(2).to_sparse()] * 2)


@needs_torch
def test_what_torch_was_taught_is_known_here_too():
    import torch
    from torch.utils.data._utils.collate import default_collate_fn_map as known

    known[Money] = lambda batch, *, collate_fn_map=None: torch.tensor([value.cents for value in batch])
    try:
        assert default_collate([[Money(1)], [Euro(2)]])[0].tolist() == [1, 2]
        assert type(Collator(framework_of("numpy"))([Money(1)])) is np.ndarray
    finally:
        del known[Money]


@pytest.fixture
def taught_to_torch():
    """torch's registry of collate functions, with a class that no sample is of."""
    from torch.utils.data._utils.collate import default_collate_fn_map as known

    before = dict(known)
    known[Money] = lambda batch, *, collate_fn_map=None: [value.cents for value in batch]
    yield known
    known.clear()
    known.update(before)


@needs_torch
def test_a_type_that_torch_was_taught_leaves_all_others_on_their_way(taught_to_torch, monkeypatch):
    """Libraries teach torch their types as they are imported; no array may take longer for it."""
    import torch
    from torch.utils.data._utils import collate

    def refuse(batch):
        raise AssertionError("torch was asked to collate")

    large = torch.ones(2**20)
    dataset = StackDataset(x=np.arange(6.0), y=TensorDataset(np.ones((6, 3)), torch.ones(6, 2)))
    with monkeypatch.context() as patch:
        patch.setattr(collate, "default_collate", refuse)
        assert is_collated_by_default(dict)
        assert collates_rows_by_default()
        assert len(list(DataLoader(dataset, 2))) == 3
        assert default_collate([(large, {"a": 1}, "text")] * 2)[0].shape == (2, 2**20)
        builder = RowBuilder(Collator(framework_of("auto")), 2)
        builder.add((large, 1))
        assert not builder.only_keeps
        with pytest.raises(AssertionError, match="torch was asked"):
            default_collate([(large, Money(1))])
    assert default_collate([(1, Money(1)), (2, Euro(2))])[1] == [1, 2]
    taught_to_torch[torch.Tensor] = lambda batch, *, collate_fn_map=None: len(batch)
    assert default_collate([(large, 1)] * 3)[0] == 3
    assert not collates_rows_by_default()
    assert list(DataLoader(TensorDataset(torch.ones(4, 2)), 2)) == [[2], [2]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_for_arrays_counts_for_whole_batches_too(workers):
    register_collate(np.ndarray, lambda arrays, collator: len(arrays))
    assert list(DataLoader(TensorDataset(np.ones((4, 2))), 2, num_workers=workers)) == [[2], [2]]


@needs_jax
def test_jax_arrays_are_stacked():
    import jax.numpy as jnp

    batch = default_collate([jnp.arange(2), jnp.arange(2)])
    assert np.asarray(batch).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("output", ["numpy", pytest.param("torch", marks=needs_torch)])
@pytest.mark.parametrize("values", [[1, None], [1.5, None], [1, "a"], [np.float32(1), None], [np.ones(2), None]])
def test_one_value_that_does_not_fit_is_named_with_its_field(output, values):
    with pytest.raises((TypeError, RuntimeError), match=r"sample\['x'\]") as caught:
        Collator(framework_of(output))([{"x": value} for value in values])
    if isinstance(values[0], (int, float, np.float32)):
        assert "entry 1" in str(caught.value)


def test_a_sample_that_is_none_asks_whether_a_return_is_missing():
    with pytest.raises(TypeError, match="forget to return"):
        to_numpy([None, None])


@pytest.mark.parametrize(("kind", "collate"), [("Foo", len), (int, 3)])
def test_only_types_and_functions_can_be_registered(kind, collate):
    with pytest.raises(TypeError, match="type and a function"):
        register_collate(kind, collate)

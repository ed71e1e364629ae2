"""Whole batches at once: used where it changes nothing, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, Dataset, StackDataset, Subset, TensorDataset, default_collate
from tests.needs import as_lists, find_take, needs_torch


class Taking(Dataset):
    """Squares, with a `take` that tells in its values that it was used."""

    def __init__(self, n=8):
        self.n = n
        self.asked = []

    def __getitem__(self, index):
        return index * index

    def __len__(self):
        return self.n

    def take(self, indices):
        self.asked.append(indices)
        return np.asarray(indices) * 1000


class OtherItems(Taking):
    def __getitem__(self, index):
        return -index


class OtherManyItems(Taking):
    def __getitems__(self, indices):
        return [-i for i in indices]


class OtherItemsAndTake(OtherItems):
    def take(self, indices):
        return np.asarray(indices) * 7


class FirstN(Taking):
    def take(self, n):
        raise AssertionError("takes a number, as in other libraries")


class TwoArguments(Taking):
    def take(self, indices, axis):
        raise AssertionError("needs an axis")


class ExtraOption(Taking):
    def take(self, indices, copy=True):
        return np.asarray(indices) * 5


class TakeIsANumber(Taking):
    take = 5


class TakeIsAProperty(Taking):
    @property
    def take(self):
        return 5


class TakeReturnsDataset(Taking):
    def take(self, indices):
        return Subset(self, indices)


def first_batch(dataset, **options):
    if "batch_sampler" not in options:
        options["batch_size"] = 3
    return np.asarray(next(iter(DataLoader(dataset, **options)))).tolist()


def test_a_users_take_gets_an_int64_array():
    dataset = Taking()
    assert first_batch(dataset, sampler=[4, 2, 0]) == [4000, 2000, 0]
    assert dataset.asked[0].dtype == np.int64
    assert first_batch(dataset, shuffle=False) == [0, 1000, 2000]
    assert first_batch(dataset, collate_fn=default_collate) == [0, 1000, 2000]


def test_take_is_for_the_default_collation_of_batches_only():
    assert first_batch(Taking(), collate_fn=lambda samples: default_collate(samples)) == [0, 1, 4]
    assert [int(sample) for sample in DataLoader(Taking(3), batch_size=None)] == [0, 1, 4]


@pytest.mark.parametrize("keys", [[np.int32(3)], [True], [3.0]], ids=["int32", "bool", "float"])
def test_take_is_for_plain_integer_keys_only(keys):
    dataset = Taking()
    assert first_batch(dataset, batch_sampler=[keys]) == [keys[0] ** 2]
    assert dataset.asked == []


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (OtherItems, [-1, -2]),
        (OtherManyItems, [-1, -2]),
        (OtherItemsAndTake, [7, 14]),
        (FirstN, [1, 4]),
        (TwoArguments, [1, 4]),
        (ExtraOption, [5, 10]),
        (TakeIsANumber, [1, 4]),
        (TakeIsAProperty, [1, 4]),
    ],
)
def test_take_must_be_meant_for_it(cls, expected):
    assert first_batch(cls(), batch_sampler=[[1, 2]]) == expected


def test_take_of_another_meaning_is_named():
    with pytest.raises(TypeError, match=r"TakeReturnsDataset.take\(indices\) should return the batch .* got Subset"):
        first_batch(TakeReturnsDataset())


def test_a_class_of_no_dataset_may_call_anything_take():
    class Table(list):
        def take(self, indices):
            raise AssertionError("nobody said this is headrace's")

    assert first_batch(Table([5, 6, 7])) == [5, 6, 7]


def test_subset_and_stack_pass_take_on():
    assert first_batch(Subset(Taking(), [7, 5, 3])) == [7000, 5000, 3000]
    assert first_batch(Subset(Subset(Taking(), [7, 5, 3]), range(2, -1, -1))) == [3000, 5000, 7000]
    batch = next(iter(DataLoader(StackDataset(a=Taking(), b=np.arange(8)), batch_sampler=[[1, 2]])))
    assert {name: np.asarray(value).tolist() for name, value in batch.items()} == {"a": [1000, 2000], "b": [1, 2]}


def test_subset_and_stack_with_a_part_that_cannot_take_go_one_by_one():
    assert find_take(StackDataset(Taking(), list("abcdefgh"))) is None
    assert find_take(Subset(Taking(), ["a", "b"])) is None
    letters, numbers = next(iter(DataLoader(StackDataset(list("abcdefgh"), Taking()), batch_size=2)))
    assert (list(letters), np.asarray(numbers).tolist()) == (["a", "b"], [0, 1])


def test_subclasses_of_known_datasets_are_not_known():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * row for row in super().__getitem__(index))

    dataset = Doubled(np.arange(4))
    assert find_take(dataset) is None
    assert as_lists(next(iter(DataLoader(dataset, batch_size=3)))) == [[0, 2, 4]]


def equal_batches(fast, slow):
    assert type(fast) is type(slow)
    if isinstance(fast, list):
        assert len(fast) == len(slow)
        for one, other in zip(fast, slow, strict=True):
            equal_batches(one, other)
    else:
        assert fast.dtype == slow.dtype
        np.testing.assert_array_equal(np.asarray(fast), np.asarray(slow))
        assert np.asarray(fast).flags.c_contiguous == np.asarray(slow).flags.c_contiguous


LAYOUTS = {
    "C": lambda array: array,
    "Fortran": np.asfortranarray,
    "reversed": lambda array: array[::-1],
    "strided": lambda array: array.repeat(2, axis=-1)[..., ::2],
}
DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"]


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 6), *[st.integers(1, 3)] * 2),
    ndim=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    data=st.data(),
)
def test_the_fast_batch_equals_the_slow_one_and_owns_its_memory(shape, ndim, dtype, layout, data):
    shape = shape[:ndim]
    array = LAYOUTS[layout]((np.arange(np.prod(shape)).reshape(shape) * 3).astype(dtype))
    indices = data.draw(st.lists(st.integers(-len(array), len(array) - 1), min_size=1, max_size=5))
    for dataset in (array, TensorDataset(array, array)):
        assert find_take(dataset) is not None
        fast, slow = (
            next(iter(DataLoader(dataset, batch_sampler=[indices], collate_fn=collate)))
            for collate in (None, lambda samples: default_collate(samples))
        )
        equal_batches(fast, slow)
        for part in fast if isinstance(fast, list) else [fast]:
            assert not np.shares_memory(np.asarray(part), array)


def test_a_memory_map_is_gathered_and_not_aliased(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(20, dtype=np.float32).reshape(10, 2))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert find_take(rows) is not None
    (batch,) = DataLoader(rows, batch_sampler=[[9, 0]])
    assert np.asarray(batch).tolist() == [[18, 19], [0, 1]]
    batch[0, 0] = -1  # the file is read-only; the batch is the user's own
    assert rows[9, 0] == 18
    del rows, batch


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([object(), object()]),
        np.zeros(2, dtype=[("x", "f4"), ("y", "i8")]),
        np.arange(2, dtype=">i4"),
        np.ma.masked_array([1, 2], mask=[True, False]),
        np.array(5),
    ],
    ids=["strings", "objects", "records", "byte-swapped", "masked", "0-d"],
)
def test_arrays_that_need_a_closer_look_are_not_gathered(array):
    assert find_take(array) is None


def test_an_index_outside_fails_as_it_does_one_by_one():
    for dataset in (np.arange(3), Subset(np.arange(3), [0, 1])):
        with pytest.raises(IndexError):
            first_batch(dataset, batch_sampler=[[0, 3]])


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "bool", "complex64", "int64"])
def test_tensors_are_gathered_bit_for_bit(dtype):
    import torch

    source = torch.arange(12).reshape(6, 2).to(getattr(torch, dtype))
    for dataset in (source, torch.utils.data.TensorDataset(source), torch.utils.data.Subset(source, [5, 0, 1])):
        take = find_take(dataset)
        assert take is not None
        batch = next(iter(DataLoader(dataset, batch_sampler=[[2, 0, -1]])))
        batch = batch[0] if isinstance(batch, list) else batch
        rows = [dataset[i][0] if isinstance(dataset[i], tuple) else dataset[i] for i in (2, 0, -1)]
        assert batch.dtype == source.dtype
        assert torch.equal(batch.view(torch.uint8), torch.stack(rows).view(torch.uint8))
        assert batch.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


@needs_torch
def test_tensors_that_need_a_closer_look_are_not_gathered():
    import torch

    assert find_take(torch.zeros(3, requires_grad=True)) is None
    assert find_take(torch.eye(3).to_sparse()) is None
    assert find_take(torch.tensor([1j]).conj()) is None
    assert find_take(torch.nn.Parameter(torch.zeros(3))) is None


def test_a_take_that_loses_rows_is_noticed():
    class Losing(Taking):
        def __getitem__(self, index):
            return super().__getitem__(index)

        def take(self, indices):
            return {"x": indices[:-1]}

    with pytest.raises(ValueError, match="one row for each of 3 indices"):
        next(iter(DataLoader(Losing(), batch_size=3)))

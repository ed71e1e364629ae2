"""Whole batches taken at once equal the batches collated sample by sample."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import given
from hypothesis import strategies as st

import headrace
from tests.needs import find_take

from . import orders, samples, sources
from .equality import fingerprint
from .exploring import explore

pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental", "ignore:The given NumPy array is not writable"
)


class Hidden(headrace.Dataset):
    """The same samples, one by one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)


def gatherable(n: int) -> st.SearchStrategy[sources.Source]:
    simple = sources.arrays(n) | sources.tensor_datasets(n)
    both = lambda m: sources.arrays(m) | sources.tensor_datasets(m)  # noqa: E731
    return simple | sources.subsets(both, n) | sources.stacks(both, n)


def batches(dataset: Any, batch_size: int, sampler: Any, output: str) -> list[Any]:
    loader = headrace.DataLoader(dataset, batch_size, sampler=sampler, output=output)
    return [fingerprint(batch) for batch in loader]


@explore(250)
@given(st.data(), st.integers(1, 12), st.integers(1, 9))
def test_equals_the_slow_path(data: st.DataObject, n: int, batch_size: int) -> None:
    dataset = data.draw(gatherable(n), label="dataset").build(headrace)
    sampler = data.draw(orders.user_samplers(n), label="sampler").build(headrace, dataset, None)
    torch.manual_seed(0)
    fast = batches(dataset, batch_size, sampler, "torch")
    torch.manual_seed(0)
    slow = batches(Hidden(dataset), batch_size, sampler, "torch")
    assert fast == slow


@explore(60)
@given(samples.arrays, st.integers(1, 12), st.integers(1, 9))
def test_equals_the_slow_path_in_numpy(leaf: samples.Array, n: int, batch_size: int) -> None:
    rows = samples.Array(leaf.dtype, (n, *leaf.shape), leaf.layout)(1)
    fast, slow = (headrace.DataLoader(data, batch_size, output="numpy") for data in (rows, Hidden(rows)))
    for one, other in zip(fast, slow, strict=True):
        assert (type(one), one.dtype, one.shape, one.tobytes()) == (
            np.ndarray,
            other.dtype,
            other.shape,
            other.tobytes(),
        )


ROWS = torch.arange(24, dtype=torch.float32).reshape(6, 4)
GATHERED = {
    "tensor": ROWS,
    "array": ROWS.numpy(),
    "TensorDataset of torch": torch_data.TensorDataset(ROWS, ROWS[:, 0]),
    "TensorDataset": headrace.TensorDataset(ROWS, ROWS.numpy()),
    "Subset of torch": torch_data.Subset(torch_data.TensorDataset(ROWS), [0, 3, -1]),
    "Subset": headrace.Subset(headrace.TensorDataset(ROWS), range(3)),
    "Subset of a Subset": headrace.Subset(torch_data.Subset(ROWS, [5, 1, 3]), np.array([2, 0])),
    "StackDataset": headrace.StackDataset(a=ROWS, b=ROWS.numpy()),
    "bfloat16": ROWS.bfloat16(),
}


@pytest.mark.parametrize("dataset", GATHERED.values(), ids=GATHERED.keys())
def test_these_are_gathered(dataset: Any) -> None:
    assert find_take(dataset) is not None


class Changed(headrace.TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(-item for item in super().__getitem__(index))


class ChangedOfTorch(torch_data.TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(-item for item in super().__getitem__(index))


@pytest.mark.parametrize("cls", [Changed, ChangedOfTorch])
def test_an_overridden_getitem_counts(cls: type) -> None:
    (batch,) = next(iter(headrace.DataLoader(cls(ROWS), 2)))
    assert torch.equal(batch, -ROWS[:2])


@pytest.mark.parametrize("dataset", GATHERED.values(), ids=GATHERED.keys())
def test_a_batch_is_a_copy(dataset: Any) -> None:
    before = ROWS.clone()
    for batch in headrace.DataLoader(dataset, 2):
        for part in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list) else [batch]:
            part.fill_(99)
    assert torch.equal(ROWS, before)


def test_changes_of_the_data_are_seen() -> None:
    rows = torch.zeros(4)
    iterator = iter(headrace.DataLoader(rows, 2))
    next(iterator)
    rows[3] = 7
    assert next(iterator).tolist() == [0, 7]


def test_an_attribute_called_take_is_left_alone() -> None:
    class WithAttribute(headrace.Dataset):
        take = 5

        def __getitem__(self, index: int) -> int:
            return index

        def __len__(self) -> int:
            return 2

    class WithProperty(WithAttribute):
        @property
        def take(self) -> int:
            return 5

    for cls in (WithAttribute, WithProperty):
        assert [batch.tolist() for batch in headrace.DataLoader(cls(), 2)] == [[0, 1]]


@pytest.mark.parametrize("name", ["complex32", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bfloat16", "uint64"])
def test_every_dtype_of_torch_is_served(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    rows = torch.arange(12 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(6, 2)
    for data in (rows, torch_data.TensorDataset(rows)):
        ours, theirs = (list(library.DataLoader(data, 4)) for library in (headrace, torch_data))
        assert fingerprint(ours) == fingerprint(theirs)

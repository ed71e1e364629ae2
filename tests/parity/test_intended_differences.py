"""Where headrace differs from torch on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.utils.data as torch_data

import headrace


class Stopping(headrace.Dataset):
    """Raises StopIteration at one index, as `next(...)` on something that is used up would."""

    def __getitem__(self, index: int) -> int:
        return next(iter([])) if index == 2 else index

    def __len__(self) -> int:
        return 4


def test_stop_iteration_of_a_dataset_is_an_error() -> None:
    assert len(list(torch_data.DataLoader(Stopping()))) == 2  # half the data is lost without a word
    iterator = iter(headrace.DataLoader(Stopping()))
    assert [next(iterator).item(), next(iterator).item()] == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert next(iterator).item() == 3


def test_structured_arrays_become_dicts() -> None:
    kind = np.dtype([("x", "f4", (2,)), ("y", "i8")])
    rows = np.array([((1, 2), 3), ((4, 5), 6)], dtype=kind)
    with pytest.raises(TypeError):
        torch_data.default_collate(list(rows))
    for batch in (headrace.default_collate(list(rows)), next(iter(headrace.DataLoader(rows, 2)))):
        assert {name: column.tolist() for name, column in batch.items()} == {"x": [[1, 2], [4, 5]], "y": [3, 6]}
        assert batch["x"].dtype == torch.float32
    assert headrace.default_convert(rows)["y"].tolist() == [3, 6]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3), (2, 2, 2, 3), (2, 2, 2, 2, 3)])
def test_negative_strides_are_accepted(shape: tuple[int, ...]) -> None:
    rows = np.arange(np.prod(shape)).reshape(shape)[..., ::-1]
    with pytest.raises(ValueError, match="negative"):
        torch_data.default_collate([rows])
    assert np.array_equal(headrace.default_collate([rows, rows]).numpy(), np.stack([rows, rows]))
    assert np.array_equal(headrace.default_convert(rows).numpy(), rows)
    assert np.array_equal(next(iter(headrace.DataLoader(rows[::-1], 2))).numpy(), rows[::-1][:2])


def test_unsigned_scalars_of_64_bits_are_accepted() -> None:
    with pytest.raises(TypeError):
        torch_data.default_collate([np.uint64(3)])
    batch = headrace.default_collate([np.uint64(3), np.uint64(2**64 - 1)])
    assert batch.dtype == torch.uint64
    assert batch.tolist() == [3, 2**64 - 1]


def test_bytes_of_numpy_stay_as_they_are() -> None:
    with pytest.raises(TypeError):
        torch_data.default_convert(np.bytes_(b"a"))
    assert headrace.default_convert(np.bytes_(b"a")) == b"a"


class Batched(headrace.Dataset):
    """Counts how often it is asked for several samples at once."""

    calls = 0

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls += 1
        return list(indices)

    def __len__(self) -> int:
        return 4


def test_concatenations_fetch_whole_batches() -> None:
    parts = [Batched(), Batched()]
    assert not hasattr(torch_data.ConcatDataset(parts), "__getitems__")
    (batch,) = headrace.DataLoader(headrace.ConcatDataset(parts), 8)
    assert batch.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [part.calls for part in parts] == [1, 1]


def test_tensor_datasets_hold_numpy_arrays() -> None:
    columns = np.arange(3), np.ones((3, 2), np.float32)
    with pytest.raises(TypeError):
        torch_data.TensorDataset(*columns)
    batch: list[Any] = next(iter(headrace.DataLoader(headrace.TensorDataset(*columns), 3)))
    assert [part.dtype for part in batch] == [torch.int64, torch.float32]


def test_numpy_generators_are_accepted() -> None:
    def order() -> list[int]:
        loader = headrace.DataLoader(range(9), 9, shuffle=True, generator=np.random.default_rng(4))
        return next(iter(loader)).tolist()

    assert order() == order()
    assert sorted(order()) == list(range(9))


def test_a_stream_that_raises_stop_iteration_still_ends() -> None:
    class Stream(headrace.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    assert [batch.tolist() for batch in headrace.DataLoader(Stream(), 4)] == [[1, 2]]


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 1.5}, {"num_workers": 1, "prefetch_factor": 1.5}, {"num_workers": 1, "worker_init_fn": 3},
     {"collate_fn": 3}, {"num_workers": 1, "timeout": float("nan")}],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_refused_when_the_loader_is_made(options: dict[str, Any]) -> None:
    torch_data.DataLoader([1, 2], **options)  # fails in the first epoch, or in the workers
    with pytest.raises((TypeError, ValueError), match=list(options)[-1]):
        headrace.DataLoader([1, 2], **options)


# With workers


def only_batch(library: ModuleType, sample: Any) -> Any:
    (batch,) = library.DataLoader([sample], None, num_workers=1, collate_fn=_as_it_is)
    return batch


def _as_it_is(sample: Any) -> Any:
    return sample


def test_a_conjugated_tensor_stays_one_in_workers() -> None:
    tensor = torch.tensor([1 + 2j]).conj()
    assert only_batch(torch_data, tensor).tolist() == [1 + 2j]  # torch forgets it on the way
    assert only_batch(headrace, tensor).tolist() == [1 - 2j]


def test_arrays_keep_their_byte_order_in_workers() -> None:
    array = np.array([1, 2], ">i4")
    assert only_batch(torch_data, array).dtype == np.dtype("<i4")
    got = only_batch(headrace, array)
    assert got.dtype == array.dtype
    assert got.tolist() == [1, 2]


class PickyError(Exception):
    """Cannot be made from a text alone."""

    def __init__(self, path: str, code: int) -> None:
        super().__init__(path, code)
        self.path, self.code = path, code


class Picky(headrace.Dataset):
    def __getitem__(self, index: int) -> int:
        raise PickyError("a.png", 7)

    def __len__(self) -> int:
        return 1


def test_errors_of_workers_keep_their_type_and_attributes() -> None:
    theirs, ours = (iter(library.DataLoader(Picky(), num_workers=1)) for library in (torch_data, headrace))
    with pytest.raises(RuntimeError, match="Caught PickyError"):
        next(theirs)
    assert list(theirs) == []  # its workers end at once
    with pytest.raises(PickyError) as caught:
        next(ours)
    assert (caught.value.path, caught.value.code) == ("a.png", 7)
    assert "in __getitem__" in str(caught.value.__cause__)


def test_the_error_of_a_sampler_comes_in_its_turn() -> None:
    with pytest.raises(LookupError):
        iter(torch_data.DataLoader(range(9), None, sampler=OneByOne(), num_workers=2))  # before the first batch
    iterator = iter(headrace.DataLoader(range(9), None, sampler=OneByOne(), num_workers=2))
    assert [next(iterator), next(iterator)] == [1, 2]
    with pytest.raises(LookupError):
        next(iterator)
    assert list(iterator) == []


class OneByOne:
    def __iter__(self) -> Iterator[int]:
        yield from [1, 2]
        raise LookupError("no more")

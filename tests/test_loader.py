"""The DataLoader: its arguments, its attributes, its lengths, and what it puts together."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import random

import numpy as np
import pytest

from headrace import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    pad_collate,
)
from headrace.testing import FlakyDataset, HandDrivenEngine
from tests.needs import HAS_TORCH, as_lists, needs_torch

TORCHS_PARAMETERS = [
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
]


class Stream(IterableDataset):
    def __init__(self, n, length=None):
        self.n = n
        self.length = length

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        if self.length is None:
            raise TypeError("no length")
        return self.length


class Squares(Dataset):
    def __getitem__(self, index):
        return index**2

    def __len__(self):
        return 7


def test_the_17_parameters_of_torch_come_first_and_in_order():
    assert list(inspect.signature(DataLoader).parameters)[:17] == TORCHS_PARAMETERS


def test_defaults_become_a_sequential_sampler_in_a_batch_sampler():
    loader = DataLoader(Squares())
    assert type(loader.sampler) is SequentialSampler
    assert type(loader.batch_sampler) is BatchSampler
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch_factor) == (1, False, 0, None)
    assert as_lists(loader) == [[i**2] for i in range(7)]


def test_anything_with_getitem_and_len_is_a_dataset():
    for dataset in ([3, 4], (3, 4), range(3, 5), {0: 3, 1: 4}, np.array([3, 4])):
        assert as_lists(DataLoader(dataset, batch_size=2)) == [[3, 4]]


@pytest.mark.parametrize(
    ("options", "length", "batches"),
    [
        ({"batch_size": 3}, 3, [[0, 1, 4], [9, 16, 25], [36]]),
        ({"batch_size": 3, "drop_last": True}, 2, [[0, 1, 4], [9, 16, 25]]),
        ({"batch_size": 10}, 1, [[0, 1, 4, 9, 16, 25, 36]]),
        ({"batch_size": None}, 7, [0, 1, 4, 9, 16, 25, 36]),
        ({"sampler": [5, 5, 0], "batch_size": 2}, 2, [[25, 25], [0]]),
        ({"sampler": [5, 5, 0], "batch_size": None}, 3, [25, 25, 0]),
        ({"batch_sampler": [[1], [2, 3]]}, 2, [[1], [4, 9]]),
    ],
)
def test_batches_and_their_number(options, length, batches):
    loader = DataLoader(Squares(), **options)
    assert len(loader) == len(iter(loader)) == length
    assert as_lists(loader) == as_lists(loader) == batches


def test_a_batch_sampler_that_is_an_iterator_serves_one_epoch():
    loader = DataLoader(Squares(), batch_sampler=iter([[1], [2]]))
    assert as_lists(loader) == [[1], [4]]
    assert as_lists(loader) == []
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.parametrize("n", [0, 4, 5])
@pytest.mark.parametrize("drop_last", [True, False])
def test_streams_and_their_promised_lengths(n, drop_last):
    loader = DataLoader(Stream(n, length=n), batch_size=2, drop_last=drop_last)
    batches = as_lists(loader)
    assert len(loader) == len(batches) == (n // 2 if drop_last else -(-n // 2))
    assert [i for batch in batches for i in batch] == list(range(len(batches) * 2))[:n]


def test_a_stream_without_length_has_no_batches_to_count():
    with pytest.raises(TypeError):
        len(DataLoader(Stream(3)))


def test_a_stream_that_breaks_its_promise_is_named_once_it_was_asked():
    loader = DataLoader(Stream(4, length=3), batch_size=None)
    assert len(list(loader)) == 4  # nobody asked
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="was reported to be 3 .* but 4 samples have been fetched"):
        assert len(list(loader)) == 4


def test_errors_of_a_streams_iter_come_from_iter():
    class Broken(IterableDataset):
        def __iter__(self):
            raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        iter(DataLoader(Broken()))


def test_each_iterator_is_an_epoch_of_its_own():
    loader = DataLoader(range(4), batch_size=2)
    one, other = iter(loader), iter(loader)
    assert as_lists([next(one), next(other), next(one), next(other)]) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_an_epoch_goes_on_after_a_bad_sample():
    batches = iter(DataLoader(FlakyDataset(range(6), bad=[2]), batch_size=2))
    assert np.asarray(next(batches)).tolist() == [0, 1]
    with pytest.raises(ValueError, match="sample 2 is bad"):
        next(batches)
    assert as_lists(batches) == [[4, 5]]


def test_stop_iteration_in_a_dataset_does_not_end_the_epoch_in_silence():
    dataset = FlakyDataset(range(3), bad=[1], error=lambda index: StopIteration())
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(DataLoader(dataset))


def test_collate_fn_gets_the_list_of_samples_or_the_single_sample():
    assert list(DataLoader("abc", batch_size=2, collate_fn=tuple)) == [("a", "b"), ("c",)]
    assert list(DataLoader("abc", batch_size=None, collate_fn=str.upper)) == ["A", "B", "C"]


# Randomness


def test_a_numpy_generator_decides_the_order():
    def epochs(seed):
        loader = DataLoader(range(20), batch_size=20, shuffle=True, generator=np.random.default_rng(seed))
        return as_lists(loader) + as_lists(loader)

    assert epochs(1) == epochs(1) != epochs(2)
    first, second = epochs(1)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))


def test_for_numpy_output_np_random_seed_makes_a_run_repeatable():
    loader = DataLoader(range(20), batch_size=20, shuffle=True, output="numpy")
    np.random.seed(1)
    first = as_lists(loader) + as_lists(loader)
    np.random.seed(1)
    assert as_lists(loader) + as_lists(loader) == first
    assert first[0] != first[1]
    if not HAS_TORCH:
        np.random.seed(1)
        auto = DataLoader(range(20), batch_size=20, shuffle=True)
        assert as_lists(auto) + as_lists(auto) == first


@needs_torch
def test_for_torch_output_manual_seed_makes_a_run_repeatable():
    import torch

    loader = DataLoader(range(20), batch_size=20, shuffle=True)
    torch.manual_seed(1)
    first = as_lists(loader) + as_lists(loader)
    torch.manual_seed(1)
    assert as_lists(loader) + as_lists(loader) == first


def test_pythons_own_random_is_left_alone():
    random.seed(0)
    before = random.getstate()
    list(DataLoader(range(4), shuffle=True))
    assert random.getstate() == before


# Outputs


def test_numpy_output_everywhere():
    data = TensorDataset(np.arange(4), np.arange(4.0))
    for options in ({"batch_size": 2}, {"batch_size": None}, {"batch_size": 2, "collate_fn": lambda s: np.array(s)}):
        for batch in DataLoader(data, output="numpy", **options):
            assert all(isinstance(column, (np.ndarray, np.generic)) for column in batch)


@needs_torch
def test_torch_output_is_the_default_and_what_a_collate_fn_returns_stays_unless_asked():
    import torch

    def collate(samples):
        return np.array(samples)

    assert type(next(iter(DataLoader(range(2))))) is torch.Tensor
    assert type(next(iter(DataLoader(range(2), collate_fn=collate)))) is np.ndarray
    assert type(next(iter(DataLoader(range(2), collate_fn=collate, output="torch")))) is torch.Tensor
    assert type(next(iter(DataLoader(torch.arange(2), output="numpy")))) is np.ndarray


@needs_torch
def test_torchs_default_functions_count_as_ours():
    import torch

    data = torch.utils.data
    loader = DataLoader(range(2), collate_fn=data.default_collate, output="numpy")
    assert type(next(iter(loader))) is np.ndarray
    loader = DataLoader([np.zeros(2)], batch_size=None, collate_fn=data.default_convert, output="numpy")
    assert type(next(iter(loader))) is np.ndarray


# Arguments


WRONG = [
    ({"num_workers": -1}, ValueError, "num_workers option should be non-negative, got -1"),
    ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
    ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified with num_workers > 0, got 2"),
    ({"prefetch_factor": -1, "num_workers": 1}, ValueError, "prefetch_factor option should be non-negative"),
    ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
    ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context can only be used with"),
    ({"multiprocessing_context": "x", "num_workers": 1}, ValueError, "should specify a valid start method in"),
    ({"multiprocessing_context": 5, "num_workers": 1}, TypeError, "should be a valid context object"),
    ({"batch_size": 0}, ValueError, "batch_size should be a positive integer value, but got batch_size=0"),
    ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None option disables auto-batching"),
    ({"collate_fn": pad_collate}, TypeError, "add the parentheses"),
    ({"dataset": [], "shuffle": True}, ValueError, "is the dataset empty"),
    ({"dataset": Stream(1), "shuffle": True}, ValueError, "expected unspecified shuffle option, but got shuffle=True"),
    ({"dataset": Stream(1), "sampler": [0]}, ValueError, "expected unspecified sampler option"),
    ({"dataset": Stream(1), "batch_sampler": [[0]]}, ValueError, "expected unspecified batch_sampler option"),
]


@pytest.mark.parametrize(("options", "error", "words"), WRONG)
def test_wrong_arguments(options, error, words):
    with pytest.raises(error, match=words):
        DataLoader(**{"dataset": range(3), **options})


def test_shuffle_false_is_fine_for_a_stream():
    assert as_lists(DataLoader(Stream(2), shuffle=False)) == [[0], [1]]


def test_a_timeout_needs_workers():
    with pytest.raises(AssertionError, match="timeout must be 0 without workers"):
        iter(DataLoader(range(3), timeout=5))


def test_contexts_by_name_and_by_object():
    context = multiprocessing.get_context("spawn")
    loader = DataLoader(range(3), num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context
    loader.multiprocessing_context = "spawn"
    assert loader.multiprocessing_context is context
    assert loader.prefetch_factor == 2


def test_more_workers_than_cores_warn():
    with pytest.warns(UserWarning, match="will create 100000 workers"):
        DataLoader(range(3), num_workers=100_000)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_fixes_the_batches_cannot_be_set_later(name):
    loader = DataLoader(range(3))
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
        setattr(loader, name, None)


def test_the_rest_can_be_set_later():
    loader = DataLoader(range(2))
    loader.collate_fn = list
    assert list(loader) == [[0], [1]]


def test_a_loader_can_be_subclassed_and_survives_pickling():
    class Named(DataLoader):
        def __init__(self, *args, name, **kwargs):
            self.name = name
            super().__init__(*args, **kwargs)

    assert as_lists(Named(range(2), name="mine")) == [[0], [1]]
    copy = pickle.loads(pickle.dumps(DataLoader(range(3), batch_size=2)))
    assert as_lists(copy) == [[0, 1], [2]]


def test_an_engine_of_ones_own():
    engine = HandDrivenEngine(max, capacity=4)
    loader = DataLoader(range(10), batch_size=2, engine=engine, shuffle=True, generator=np.random.default_rng(0))
    expected = DataLoader(range(10), batch_size=2, shuffle=True, generator=np.random.default_rng(0))
    assert as_lists(loader) == as_lists(expected)
    assert engine.completed != sorted(engine.completed)


@needs_torch
def test_torchs_samplers_and_datasets_work_as_they_are():
    import torch

    data = torch.utils.data

    class TorchStream(data.IterableDataset):
        def __iter__(self):
            return iter([1, 2, 3])

    assert as_lists(DataLoader(TorchStream(), batch_size=2)) == [[1, 2], [3]]
    sampler = data.BatchSampler(data.SequentialSampler(range(3)), 2, False)
    assert as_lists(DataLoader(data.Subset(torch.arange(10), [9, 8, 7]), batch_sampler=sampler)) == [[9, 8], [7]]
    with pytest.raises(ValueError, match="expected unspecified shuffle"):
        DataLoader(TorchStream(), shuffle=True)


@needs_torch
def test_ours_work_in_torchs_own_loader():
    import torch

    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, sampler=RandomSampler(Squares()))
    assert sorted(i for batch in loader for i in batch.tolist()) == [i**2 for i in range(7)]
    assert as_lists(torch.utils.data.DataLoader(Stream(3, 3), batch_size=2)) == [[0, 1], [2]]

"""The DataLoader: its arguments, its attributes, its lengths, and what it puts together."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import random
import threading

import numpy as np
import pytest

from headrace import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    pad_collate,
)
from headrace.base.errors import TooManyBadSamplesError
from headrace.testing import FlakyDataset, HandDrivenEngine
from tests.engines.jobs import Gated, WhoAmI, start_helpers_of_multiprocessing
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


@pytest.fixture(autouse=True, scope="module")
def _helpers_of_multiprocessing():
    start_helpers_of_multiprocessing()


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


def test_errors_of_a_streams_iter_come_with_the_first_batch():
    class Broken(IterableDataset):
        def __iter__(self):
            raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        next(iter(DataLoader(Broken())))


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
    (
        {"engine": "fibres"},
        ValueError,
        "engine must be 'processes', 'threads', 'ray' or an engine object, got",
    ),
    ({"on_error": "ignore"}, ValueError, "on_error must be 'raise' or 'skip', got 'ignore'"),
    ({"max_errors": 1}, ValueError, "max_errors needs on_error='skip'"),
    ({"max_errors": -1, "on_error": "skip"}, ValueError, "max_errors must not be negative, got -1"),
    ({"on_worker_death": "mourn"}, ValueError, "on_worker_death must be 'raise' or 'restart', got 'mourn'"),
    ({"num_workers": "2"}, TypeError, "num_workers option should be an integer, got '2'. Pass num_workers=0"),
    ({"num_workers": 2.0}, TypeError, "num_workers option should be an integer, got 2.0"),
    ({"num_workers": None}, TypeError, "num_workers option should be an integer, got None"),
    ({"timeout": "1"}, TypeError, "timeout option should be a number of seconds, got '1'. Pass 0"),
    ({"timeout": None}, TypeError, "timeout option should be a number of seconds, got None"),
    ({"timeout": float("inf")}, ValueError, "timeout option should be non-negative, and finite, got inf. Pass 0"),
    ({"prefetch_factor": 1.5, "num_workers": 1}, TypeError, "prefetch_factor option should be an integer, got 1.5"),
    ({"worker_init_fn": 3}, TypeError, "worker_init_fn must be a function of the worker's number, got 3"),
    ({"collate_fn": "pad"}, TypeError, "collate_fn must be a function of a list of samples, got 'pad'"),
    ({"max_errors": "3", "on_error": "skip"}, TypeError, "max_errors option should be an integer, got '3'"),
    ({"engine": 3}, TypeError, "engine must be 'processes', 'threads', 'ray' or an engine object, got 3"),
    (
        {"engine": HandDrivenEngine},
        TypeError,
        "engine must be 'processes', 'threads', 'ray' or an engine object, got",
    ),
    (
        {"engine": "threads", "num_workers": 1, "multiprocessing_context": "fork"},
        ValueError,
        "multiprocessing_context can only be used with worker processes, but got engine='threads'. Leave it out",
    ),
    ({"engine": "threads", "on_worker_death": "restart"}, ValueError, "on_worker_death='restart' needs worker proc"),
    ({"output": "numpy", "device": "cuda"}, ValueError, "device needs torch tensors, got device='cuda' with output="),
    ({"output": "jax", "device": "gpu"}, ValueError, "Batches are put on JAX's default device"),
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


def test_integers_of_numpy_are_as_good_as_pythons(workers):
    numbers = {"num_workers": np.int64(2), "prefetch_factor": np.int32(2), "timeout": np.float32(60)}
    loader = DataLoader(range(5), batch_size=2, output="numpy", **{**workers, **numbers})
    assert as_lists(loader) == [[0, 1], [2, 3], [4]]
    assert repr(loader.num_workers) == "2"


def test_shuffle_false_is_fine_for_a_stream():
    assert as_lists(DataLoader(Stream(2), shuffle=False)) == [[0], [1]]


def test_a_timeout_needs_workers():
    with pytest.raises(AssertionError, match="timeout must be 0 without workers"):
        next(iter(DataLoader(range(3), timeout=5)))


def test_contexts_by_name_and_by_object():
    context = multiprocessing.get_context("spawn")
    loader = DataLoader(range(3), num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context
    loader.multiprocessing_context = "spawn"
    assert loader.multiprocessing_context is context
    assert loader.prefetch_factor == 2


def test_more_workers_than_cores_warn():
    class Mine(DataLoader):
        pass

    for kind in (DataLoader, Mine):
        with pytest.warns(UserWarning, match="will create 100000 workers") as caught:
            kind(range(3), num_workers=100_000)
        assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "DataLoader(<Squares of 7>, batch_size=1, sampler=SequentialSampler, num_workers=0)"),
        (
            {"batch_size": 4, "shuffle": True, "num_workers": 2, "drop_last": True, "engine": "threads"},
            "DataLoader(<Squares of 7>, batch_size=4, sampler=RandomSampler, num_workers=2, engine='threads', "
            "drop_last=True)",
        ),
        (
            {"batch_size": None, "sampler": [3]},
            "DataLoader(<Squares of 7>, batch_size=None, sampler=list, num_workers=0)",
        ),
        ({"batch_sampler": [[3]]}, "DataLoader(<Squares of 7>, batch_sampler=list, num_workers=0)"),
        ({"dataset": Stream(3)}, "DataLoader(<Stream>, batch_size=1, num_workers=0)"),
        (
            {"dataset": Stream(3, 3), "output": "numpy"},
            "DataLoader(<Stream of 3>, batch_size=1, num_workers=0, output='numpy')",
        ),
    ],
)
def test_a_loader_is_shown_in_one_line(options, shown):
    assert repr(DataLoader(**{"dataset": Squares(), **options})) == shown


def test_a_loader_that_is_not_made_yet_can_be_shown():
    assert repr(DataLoader.__new__(DataLoader)).startswith("DataLoader(<NoneType>")


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
    again = pickle.loads(pickle.dumps(DataLoader(range(3), batch_size=2)))
    assert as_lists(again) == [[0, 1], [2]]


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


# Workers

WORKERS = [{"engine": "threads"}, {"multiprocessing_context": "fork"}]


@pytest.fixture(params=WORKERS, ids=["threads", "fork"])
def workers(request):
    return {"num_workers": 2, **request.param}


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[1], [2, 3], []], "collate_fn": list},
        {"batch_size": 2, "shuffle": True},
        {"batch_size": 2, "collate_fn": lambda samples: {"sum": sum(samples)}},
        {"batch_size": 2, "sampler": iter([4, 5, 6])},
    ],
)
def test_workers_give_the_batches_that_come_without_them(workers, options):
    def batches(more):
        given = {**options, "generator": np.random.default_rng(5), **more}
        if "sampler" in given:
            given["sampler"] = [4, 5, 6]
        return list(DataLoader(Squares(), output="numpy", **given))

    worked, plain = batches(workers), batches({})
    assert len(worked) == len(plain)
    assert list(map(str, worked)) == list(map(str, plain))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_distributed_sampler_with_workers(workers, shuffle):
    def batches(more):
        sampler = DistributedSampler(range(23), num_replicas=3, rank=1, shuffle=shuffle)
        return as_lists(DataLoader(range(23), batch_size=4, sampler=sampler, **more))

    assert batches(workers) == batches({})


def test_out_of_order_all_batches_come_once(workers):
    loader = DataLoader(range(40), batch_size=3, in_order=False, **workers)
    assert sorted(as_lists(loader)) == [list(range(i, min(i + 3, 40))) for i in range(0, 40, 3)]


def test_persistent_workers_stay_and_their_iterator_is_the_same(workers):
    loader = DataLoader(WhoAmI(), sampler=[0] * 4, persistent_workers=True, collate_fn=list, **workers)
    first = iter(loader)
    one = list(first)
    assert iter(loader) is first
    assert [next(first)[0][3] for _ in range(2)] == [one[0][0][3], one[1][0][3]]  # given up in the middle
    assert list(loader) == one
    loader.close()
    loader.close()
    again = list(loader)
    assert len(again) == 4
    if "engine" not in workers:
        assert {batch[0][3] for batch in again}.isdisjoint({batch[0][3] for batch in one})
    loader.close()


def test_a_loader_that_is_given_up_in_the_middle_leaves_nothing(workers):
    """The guard of every test looks for processes, threads and descriptors."""
    batches = iter(DataLoader(range(1000), batch_size=2, **workers))
    assert len(next(batches)) == 2
    del batches
    loader = DataLoader(range(1000), batch_size=2, persistent_workers=True, **workers)
    next(iter(loader))
    del loader


@pytest.mark.parametrize("persistent", [True, False])
def test_a_with_statement_ends_the_workers(workers, persistent):
    with DataLoader(range(100), persistent_workers=persistent, **workers) as loader:
        batches = iter(loader)
        assert len(next(batches)) == 1
        others = iter(loader)  # the same ones, if they are persistent
        assert len(next(others)) == 1
    assert not multiprocessing.active_children()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-worker")]
    assert list(batches) == list(others) == []  # over, not waiting
    with loader:
        assert len(as_lists(loader)) == 100  # and the loader can be used again


def test_a_with_statement_without_workers_ends_the_epoch():
    with DataLoader(range(3)) as loader:
        batches = iter(loader)
        next(batches)
    assert list(batches) == []


def test_a_copy_of_a_loader_is_closed_by_itself():
    loader = DataLoader(range(3))
    batches = iter(loader)
    copy.copy(loader).close()
    copy.deepcopy(loader).close()
    assert as_lists(batches) == [[0], [1], [2]]


@pytest.mark.filterwarnings("ignore:on_error='skip' leaves out")
def test_bad_samples_are_left_out_and_listed(workers):
    dataset = FlakyDataset(range(10), bad=[1, 4, 5])
    for more in (workers, {}):
        loader = DataLoader(dataset, batch_size=2, on_error="skip", **more)
        assert as_lists(loader) == [[0], [2, 3], [6, 7], [8, 9]]
        assert [bad.key for bad in loader.errors] == [1, 4, 5]
        assert [bad.batch for bad in loader.errors] == [0, 2, 2]
        assert {bad.error for bad in loader.errors} == {f"ValueError: sample {i} is bad" for i in (1, 4, 5)}
        assert all("__getitem__" in bad.traceback for bad in loader.errors)
        assert all((bad.worker is None) is (more == {}) for bad in loader.errors)


@pytest.mark.filterwarnings("ignore:on_error='skip' leaves out")
def test_too_many_bad_samples_end_the_epoch(workers):
    loader = DataLoader(FlakyDataset(range(10), bad=[1, 3, 5]), on_error="skip", max_errors=1, **workers)
    with pytest.raises(TooManyBadSamplesError, match="2 samples were left out, and max_errors=1"):
        list(loader)
    assert [bad.key for bad in loader.errors] == [1, 3]


def test_an_epoch_with_workers_goes_on_after_a_bad_sample(workers):
    batches = iter(DataLoader(FlakyDataset(range(6), bad=[2]), batch_size=2, **workers))
    assert np.asarray(next(batches)).tolist() == [0, 1]
    with pytest.raises(ValueError, match="sample 2 is bad"):
        next(batches)
    assert as_lists(batches) == [[4, 5]]


def test_a_sampler_is_read_no_further_than_needed(workers, tmp_path):
    drawn = []

    class Noting:
        def __iter__(self):
            for i in range(100):
                drawn.append(i)
                yield i

    (tmp_path / "open").touch()
    batches = iter(DataLoader(Gated(tmp_path), sampler=Noting(), prefetch_factor=2, collate_fn=list, **workers))
    assert len(drawn) == 0
    batches.begin_now()
    assert len(drawn) == 4
    next(batches)
    assert len(drawn) == 5
    batches.close()


def test_prefetch_factor_decides_how_much_is_in_flight(workers, tmp_path):
    batches = iter(DataLoader(Gated(tmp_path), sampler=range(100), prefetch_factor=3, collate_fn=list, **workers))
    (tmp_path / "open").touch()
    assert next(batches) == [0]
    batches.close()
    assert len(list(tmp_path.glob("begun-*"))) <= 8


def test_prefetch_factor_zero_is_an_error_with_workers(workers):
    with pytest.raises(AssertionError, match="prefetch_factor must be at least 1"):
        next(iter(DataLoader(range(3), prefetch_factor=0, **workers)))


def test_streams_with_workers_come_round_by_round(workers):
    class Numbered(IterableDataset):
        def __iter__(self):
            from headrace import get_worker_info

            info = get_worker_info()
            return iter(range(info.id, 9, info.num_workers))

    assert as_lists(DataLoader(Numbered(), batch_size=2, **workers)) == [[0, 2], [1, 3], [4, 6], [5, 7], [8]]


def test_a_loader_with_persistent_workers_can_be_pickled():
    loader = DataLoader(range(4), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    assert as_lists(loader) == [[0, 1], [2, 3]]
    loader.multiprocessing_context = None
    again = pickle.loads(pickle.dumps(loader))
    assert as_lists(again) == [[0, 1], [2, 3]]
    again.close()
    loader.close()


@pytest.mark.parametrize("persistent", [True, False])
def test_prepared_batches_of_several_epochs(workers, persistent, monkeypatch):
    """As with `pin_memory` and an accelerator, or with a `device`: a thread prepares what the workers made."""
    from headrace import epochs
    from headrace.deliver.device import Delivery

    delivery = Delivery(prepare=lambda batch: np.asarray(batch) * 10, finish=lambda batch: batch + 1)
    monkeypatch.setattr(epochs, "plan_delivery", lambda pin, device: delivery)
    loader = DataLoader(range(5), batch_size=2, persistent_workers=persistent, **workers)
    for _ in range(3):
        assert as_lists(loader) == [[1, 11], [21, 31], [41]]
        next(iter(loader))
    loader.close()

"""What the seed documents promise, point by point, with their data and the results they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import chain, cycle, islice

import numpy as np
import pytest

from headrace import (
    BucketBatchSampler,
    ClassBatchSampler,
    CollateError,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    class_weights,
    get_worker_info,
    pad_collate,
    sample_lengths,
)
from tests.engines.jobs import start_helpers_of_multiprocessing
from tests.needs import HAS_TORCH, as_lists, needs_torch

TWELVE = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
THREE_BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


class MyMapDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        return self.data[idx]


class MyIterableDataset(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class Diary(MyMapDataset):
    """Writes down each index that it is asked for, in a file that all workers share."""

    def __init__(self, data, path):
        super().__init__(data)
        self.path = path
        self.path.touch()

    def __getitem__(self, idx):
        with self.path.open("a") as file:  # short lines that are appended do not mix
            file.write(f"{idx}\n")
        return super().__getitem__(idx)

    def entries(self):
        return [int(line) for line in self.path.read_text().split()]


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def _start_methods():
    start_helpers_of_multiprocessing()


# M1 · a streaming data loader


def test_m1_1_a_map_style_dataset_in_three_batches():
    batches = list(DataLoader(MyMapDataset(TWELVE), batch_size=4))
    assert as_lists(batches) == THREE_BATCHES
    assert {type(batch).__name__ for batch in batches} == {"Tensor" if HAS_TORCH else "ndarray"}


def test_m1_2_an_iterable_dataset_in_the_same_batches():
    assert as_lists(DataLoader(MyIterableDataset(TWELVE), batch_size=4)) == THREE_BATCHES


def test_m1_4_sequences_chained_into_one_endless_stream():
    class Chained(IterableDataset):
        def __init__(self, data_list):
            self.data_list = data_list

        def process_data(self, data):
            yield from data

        def get_stream(self, data_list):
            return chain.from_iterable(map(self.process_data, cycle(data_list)))

        def __iter__(self):
            return self.get_stream(self.data_list)

    data_list = [
        [12, 13, 14, 15, 16, 17],
        [27, 28, 29],
        [31, 32, 33, 34, 35, 36, 37, 38, 39],
        [40, 41, 42, 43],
    ]
    loader = DataLoader(Chained(data_list), batch_size=4)
    assert as_lists(islice(loader, 8)) == [
        [12, 13, 14, 15],
        [16, 17, 27, 28],
        [29, 31, 32, 33],
        [34, 35, 36, 37],
        [38, 39, 40, 41],
        [42, 43, 12, 13],
        [14, 15, 16, 17],
        [27, 28, 29, 31],
    ]


# M2 · Dataset and DataLoader


class CustomDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        return self.data[index]


def test_m2_1_a_dataset_with_getitem_alone_can_be_iterated():
    dataset = CustomDataset([1, 2, 3, 4, 5])
    iterator = iter(dataset)
    assert (next(iterator), next(iterator)) == (1, 2)
    assert [i for i in dataset] == [1, 2, 3, 4, 5]  # noqa: C416 (the document's own words)
    assert list(map(lambda x: x + 1, dataset)) == [2, 3, 4, 5, 6]  # noqa: C417


def test_m2_2_without_workers_each_epoch_has_an_iterator_of_its_own():
    loader = DataLoader(MyMapDataset(TWELVE), batch_size=4)
    first, second = iter(loader), iter(loader)
    assert first is not second
    assert as_lists([next(first), next(second), next(first)]) == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]


def test_m2_2_workers_that_do_not_persist_are_new_in_each_epoch():
    loader = DataLoader(range(4), batch_size=2, num_workers=2, collate_fn=lambda _: os.getpid())
    first, second = iter(loader), iter(loader)
    assert first is not second
    assert len({*first, *second}) == 4


def test_m2_2_persistent_workers_have_one_iterator_that_starts_over():
    class WithProcess(MyMapDataset):
        def __getitem__(self, idx):
            return self.data[idx], os.getpid()

    loader = DataLoader(WithProcess(TWELVE), batch_size=4, num_workers=2, persistent_workers=True)
    first = iter(loader)
    next(first)
    second = iter(loader)  # starts over, though the epoch was not at its end
    assert second is first
    epochs = [list(second), list(iter(loader))]
    assert [as_lists(numbers for numbers, _ in epoch) for epoch in epochs] == [THREE_BATCHES] * 2
    processes = [{int(pid) for _, pids in epoch for pid in pids} for epoch in epochs]
    assert processes[0] == processes[1]
    assert len(processes[0]) == 2


def test_m2_3_each_index_is_worked_on_exactly_once(tmp_path):
    dataset = Diary(list(range(50)), tmp_path / "diary")
    batches = as_lists(DataLoader(dataset, batch_size=3, shuffle=True, num_workers=2))
    assert sorted(dataset.entries()) == list(range(50))
    assert sorted(chain(*batches)) == list(range(50))


def test_m2_3_results_are_put_in_order(tmp_path):
    """The first batch is not made before the second one, by another worker, is."""

    class LateFirst(Diary):
        def __getitem__(self, idx):
            if idx == 0:
                wait_until(lambda: 5 in self.entries())
            return super().__getitem__(idx)

    dataset = LateFirst(list(range(12)), tmp_path / "diary")
    assert as_lists(DataLoader(dataset, batch_size=3, num_workers=2)) == np.arange(12).reshape(4, 3).tolist()
    assert dataset.entries().index(5) < dataset.entries().index(0)


class Summing:
    def __init__(self, start):
        self.start = start

    def collate(self, samples):
        return sum(samples, self.start)


def collate_functions():
    def local_function(samples):
        return sum(samples) + 100

    return [lambda samples: sum(samples) + 100, Summing(100).collate, local_function]


@pytest.mark.usefixtures("_start_methods")
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["lambda", "bound method", "local function"])
def test_m2_4_any_function_can_be_the_collate_fn(start_method, kind):
    collate_fn = collate_functions()[kind]
    loader = DataLoader(
        TWELVE, batch_size=6, num_workers=1, collate_fn=collate_fn, multiprocessing_context=start_method
    )
    assert list(loader) == [115, 151]


def test_m2_5_a_callback_per_item(capsys):
    def custom_callback(data):
        print(f"{data} 입니다.")
        return data

    for i in DataLoader(MyMapDataset([1, 2, 3, 4, 5]), batch_size=None, collate_fn=custom_callback):
        print(i)
    assert capsys.readouterr().out.split("\n")[:-1] == [
        line for i in (1, 2, 3, 4, 5) for line in (f"{i} 입니다.", f"{i}")
    ]


# M3 · workers


def worker_id():
    worker = get_worker_info()
    return worker.id if worker is not None else -1


class MapWithWorker(MyMapDataset):
    def __getitem__(self, index):
        return self.data[index], worker_id()


class StreamWithWorker(MyIterableDataset):
    def __iter__(self):
        for x in self.data:
            yield x, worker_id()


@pytest.mark.parametrize("dataset", [MapWithWorker(range(16)), StreamWithWorker(range(16))], ids=["map", "iterable"])
def test_m3_3_the_main_process_has_worker_id_minus_one(dataset):
    printed = [as_lists(batch) for batch in DataLoader(dataset, batch_size=4, num_workers=0)]
    assert printed == [
        [[0, 1, 2, 3], [-1, -1, -1, -1]],
        [[4, 5, 6, 7], [-1, -1, -1, -1]],
        [[8, 9, 10, 11], [-1, -1, -1, -1]],
        [[12, 13, 14, 15], [-1, -1, -1, -1]],
    ]


def test_m3_4_the_batches_of_a_map_style_dataset_alternate_between_workers():
    printed = [as_lists(batch) for batch in DataLoader(MapWithWorker(range(16)), batch_size=4, num_workers=2)]
    assert printed == [
        [[0, 1, 2, 3], [0, 0, 0, 0]],
        [[4, 5, 6, 7], [1, 1, 1, 1]],
        [[8, 9, 10, 11], [0, 0, 0, 0]],
        [[12, 13, 14, 15], [1, 1, 1, 1]],
    ]


def test_m3_5_a_stream_that_ignores_workers_comes_twice_and_is_told_so():
    """The numbers of the workers make the batches differ, so the warning is tried without them."""
    with pytest.warns(UserWarning, match="Workers 0 and 1 return the same batches") as caught:
        batches = as_lists(DataLoader(MyIterableDataset(range(16)), batch_size=4, num_workers=2))
    assert batches == [[i, i + 1, i + 2, i + 3] for i in (0, 0, 4, 4, 8, 8, 12, 12)]
    (warning,) = [warning for warning in caught if "Workers" in str(warning.message)]  # JAX may warn of the fork
    for words in ("MyIterableDataset", "headrace.get_worker_info()", "itertools.islice", "worker_init_fn"):
        assert words in str(warning.message)
    loader = DataLoader(StreamWithWorker(range(16)), batch_size=4, num_workers=2)
    assert [as_lists(batch) for batch in loader] == [
        [[0, 1, 2, 3], [0, 0, 0, 0]],
        [[0, 1, 2, 3], [1, 1, 1, 1]],
        [[4, 5, 6, 7], [0, 0, 0, 0]],
        [[4, 5, 6, 7], [1, 1, 1, 1]],
        [[8, 9, 10, 11], [0, 0, 0, 0]],
        [[8, 9, 10, 11], [1, 1, 1, 1]],
        [[12, 13, 14, 15], [0, 0, 0, 0]],
        [[12, 13, 14, 15], [1, 1, 1, 1]],
    ]


def test_m3_5_the_cure_that_the_warning_names():
    class Sharing(MyIterableDataset):
        def __iter__(self):
            info = get_worker_info()
            return islice(iter(self.data), info.id, None, info.num_workers)

    for n in (16, 17, 18, 19, 3):  # and no tail is lost
        batches = as_lists(DataLoader(Sharing(range(n)), batch_size=4, num_workers=2))
        assert sorted(chain(*batches)) == list(range(n))


def cut_data(_):
    """The document's own words."""
    worker_info = get_worker_info()
    dataset = worker_info.dataset
    worker_id = worker_info.id
    split_size = len(dataset.data) // worker_info.num_workers
    dataset.data = dataset.data[worker_id * split_size : (worker_id + 1) * split_size]


def cut_data_evenly(_):
    info = get_worker_info()
    n = len(info.dataset.data)
    start, end = n * info.id // info.num_workers, n * (info.id + 1) // info.num_workers
    info.dataset.data = info.dataset.data[start:end]


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_m3_6_worker_init_fn_cuts_the_data(engine):
    dataset = StreamWithWorker(range(16))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, worker_init_fn=cut_data, engine=engine)
    assert [as_lists(batch) for batch in loader] == [
        [[0, 1, 2, 3], [0, 0, 0, 0]],
        [[8, 9, 10, 11], [1, 1, 1, 1]],
        [[4, 5, 6, 7], [0, 0, 0, 0]],
        [[12, 13, 14, 15], [1, 1, 1, 1]],
    ]
    assert len(dataset.data) == 16  # the workers cut copies of their own


@pytest.mark.parametrize("n", [15, 17, 18, 1])
def test_m3_6_no_tail_is_lost_when_the_length_does_not_divide(n):
    dataset = MyIterableDataset(range(n))
    batches = DataLoader(dataset, batch_size=4, num_workers=2, worker_init_fn=cut_data_evenly)
    assert sorted(chain(*as_lists(batches))) == list(range(n))


# M4 · torch.utils.data in depth


def test_m4_1_random_access_or_only_next():
    map_style = MyMapDataset(TWELVE)
    assert as_lists(DataLoader(map_style, sampler=[7, 3, 3], batch_size=3)) == [[7, 3, 3]]
    iterable_style = MyIterableDataset(iter(TWELVE))  # what has been read is gone
    loader = DataLoader(iterable_style, batch_size=4)
    assert np.asarray(next(iter(loader))).tolist() == [0, 1, 2, 3]
    assert as_lists(loader) == THREE_BATCHES[1:]


@pytest.mark.parametrize("batch_size", [1, 4, 5, 12, 100])
def test_m4_2_the_batch_size_of_an_iterable_is_one_argument(batch_size):
    batches = as_lists(DataLoader(MyIterableDataset(TWELVE), batch_size=batch_size))
    assert batches == [TWELVE[i : i + batch_size] for i in range(0, 12, batch_size)]


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"num_workers": 2}, {"num_workers": 2, "engine": "threads"}, {"batch_size": 5}],
    ids=["shuffling", "multi-processing", "threads", "batch size"],
)
def test_m4_2_of_a_map_each_is_one_argument_and_survives_a_resume(options):
    def make_loader(**others):
        shuffled = {"shuffle": options.get("shuffle", False), "seed": 11}
        return DataLoader(MyMapDataset(list(range(40))), **{"batch_size": 3, **shuffled, **others})

    undisturbed = list(chain(*as_lists(make_loader())))
    stopped = make_loader()
    batches = iter(stopped)
    first = [*as_lists(islice(batches, 4))]
    state = json.loads(json.dumps(stopped.state_dict()))
    with make_loader(**options) as resumed:
        resumed.load_state_dict(state)
        rest = as_lists(resumed)
    assert list(chain(*first, *rest)) == undisturbed
    assert len(rest[0]) == options.get("batch_size", 3)
    assert (undisturbed == list(range(40))) == ("shuffle" not in options)


class EvensFirst(Sampler):
    def __iter__(self):
        return iter([*range(0, 12, 2), *range(1, 12, 2)])

    def __len__(self):
        return 12


def test_m4_3_sampler_and_batch_sampler_decide_the_order():
    dataset = MyMapDataset(TWELVE)
    loader = DataLoader(dataset, batch_size=4, sampler=EvensFirst())
    assert as_lists(loader) == [[0, 2, 4, 6], [8, 10, 1, 3], [5, 7, 9, 11]]
    assert as_lists(DataLoader(dataset, batch_sampler=[[3, 8, 1, 5], [9, 2, 0, 4]])) == [[3, 8, 1, 5], [9, 2, 0, 4]]


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    "order",
    [
        lambda: {"sampler": EvensFirst(), "batch_size": 2},
        lambda: {"sampler": RandomSampler(TWELVE), "batch_size": 2},
        lambda: {"sampler": WeightedRandomSampler(TWELVE, 12), "batch_size": 2},
        lambda: {"batch_sampler": [[3, 8, 1, 5], [9, 2, 0, 4], [7], [11, 10, 6]]},
    ],
    ids=["a user's", "random", "weighted", "a user's batches"],
)
def test_m4_3_whatever_decides_it_the_order_survives_a_resume(order, seed):
    loader = DataLoader(MyMapDataset(TWELVE), seed=seed, **order())
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = DataLoader(MyMapDataset(TWELVE), seed=seed, **order())
    resumed.load_state_dict(state)
    assert as_lists(resumed) == as_lists(batches)


def test_m4_4_each_batch_is_padded_to_its_own_longest_item():
    sequences = [[1], [2, 2], [3, 3, 3], [4], [5, 5]]
    batches = list(DataLoader(sequences, batch_size=2, collate_fn=pad_collate()))
    assert as_lists(batch.values for batch in batches) == [[[1, 0], [2, 2]], [[3, 3, 3], [4, 0, 0]], [[5, 5]]]
    assert as_lists(batch.lengths for batch in batches) == [[1, 2], [3, 1], [2]]


def test_m4_5_batching_off_means_collate_fn_per_sample():
    dataset, sampler = MyMapDataset(TWELVE), [5, 2]
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, collate_fn=lambda sample: sample * 10)
    assert list(loader) == [50, 20]
    assert list(DataLoader(MyIterableDataset("ab"), batch_size=None, collate_fn=str.upper)) == ["A", "B"]


class Bad(MyMapDataset):
    def __getitem__(self, idx):
        return self.data[idx] / (idx - 5)


def test_m4_6_without_workers_an_error_reads_straight():
    with pytest.raises(ZeroDivisionError) as caught:
        list(DataLoader(Bad(TWELVE), batch_size=4))
    assert caught.value.__cause__ is None
    assert caught.traceback[-1].name == "__getitem__"


def test_m4_6_an_error_of_a_worker_tells_where_it_was_raised():
    iterator = iter(DataLoader(Bad(TWELVE), batch_size=4, num_workers=2))
    next(iterator)
    with pytest.raises(ZeroDivisionError, match="division by zero") as caught:
        next(iterator)
    told = str(caught.value.__cause__)
    for words in ("worker process 1", "batch 1", "sample 5", "in __getitem__", "self.data[idx] / (idx - 5)"):
        assert words in told
    assert len(next(iterator)) == 4  # and the loop may go on


@pytest.mark.parametrize(
    "dataset", [MyMapDataset(list(range(50))), MyIterableDataset(range(50))], ids=["map", "stream"]
)
def test_m4_7_threads_give_the_results_of_processes(dataset):
    options = {} if isinstance(dataset, IterableDataset) else {"sampler": [7, *range(49, 0, -1)]}
    init_fn = cut_data if isinstance(dataset, IterableDataset) else None
    processes, threads = (
        as_lists(DataLoader(dataset, batch_size=7, num_workers=2, engine=engine, worker_init_fn=init_fn, **options))
        for engine in ("processes", "threads")
    )
    assert threads == processes
    assert len(threads) > 7


NO_GUARD = """
import os
from headrace import DataLoader, Dataset, get_worker_info

class Squares(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return index**2, get_worker_info().id

def load():
    def collate(samples):  # neither at the top level, nor picklable
        return [list(part) for part in zip(*samples)]
    init = lambda worker: os.write(1, f"worker {worker}\\n".encode())
    return DataLoader(
        Squares(), 2, num_workers=2, collate_fn=collate, worker_init_fn=init, multiprocessing_context={method!r}
    )

print("main", flush=True)
for batch in load():
    print(batch, flush=True)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_m4_8_no_guard_and_no_top_level_functions_are_needed(method, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(NO_GUARD.replace("{method!r}", repr(method)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("[")] == [
        "[[0, 1], [0, 0]]",
        "[[4, 9], [1, 1]]",
        "[[16, 25], [0, 0]]",
    ]
    assert sorted(line for line in lines if not line.startswith("[")) == ["main", "worker 0", "worker 1"]


# M5 · DataLoader deep dive


def test_m5_1_the_defaults():
    loader = DataLoader(MyMapDataset(TWELVE))
    assert as_lists(loader) == [[i] for i in TWELVE]
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.pin_memory) == (1, False, 0, False)
    assert (loader.timeout, loader.worker_init_fn, loader.multiprocessing_context) == (0, None, None)
    assert (loader.generator, loader.prefetch_factor, loader.persistent_workers) == (None, None, False)
    assert (loader.pin_memory_device, loader.in_order) == ("", True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": [0], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
        *(
            ({"batch_sampler": [[0]], **other}, "batch_sampler option is mutually exclusive with batch_size, shuffle")
            for other in ({"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True})
        ),
    ],
)
def test_m5_1_each_wrong_mix_is_a_clear_error(options, words):
    with pytest.raises(ValueError, match=words):
        DataLoader(MyMapDataset(TWELVE), **options)


def test_m5_2_shuffle_is_new_every_epoch_and_without_it_the_order_is_always_the_same():
    dataset = MyMapDataset(list(range(100)))
    shuffled = DataLoader(dataset, batch_size=100, shuffle=True)
    epochs = [as_lists(shuffled)[0] for _ in range(5)]
    assert len(set(map(tuple, epochs))) == 5
    assert all(sorted(epoch) == dataset.data for epoch in epochs)
    in_order = DataLoader(dataset, batch_size=100, shuffle=False)
    assert [as_lists(in_order)[0] for _ in range(3)] == [dataset.data] * 3


def test_m5_3_drop_last():
    dataset = MyMapDataset(TWELVE[:10])
    assert [len(batch) for batch in DataLoader(dataset, batch_size=4)] == [4, 4, 2]
    assert [len(batch) for batch in DataLoader(dataset, batch_size=4, drop_last=True)] == [4, 4]


def test_m5_4_workers_load_ahead_while_the_model_computes(tmp_path):
    """Two workers with two batches each: while the loop is at its first batch, four more get ready, and no fifth."""
    dataset = Diary(list(range(100)), tmp_path / "diary")
    iterator = iter(DataLoader(dataset, batch_size=5, num_workers=2, prefetch_factor=2))
    next(iterator)
    wait_until(lambda: len(dataset.entries()) == 25)  # the model computes
    time.sleep(0.05)
    assert sorted(dataset.entries()) == list(range(25))
    assert next(iterator) is not None
    wait_until(lambda: len(dataset.entries()) == 30)


def test_m5_4_without_workers_nothing_is_loaded_meanwhile(tmp_path):
    dataset = Diary(list(range(100)), tmp_path / "diary")
    next(iter(DataLoader(dataset, batch_size=5)))
    assert dataset.entries() == list(range(5))


VARIABLE_LENGTH = [np.random.default_rng(0).normal(size=(n, 2)) for n in (3, 5, 2)]


def test_m5_5_variable_lengths_are_sorted_and_padded():
    loader = DataLoader(MyMapDataset(VARIABLE_LENGTH), batch_size=3, collate_fn=pad_collate(sort=True))
    (batch,) = loader
    padded_sequences, lengths = batch
    assert tuple(padded_sequences.shape) == (3, 5, 2)
    assert np.asarray(lengths).tolist() == [5, 3, 2]
    for row, i in zip(np.asarray(padded_sequences), (1, 0, 2), strict=True):
        sequence = VARIABLE_LENGTH[i]
        np.testing.assert_array_equal(row[: len(sequence)], sequence)
        assert (row[len(sequence) :] == 0).all()


def test_m5_5_without_padding_the_error_names_the_shapes_and_the_cure():
    with pytest.raises(CollateError, match=r"\(3, 2\).*\(5, 2\).*\(2, 2\).*pad_collate") as caught:
        list(DataLoader(MyMapDataset(VARIABLE_LENGTH), batch_size=3))
    assert isinstance(caught.value, RuntimeError)


IMBALANCED_LABELS = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])


def test_m5_6_sequential_and_random_sampler():
    dataset = MyMapDataset(TWELVE)
    sequential = DataLoader(dataset, batch_size=2, sampler=SequentialSampler(dataset))
    assert as_lists(sequential) == as_lists(sequential) == [TWELVE[i : i + 2] for i in range(0, 12, 2)]
    shuffled = DataLoader(dataset, batch_size=12, sampler=RandomSampler(dataset))
    epochs = {tuple(as_lists(shuffled)[0]) for _ in range(10)}
    assert len(epochs) > 5
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(TWELVE)}


def test_m5_6_eight_to_two_classes_come_out_fifty_fifty():
    weights = class_weights(IMBALANCED_LABELS)
    assert np.bincount(IMBALANCED_LABELS).tolist() == [8, 2]
    assert weights.tolist() == [0.125] * 8 + [0.5] * 2
    sampler = WeightedRandomSampler(weights, num_samples=10, replacement=True, generator=np.random.default_rng(7))
    dataset = TensorDataset(np.arange(10, dtype=np.float32), IMBALANCED_LABELS)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    drawn = np.concatenate([np.asarray(label) for _ in range(2000) for _, label in loader])
    assert len(drawn) == 20_000
    assert abs(drawn.mean() - 0.5) < 0.014  # four standard deviations


def test_m5_6_within_a_class_every_sample_has_the_same_chance():
    sampler = WeightedRandomSampler(class_weights(IMBALANCED_LABELS), 40_000, generator=np.random.default_rng(7))
    share = np.bincount(list(sampler), minlength=10) / 40_000
    assert np.allclose(share, [0.0625] * 8 + [0.25] * 2, atol=0.009)


def test_m5_6_more_weights_than_torch_can():
    n = 2**24 + 1
    weights = np.zeros(n, dtype=np.float32)
    weights[[0, -1]] = 0.5
    loader = DataLoader(range(n), batch_size=100, sampler=WeightedRandomSampler(weights, 2000), seed=1)
    drawn = np.concatenate([np.asarray(batch) for batch in loader])
    assert set(drawn.tolist()) == {0, n - 1}
    assert abs((drawn == 0).mean() - 0.5) < 0.045  # four standard deviations


@pytest.mark.parametrize("seed", [None, 5])
def test_m5_7_similar_lengths_together(seed):
    sentences = [[1] * n for n in np.random.default_rng(0).integers(1, 100, 1000)]
    sampler = BucketBatchSampler(sample_lengths(sentences), batch_size=10)

    def padding(**batching):
        batches = list(DataLoader(sentences, collate_fn=pad_collate(), seed=seed, **batching))
        assert sum(len(lengths) for _, lengths in batches) == 1000
        return 1 - sum(np.asarray(lengths).sum() for _, lengths in batches) / sum(
            x.shape[0] * x.shape[1] for x, _ in batches
        )

    assert padding(batch_sampler=sampler) < 0.03
    assert padding(batch_size=10, shuffle=True) > 0.4


@pytest.mark.parametrize("seed", [None, 5])
def test_m5_7_the_same_persons_pictures_together(seed):
    people = np.random.default_rng(0).integers(0, 20, 400)
    loader = DataLoader(TensorDataset(np.arange(400), people), batch_sampler=ClassBatchSampler(people, 4, 5), seed=seed)
    batches = [(np.asarray(pictures), np.asarray(persons)) for pictures, persons in loader]
    assert len(batches) == 20
    for pictures, persons in batches:
        assert len(set(pictures.tolist())) == 20
        assert [len(set(group)) for group in persons.reshape(4, 5).tolist()] == [1] * 4
        assert len(set(persons.tolist())) == 4


@needs_torch
@pytest.mark.parametrize("num_workers", [0, 2])
def test_m5_8_pinned_memory_without_an_accelerator_is_a_warning(num_workers, monkeypatch):
    from headrace.frameworks import torch_tensors

    monkeypatch.setattr(torch_tensors, "current_accelerator", lambda: None)
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
        batches = list(DataLoader(MyMapDataset(TWELVE), batch_size=4, pin_memory=True, num_workers=num_workers))
    assert as_lists(batches) == THREE_BATCHES


class PinnableBatch:
    """A user's own kind of batch."""

    def __init__(self, samples):
        self.samples = samples
        self.pinned_in = None

    def pin_memory(self):
        self.pinned_in = os.getpid()
        return self


@needs_torch
@pytest.mark.parametrize("num_workers", [0, 2])
def test_m5_8_with_an_accelerator_each_batch_is_pinned_here(num_workers, monkeypatch):
    from headrace.frameworks import torch_devices, torch_tensors

    monkeypatch.setattr(torch_tensors, "current_accelerator", lambda: "cuda")
    monkeypatch.setattr(torch_devices, "current_accelerator", lambda: None)  # there is no device to set
    loader = DataLoader(TWELVE, batch_size=4, collate_fn=PinnableBatch, pin_memory=True, num_workers=num_workers)
    for _ in range(2):
        batches = list(loader)
        assert [batch.samples for batch in batches] == THREE_BATCHES
        assert {batch.pinned_in for batch in batches} == {os.getpid()}


def test_m5_9_step_by_step_without_workers():
    """1. The model's step. 2. It waits. 3. The next batch is made. 4. The next step."""
    events = []

    class Telling(MyMapDataset):
        def __getitem__(self, idx):
            events.append(f"load {idx}")
            return self.data[idx]

    for batch in as_lists_lazily(DataLoader(Telling([10, 11, 12, 13]), batch_size=2)):
        events += [f"step {batch}"]
    assert events == ["load 0", "load 1", "step [10, 11]", "load 2", "load 3", "step [12, 13]"]


def as_lists_lazily(batches):
    return (np.asarray(batch).tolist() for batch in batches)


def test_m5_9_step_by_step_with_workers(tmp_path):
    """While the model is at batch N, the workers make batches N+1, N+2 …; then they are there at once, in order."""
    dataset = Diary(list(range(40)), tmp_path / "diary")
    steps = 0
    for step, batch in enumerate(as_lists_lazily(DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=1))):
        assert batch == list(range(4 * step, 4 * step + 4))
        ahead = min(40, 4 * (step + 3))  # this batch, and one more of each worker
        wait_until(lambda ahead=ahead: len(dataset.entries()) >= ahead)
        assert sorted(dataset.entries()) == list(range(ahead))
        steps += 1
    assert steps == 10

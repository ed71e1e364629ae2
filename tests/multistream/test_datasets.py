"""The usual way of the document: datasets that are split over workers, each of which gives its part of every batch."""

from __future__ import annotations

import random
from itertools import chain, cycle, islice

import numpy as np
import pytest

from headrace import IterableDataset, get_worker_info
from headrace.multistream.dataset import MultiStreamDataset
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import take, through_json
from tests.needs import HAS_TORCH, needs_torch

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

DATA_LIST = [[10 * k + j for j in range(4)] for k in range(1, 10)]


class MyIterableDataset(IterableDataset):
    """As the document writes it."""

    def __init__(self, data_list, batch_size):
        self.data_list = data_list
        self.batch_size = batch_size

    @property
    def shuffled_data_list(self):
        return random.sample(self.data_list, len(self.data_list))

    def process_data(self, data):
        for x in data:
            worker = get_worker_info()
            worker_id = id(self) if worker is not None else -1
            yield x, worker_id

    def get_stream(self, data_list):
        return chain.from_iterable(map(self.process_data, cycle(data_list)))

    def get_streams(self):
        return zip(*[self.get_stream(self.shuffled_data_list) for _ in range(self.batch_size)], strict=False)

    def __iter__(self):
        return self.get_streams()

    @classmethod
    def split_datasets(cls, data_list, batch_size, max_workers):
        for n in range(max_workers, 0, -1):
            if batch_size % n == 0:
                num_workers = n
                break
        split_size = batch_size // num_workers
        return [cls(data_list, batch_size=split_size) for _ in range(num_workers)]


def test_m1_9_a_dataset_of_the_documents_own():
    """M1.9: a list with a pair of each stream; parts come from different workers, and go on from step to step."""
    datasets = MyIterableDataset.split_datasets(DATA_LIST, batch_size=4, max_workers=2)
    assert [dataset.batch_size for dataset in datasets] == [2, 2]
    loader = MultiStreamDataLoader(datasets)
    assert loader.num_workers == 2
    steps = take(loader, 36)
    assert all(type(step) is list and len(step) == 4 for step in steps)
    items = np.array([[x for x, _ in step] for step in steps])
    assert all(sorted(items[:, position]) == sorted(chain(*DATA_LIST)) for position in range(4))
    goes_on = items[1:] == items[:-1] + 1
    assert goes_on.sum(0).tolist() == [27] * 4
    workers = {tuple(worker for _, worker in step) for step in steps}
    assert len(workers) == 1
    [(a, b, c, d)] = workers
    assert a == b != c == d


@needs_torch
def test_m1_9_a_dataset_of_torch():
    """M1.9, with torch's class."""
    from torch.utils import data as torch_data

    class Streams(MyIterableDataset, torch_data.IterableDataset):
        pass

    datasets = Streams.split_datasets(DATA_LIST, batch_size=6, max_workers=4)
    assert len(datasets) == 3
    assert [len(step) for step in take(MultiStreamDataLoader(datasets), 5)] == [6] * 5


@pytest.mark.parametrize("workers", [0, 1, 2, None])
def test_m1_9_the_ready_made_class(workers):
    """M1.9."""
    datasets = MultiStreamDataset.split_datasets(DATA_LIST, batch_size=4, max_workers=3)
    assert len(datasets) == 2
    steps = take(MultiStreamDataLoader(datasets, num_workers=workers), 36)
    assert all(sorted(step[position] for step in steps) == sorted(chain(*DATA_LIST)) for position in range(4))
    assert len({tuple(step[position] for step in steps) for position in range(4)}) == 4


def test_the_seed_decides_what_datasets_draw():
    datasets = MultiStreamDataset.split_datasets(DATA_LIST, batch_size=4, max_workers=2)
    first = take(MultiStreamDataLoader(datasets), 50)
    assert take(MultiStreamDataLoader(datasets, num_workers=0), 50) == first
    assert take(MultiStreamDataLoader(datasets, seed=1), 50) != first


def test_datasets_go_on_after_a_stop():
    datasets = MultiStreamDataset.split_datasets(DATA_LIST, batch_size=4, max_workers=2)
    whole = take(MultiStreamDataLoader(datasets), 60)
    loader = MultiStreamDataLoader(datasets, num_workers=1)
    with loader:
        list(islice(loader, 33))
        state = through_json(loader.state_dict())
    loader = MultiStreamDataLoader(datasets)
    loader.load_state_dict(state)
    assert take(loader, 27) == whole[33:]


class Parts(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return ((k, np.full(2, k)) for k in range(self.n))


def test_the_first_dataset_that_ends_ends_the_epoch():
    steps = take(MultiStreamDataLoader([Parts(5), Parts(3), Parts(4)], num_workers=2), 100)
    assert len(steps) == 3
    assert steps[1][0] == steps[1][2] == 1
    assert type(steps[1][3]).__module__ == ("torch" if HAS_TORCH else "numpy")


def test_lists_of_parts():
    shown = repr(MultiStreamDataLoader([Parts(3), Parts(4)]))
    assert shown == "MultiStreamDataLoader(<list of 2>, seed=0, num_workers=2, engine='processes')"
    assert take(MultiStreamDataLoader([[(1, 2), (3, 4)], [(5,), (6,), (7,)]]), 9) == [[1, 2, 5], [3, 4, 6]]


def test_arguments_that_need_a_batch_size():
    for arguments in (
        {"seq_len": 3},
        {"targets": True},
        {"is_first": True},
        {"read": list},
        {"lengths": [3]},
        {"shard": (0, 1)},
    ):
        with pytest.raises(ValueError, match="batch_size"):
            MultiStreamDataLoader([Parts(3)], **arguments)
    with pytest.raises(ValueError, match="max_workers"):
        MultiStreamDataset.split_datasets(DATA_LIST, 4, 0)

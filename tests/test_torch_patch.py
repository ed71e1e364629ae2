"""torch's own DataLoader, served by headrace: the same batches and generators, and torch where headrace cannot."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils import data
from torch.utils.data import dataloader as torch_dataloader

from headrace.deliver.iterator import LoaderIterator
from headrace.torch_patch import TorchPatch
from tests.parity.equality import fingerprint


class Augmented(data.Dataset):
    """Draws from every global generator."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return {"torch": torch.randn(3) + index, "python": random.random(), "numpy": np.random.rand(2)}


class Stream(data.IterableDataset):
    def __init__(self, n=7):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(range(7))


class Watcher:
    """Serves torch, and remembers what it is told."""

    def __init__(self):
        self.told, self.served = [], []
        service = TorchPatch(self.told.append, lambda loader, served: self.served.append(served))
        self.stop = service.install(torch_dataloader)


@pytest.fixture
def watcher():
    watcher = Watcher()
    yield watcher
    watcher.stop()
    watcher.served.clear()  # persistent workers live as long as their loader


LOADERS = {
    "plain": lambda: data.DataLoader(Augmented(), 4),
    "shuffled": lambda: data.DataLoader(Augmented(), 4, shuffle=True, drop_last=True),
    "workers": lambda: data.DataLoader(Augmented(), 4, shuffle=True, num_workers=2, prefetch_factor=3),
    "persistent": lambda: data.DataLoader(Augmented(), 4, shuffle=True, num_workers=1, persistent_workers=True),
    "generator": lambda: data.DataLoader(Augmented(), 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: data.DataLoader(Augmented(), 4, sampler=data.WeightedRandomSampler([1.0] * 23, 30)),
    "repeating": lambda: data.DataLoader(
        Augmented(), 4, sampler=data.RandomSampler(range(23), replacement=True, num_samples=50)
    ),
    "batch sampler": lambda: data.DataLoader(
        Augmented(), batch_sampler=data.BatchSampler(data.RandomSampler(range(23)), 5, drop_last=True)
    ),
    "own batches": lambda: data.DataLoader(Augmented(), batch_sampler=[[1, 2], [3]]),
    "single samples": lambda: data.DataLoader(Augmented(), batch_size=None, shuffle=True),
    "stream": lambda: data.DataLoader(Stream(), 2, num_workers=1),
    "rank": lambda: data.DataLoader(Augmented(), 4, sampler=data.DistributedSampler(range(23), 2, 1)),
    "tensors": lambda: data.DataLoader(data.TensorDataset(torch.arange(10.0)), 3, shuffle=True),
    "collated": lambda: data.DataLoader(Augmented(), 4, collate_fn=list),
}


def two_epochs(make):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    loader = make()
    batches = [list(loader) for _ in range(2)]
    return batches, torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_and_generators_are_those_of_torch(kind, watcher):
    served = two_epochs(LOADERS[kind])
    assert (len(watcher.served), watcher.told) == (1, [])
    watcher.stop()
    assert fingerprint(served) == fingerprint(two_epochs(LOADERS[kind]))
    assert len(watcher.served) == 1


def test_the_place_in_the_script_is_known(watcher):
    list(data.DataLoader(range(3)))
    (served,) = watcher.served
    assert served.place.file == __file__
    assert str(served.place).startswith("test_torch_patch.py:")


def test_the_place_is_in_the_script_though_a_trainer_iterates(watcher, tmp_path, monkeypatch):
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "some_trainer.py").write_text("def fit(loader):\n    return [batch for batch in loader]\n")
    monkeypatch.syspath_prepend(packages)
    import some_trainer

    some_trainer.fit(data.DataLoader(range(4), 2))
    (served,) = watcher.served
    assert served.place.file == __file__


def test_everything_is_torchs_again_afterwards():
    iterate, begin = data.DataLoader.__iter__, torch_dataloader._BaseDataLoaderIter.__init__
    watcher = Watcher()
    assert isinstance(iter(data.DataLoader(range(3))), LoaderIterator)
    watcher.stop()
    assert (data.DataLoader.__iter__, torch_dataloader._BaseDataLoaderIter.__init__) == (iterate, begin)
    assert not isinstance(iter(data.DataLoader(range(3))), LoaderIterator)


def test_a_subclass_that_asks_torch_for_its_batches_is_served(watcher):
    class Doubling(data.DataLoader):
        def __iter__(self):
            return (2 * batch for batch in super().__iter__())

    assert [batch.tolist() for batch in Doubling(range(4), 2)] == [[0, 2], [4, 6]]
    assert (len(watcher.served), watcher.told) == (1, [])


def test_a_subclass_with_its_own_private_parts_is_left_to_torch(watcher):
    class Backwards(data.DataLoader):
        @property
        def _index_sampler(self):
            return [[1, 0]]

    for _ in range(2):
        assert [batch.tolist() for batch in Backwards(range(4), 2)] == [[1, 0]]
    (told,) = watcher.told  # once, not in each epoch
    assert told.startswith("Backwards at test_torch_patch.py:")
    assert told.endswith("is left to torch: it has a _index_sampler of its own.")


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's
def test_a_class_that_makes_its_iterators_itself_is_left_to_torch(watcher):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    assert [batch.tolist() for batch in stateful.StatefulDataLoader(range(4), 2)] == [[0, 1], [2, 3]]
    (told,) = watcher.told
    assert told.startswith("StatefulDataLoader at test_torch_patch.py:")
    assert "it makes its iterators itself" in told


def test_arguments_that_headrace_refuses_are_left_to_torch(watcher):
    loader = data.DataLoader(range(4), 2, worker_init_fn=5)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    (told,) = watcher.told
    assert "is left to torch: TypeError: worker_init_fn must be" in told


def test_what_a_script_changes_between_epochs_is_respected(watcher):
    loader = data.DataLoader(range(6), 3)
    assert len(list(loader)) == 2
    loader.collate_fn = sum
    assert list(loader) == [3, 12]
    loader.batch_sampler.batch_size = 2
    assert list(loader) == [1, 5, 9]
    assert list(loader) == [1, 5, 9]
    assert len(watcher.served) == 3


def test_the_number_of_a_rank_s_epoch_is_respected(watcher):
    sampler = data.DistributedSampler(range(20), 2, 0)
    loader = data.DataLoader(range(20), 10, sampler=sampler)
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        epochs.append([batch.tolist() for batch in loader])
    assert epochs[0] == epochs[2] != epochs[1]


def test_a_stream_that_gives_more_than_it_promised_is_told(watcher):
    loader = data.DataLoader(Stream(n=3))
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="was reported to be 3"):
        list(loader)


def test_many_workers_are_told_by_torch_alone(watcher, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
    with pytest.warns(UserWarning, match="Our suggested max number of worker") as warned:
        list(data.DataLoader(range(4), 2, num_workers=2))
    assert not [warning for warning in warned if "this process may use" in str(warning.message)]


def test_a_loader_that_is_gone_takes_its_workers_with_it(watcher):
    loader = data.DataLoader(range(4), 2, num_workers=1, persistent_workers=True)
    list(loader)
    served = weakref.ref(watcher.served.pop().loader)
    del loader
    gc.collect()
    assert served() is None

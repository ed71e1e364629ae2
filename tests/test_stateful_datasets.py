"""Datasets by key that know their state, beyond what torchdata does: seeds, threads, lost workers, other numbers."""

from __future__ import annotations

import json
import os
import signal
from itertools import islice
from pathlib import Path

import pytest

from headrace import DataLoader, Dataset, StateError


class Aging(Dataset):
    """Counts what each copy of it has given. A worker that is asked for the index `deadly` is killed, once."""

    def __init__(self, deadly=None, folder=None):
        self.given = 0
        self.deadly, self.folder = deadly, folder

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == self.deadly:
            try:
                Path(self.folder, "died").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        self.given += 1
        return 100 * index + self.given

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Plain(Aging):
    state_dict = None


def rows(batches):
    return [batch.tolist() for batch in batches]


def state_after(loader, n):
    list(islice(loader, n))
    return json.loads(json.dumps(loader.state_dict()))


WORKERS = {"alone": {}, "processes": {"num_workers": 2}, "threads": {"num_workers": 2, "engine": "threads"}}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("every", [1, 4])
def test_each_worker_goes_on_with_its_own_state(seed, workers, every):
    def make():
        shuffle = {"shuffle": True, "seed": seed} if seed is not None else {}
        return DataLoader(Aging(), 3, snapshot_every_n_steps=every, **shuffle, **WORKERS[workers])

    with make() as loader:
        whole = rows(loader)
    for n in (1, 3, 6):
        with make() as loader, make() as other:
            other.load_state_dict(state_after(loader, n))
            assert rows(other) == whole[n:]


def test_an_epoch_that_is_resumed_has_as_many_workers_as_before():
    with DataLoader(Aging(), 3, num_workers=2) as loader, DataLoader(Aging(), 3) as other:
        whole = rows(loader)
        other.load_state_dict(state_after(loader, 3))
        assert rows(other) == whole[3:]
        assert rows(other) == rows(DataLoader(Aging(), 3))  # the next epoch is without, and its dataset is new


@pytest.mark.parametrize("seed", [None, 3])
def test_a_worker_that_stands_in_for_another_knows_what_that_knew(seed, tmp_path):
    def make(**options):
        dataset = Aging(13, tmp_path) if options else Aging()
        return DataLoader(dataset, 3, num_workers=2, seed=seed, snapshot_every_n_steps=3, **options)

    with make() as loader:
        whole = rows(loader)
    with make(on_worker_death="restart") as loader, pytest.warns(UserWarning, match="Another one takes its place"):
        assert rows(loader) == whole
    assert Path(tmp_path, "died").exists()


def test_what_was_kept_over_epochs_needs_as_many_workers():
    def make(workers):
        return DataLoader(Aging(), 3, num_workers=workers, persistent_workers=True, multiprocessing_context="fork")

    with make(2) as loader, make(1) as other:
        rows(loader)
        other.load_state_dict(loader.state_dict())
        with pytest.warns(UserWarning, match="2 persistent workers.*this loader has 1 workers"):
            assert len(rows(other)) == 8


def test_a_state_of_a_dataset_needs_one_that_takes_it():
    loader = DataLoader(Aging(), 3)
    with pytest.raises(StateError, match="Plain has none"):
        DataLoader(Plain(), 3).load_state_dict(state_after(loader, 2))


@pytest.mark.parametrize(("every", "error"), [(0, ValueError), (-1, ValueError), ("2", TypeError)])
def test_snapshots_come_every_so_many_steps(every, error):
    with pytest.raises(error, match="snapshot_every_n_steps"):
        DataLoader(Aging(), 3, snapshot_every_n_steps=every)

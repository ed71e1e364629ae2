"""Worker processes of all kinds give the same batches, whatever becomes of them."""

from __future__ import annotations

import os
import signal
from itertools import islice

import numpy as np
import pytest

from headrace import Dataset, IterableDataset, WorkerDiedError, WorkerTimeoutError, get_worker_info
from headrace.multistream.loader import MultiStreamDataLoader
from tests.engines.jobs import START_METHODS
from tests.failures.scripts import children, needs_proc
from tests.multistream.oracle import GIVEN, Case, listed, plain, take, through_json

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("given", ["arrays", "generators", "datasets"])
def test_m1_8_all_start_methods(method, given):
    """M1.8."""
    case = Case(batch_size=5, given=given, seq_len=3, is_first=True, targets=True)
    assert take(case.loader(num_workers=2, multiprocessing_context=method), 40) == case.expected(40)


def test_any_number_of_workers_goes_with_any_number_of_positions():
    case = Case(batch_size=5)
    for workers in (1, 2, 3, 4, 9):
        loader = case.loader(num_workers=workers)
        assert loader.num_workers == min(workers, 5)
        assert take(loader, 30) == case.expected(30)


def test_batches_of_every_size():
    """From a few bytes, that travel in the message, to blocks in shared memory; all are kept."""
    frames = [np.random.default_rng(n).random((n, 500), dtype=np.float32) for n in (40, 70, 90)]
    with MultiStreamDataLoader(frames, 8, num_workers=2, output="numpy") as loader:
        kept = list(islice(loader, 300))
    with MultiStreamDataLoader(frames, 8, output="numpy") as loader:
        assert all(np.array_equal(a, b) for a, b in zip(kept, islice(loader, 300), strict=True))


def test_persistent_workers_in_several_epochs():
    case = Case(cycle=False, given="generators")
    loader = case.loader(num_workers=2, persistent_workers=True)
    with loader:
        assert [plain(batch) for batch in islice(loader, 2)] == case.expected(2)
        epochs = [[plain(batch) for batch in loader] for _ in range(2)]
    assert epochs == [case.expected(100, epoch) for epoch in (1, 2)]


# Failures


class Deadly(Dataset):
    """Sequences; whoever reads a certain item for the first time dies."""

    def __init__(self, sequences, item, folder):
        self.sequences = sequences
        self.item = item
        self.folder = folder

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return self.read(self.sequences[index])

    def read(self, items):
        for item in items:
            if item == self.item and self.is_first_time():
                os.kill(os.getpid(), signal.SIGKILL)
            yield item + np.random.random()

    def is_first_time(self):
        try:
            (self.folder / "dead").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def test_a_killed_worker_changes_nothing(tmp_path):
    sequences = listed([40, 50, 60])
    (tmp_path / "dead").touch()
    undisturbed = take(MultiStreamDataLoader(Deadly(sequences, 2007, tmp_path), 3), 200)
    (tmp_path / "dead").unlink()
    loader = MultiStreamDataLoader(
        Deadly(sequences, 2007, tmp_path), 3, num_workers=2, on_worker_death="restart", prefetch_factor=1
    )
    with pytest.warns(UserWarning, match="killed"):
        assert take(loader, 200) == undisturbed
    assert (tmp_path / "dead").exists()


@needs_proc
@pytest.mark.parametrize("given", ["arrays", "generators"])
def test_workers_that_are_killed_from_outside_change_nothing(given):
    case = Case(lengths=(30, 40, 50), batch_size=4, given=given)
    others = set(children(os.getpid()))
    loader = case.loader(num_workers=2, on_worker_death="restart")
    with loader:
        batches = iter(loader)
        given_out = [plain(batch) for batch in islice(batches, 70)]
        for worker in set(children(os.getpid())) - others:
            os.kill(worker, signal.SIGKILL)
        with pytest.warns(UserWarning, match="killed"):
            given_out += [plain(batch) for batch in islice(batches, 20_000)]
    assert given_out[:150] == case.expected(150)
    assert given_out[-1] == case.expected(20_070)[-1]


def test_without_restart_a_death_is_told(tmp_path):
    with (
        MultiStreamDataLoader(Deadly(listed([40]), 7, tmp_path), 2, num_workers=2) as loader,
        pytest.raises(WorkerDiedError, match="SIGKILL"),
    ):
        list(islice(loader, 100))


class Failing(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        for number in range(100):
            if number == 5:
                raise ValueError("the file is broken")
            yield number


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_ends_the_epoch_and_leaves_the_state(workers):
    with MultiStreamDataLoader(Failing(), 2, num_workers=workers) as loader:
        batches = iter(loader)
        seen = []
        with pytest.raises(ValueError, match="the file is broken"):
            seen.extend(map(plain, batches))
        assert seen == [[k, k] for k in range(len(seen))]
        assert len(seen) <= 5
        assert through_json(loader.state_dict())["course"]["step"] == len(seen)
        assert list(batches) == []


class Stuck(Failing):
    def __getitem__(self, index):
        import time

        yield 0
        time.sleep(1000)


def test_timeout():
    with (
        MultiStreamDataLoader(Stuck(), 2, num_workers=1, timeout=0.3) as loader,
        pytest.raises(WorkerTimeoutError, match="timed out"),
    ):
        list(islice(loader, 10))


# What the user's code sees


class Splitting(IterableDataset):
    """Deals its items to the workers it sees, as many datasets do."""

    def __iter__(self):
        info = get_worker_info()
        lane, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(lane, 20, lanes))


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_datasets_that_deal_to_workers_are_read_whole(engine):
    for sequences, read in (([Splitting(), Splitting()], None), ([0, 1], lambda _: Splitting())):
        loader = MultiStreamDataLoader(sequences, 2, read=read, num_workers=2, engine=engine)
        assert take(loader, 20) == [[k, k] for k in range(20)]
    assert get_worker_info() is None


def who(index):
    while True:
        info = get_worker_info()
        yield -1 if info is None else info.id


def test_functions_know_their_worker():
    assert take(MultiStreamDataLoader([0, 1], 4, read=who), 1) == [[-1, -1, -1, -1]]
    assert take(MultiStreamDataLoader([0, 1], 4, read=who, num_workers=2), 1) == [[0, 0, 1, 1]]


def test_worker_init_fn_is_called():
    def begin(worker):
        GIVEN["worker"] = worker

    def tell(_):
        while True:
            yield GIVEN["worker"]

    loader = MultiStreamDataLoader([0], 2, read=tell, num_workers=2, worker_init_fn=begin)
    assert take(loader, 1) == [[0, 1]]
    assert "worker" not in GIVEN

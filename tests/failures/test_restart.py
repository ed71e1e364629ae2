"""`on_worker_death="restart"`: workers are killed at random, and the batches are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from headrace import DataLoader, Dataset, IterableDataset, get_worker_info, rng
from headrace.testing import DyingDataset
from tests.failures.outcomes import outcomes, plain
from tests.failures.scripts import children, needs_proc, run_script
from tests.needs import needs_torch


class Augmented(Dataset):
    """Every sample depends on all that the worker's generators gave before."""

    def __init__(self, n, use_torch=False):
        self._n = n
        self._use_torch = use_torch

    def __len__(self):
        return self._n

    def __getitem__(self, index):
        time.sleep(0.002)
        return [index, random.random(), np.random.random(), rng().random(), *self._drawn_by_torch()]

    def _drawn_by_torch(self):
        if not self._use_torch:
            return []
        import torch

        return [float(torch.rand(()))]


class AugmentedStream(IterableDataset):
    """The same as a stream, dealt to the workers."""

    def __init__(self, n):
        self._n = n

    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, self._n, info.num_workers):
            time.sleep(0.002)
            yield [index, random.random(), np.random.random(), rng().random()]


class Killer:
    """Kills workers of this process, chosen by chance."""

    def __init__(self, seed):
        self._chance = random.Random(seed)
        self._others = set(children(os.getpid()))
        self.killed = []

    def kill_one(self):
        workers = sorted(set(children(os.getpid())) - self._others)
        if workers:
            victim = self._chance.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self.killed.append(victim)

    @contextmanager
    def at_any_time(self, pauses):
        """Kill a worker after each of these pauses, whatever it is doing."""
        stop = threading.Event()

        def kill():
            for pause in pauses:
                if not stop.wait(pause):
                    self.kill_one()

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def epochs(dataset, n=1, *, kill=None, every=7, **options):
    """All batches of some epochs, with generators that start from a fixed seed; `kill` is called every so often.

    It is called after batches, so that there is always progress: restarting without any is given up.
    """
    options = {"batch_size": 4, "num_workers": 2, "generator": np.random.default_rng(11), **options}
    loader = DataLoader(dataset, **options)
    seen = []
    for _ in range(n):
        seen.append([])
        for i, batch in enumerate(loader):
            seen[-1].append([plain(field) for field in batch])
            if kill is not None and i % every == every // 2:
                kill()
    loader.close()
    return seen


def check(dataset, n=1, *, in_any_order=False, **options):
    undisturbed = epochs(dataset, n, **options)
    killer = Killer(seed=3)
    disturbed = epochs(dataset, n, kill=killer.kill_one, on_worker_death="restart", **options)
    assert len(killer.killed) >= 3
    if in_any_order:
        undisturbed, disturbed = [sorted(each) for each in undisturbed], [sorted(each) for each in disturbed]
    assert disturbed == undisturbed


pytestmark = [
    needs_proc,
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:DataLoader worker .* exited unexpectedly"),
]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"prefetch_factor": 4}, {"batch_size": 7}])
def test_samples_by_key(options):
    check(Augmented(200), **options)


def test_kills_at_any_time():
    undisturbed = epochs(Augmented(300))
    killer = Killer(seed=8)
    with killer.at_any_time([0.1, 0.07]):
        disturbed = epochs(Augmented(300), on_worker_death="restart")
    assert killer.killed
    assert disturbed == undisturbed


@needs_torch
def test_samples_by_key_with_torch():
    import torch

    def run(**options):
        generator = torch.Generator().manual_seed(5)
        return epochs(Augmented(150, use_torch=True), generator=generator, output="torch", shuffle=True, **options)

    undisturbed = run()
    killer = Killer(seed=4)
    disturbed = run(on_worker_death="restart", kill=killer.kill_one)
    assert killer.killed
    assert disturbed == undisturbed


def test_a_stream():
    check(AugmentedStream(200))


@pytest.mark.parametrize("dataset", [Augmented(100), AugmentedStream(100)], ids=["by key", "stream"])
def test_persistent_workers_over_three_epochs(dataset):
    check(dataset, n=3, persistent_workers=True)


@pytest.mark.parametrize("dataset", [Augmented(100), AugmentedStream(100)], ids=["by key", "stream"])
def test_persistent_workers_whose_epochs_are_left_early(dataset):
    """What was in flight is worked on all the same, and moves the generators, before the next epoch begins."""

    def run(kill=None, **options):
        loader = DataLoader(
            dataset,
            batch_size=4,
            num_workers=2,
            generator=np.random.default_rng(2),
            persistent_workers=True,
            **options,
        )
        seen = []
        for epoch in range(4):
            for i, batch in enumerate(loader):
                seen.append([plain(field) for field in batch])
                if i == 3 + epoch:
                    if kill is not None:
                        kill()
                    break
        loader.close()
        return seen

    undisturbed = run()
    killer = Killer(seed=9)
    assert run(killer.kill_one, on_worker_death="restart") == undisturbed
    assert len(killer.killed) == 4


def test_three_epochs_with_new_workers_each():
    check(Augmented(80), n=3, shuffle=True)


def test_a_stream_without_order():
    check(AugmentedStream(200), in_order=False, in_any_order=True)


def test_samples_by_key_without_order():
    """Which worker makes which batch depends on their speed, so only the keys can be compared."""
    killer = Killer(seed=5)  # seldom: the same sample must not be the one at work twice
    options = {"in_order": False, "on_worker_death": "restart"}
    (batches,) = epochs(Augmented(200), kill=killer.kill_one, every=20, **options)
    assert killer.killed
    assert sorted(batch[0] for batch in batches) == [[i, i + 1, i + 2, i + 3] for i in range(0, 200, 4)]


def test_single_samples():
    killer, seen = Killer(seed=6), []
    for number in DataLoader(Slowly(60), batch_size=None, num_workers=2, on_worker_death="restart"):
        seen.append(number)
        if number % 20 == 10:
            killer.kill_one()
    assert seen == list(range(60))
    assert len(killer.killed) == 3


class Slowly(Dataset):
    def __init__(self, n):
        self._n = n

    def __len__(self):
        return self._n

    def __getitem__(self, index):
        time.sleep(0.005)
        return index


def test_large_batches_that_are_kept_stay_valid():
    class Large(Slowly):
        def __getitem__(self, index):
            return np.full(2**17, super().__getitem__(index), np.int64)

    killer, kept = Killer(seed=7), []
    options = {"on_worker_death": "restart", "multiprocessing_context": "fork", "output": "numpy"}
    for batch in DataLoader(Large(60), num_workers=2, **options):
        kept.append(batch)
        if len(kept) % 15 == 0:
            killer.kill_one()
    assert len(killer.killed) >= 3
    assert all((batch == i).all() for i, batch in enumerate(kept))


@pytest.mark.filterwarnings("default")
def test_the_first_restart_of_a_loader_is_told_at_the_users_line(tmp_path):
    dataset = DyingDataset(range(8), {2: "kill", 6: "exit"}, once_in=tmp_path)  # both in worker 0, one after the other
    loader = DataLoader(dataset, num_workers=2, on_worker_death="restart")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for _ in loader:
                pass
    (warning,) = [each for each in caught if "exited unexpectedly" in str(each.message)]
    for words in ("worker 0 (pid(s) ", "killed by signal SIGKILL at batch 2, sample 2", "takes its place"):
        assert words in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("how", ["kill", "segv", "exit"])
def test_each_way_to_die_once(tmp_path, how):
    dataset = DyingDataset(range(20), dict.fromkeys([0, 7, 8, 19], how), once_in=tmp_path)
    loader = DataLoader(dataset, batch_size=3, num_workers=2, on_worker_death="restart")
    assert outcomes(loader) == [list(range(i, min(i + 3, 20))) for i in range(0, 20, 3)]
    assert len(list(tmp_path.iterdir())) == 4


def test_worker_init_fn_is_called_in_the_new_worker_too(tmp_path):
    def init(number):
        (tmp_path / f"{number}-{os.getpid()}").touch()

    dataset = DyingDataset(range(8), {3: "kill"}, once_in=_folder(tmp_path, "deaths"))
    loader = DataLoader(dataset, num_workers=2, on_worker_death="restart", worker_init_fn=init)
    assert outcomes(loader) == [[i] for i in range(8)]
    starts = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir() if path.is_file())
    assert starts == ["0", "1", "1"]


def _folder(parent, name):
    (parent / name).mkdir()
    return parent / name


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(tmp_path, method):
    source = f"""
    import random

    class Augmented(Dataset):
        def __init__(self, deaths):
            self._dying = DyingDataset(range(12), deaths, once_in=".")

        def __len__(self):
            return 12

        def __getitem__(self, index):
            return [self._dying[index], random.random(), np.random.random()]

    seen = []
    for deaths in ({{}}, {{3: "kill", 4: "exit"}}):
        loader = DataLoader(
            Augmented(deaths), batch_size=2, num_workers=2, output="numpy", multiprocessing_context="{method}",
            on_worker_death="restart", generator=np.random.default_rng(1),
        )
        seen.append([[field.tolist() for field in batch] for batch in loader])
    print(seen[0] == seen[1], len(seen[0]), os.path.exists("died-at-3"))
    """
    ended = run_script(tmp_path, source)
    assert ended.stdout == "True 6 True\n", ended.stderr
    assert ended.stderr.count("Warning") == ended.stderr.count("takes its place") == 1


class Turning(IterableDataset):
    """Begins elsewhere in each epoch, and says where."""

    turn = 0

    def __iter__(self):
        turn, self.turn = self.turn, self.turn + 1
        for number in range(24):
            time.sleep(0.002)
            yield [1000 * turn + number]

    def state_dict(self):
        return {"turn": self.turn}

    def load_state_dict(self, state):
        self.turn = state["turn"]


def test_a_dataset_that_counts_epochs_goes_on_counting():
    check(Turning(), 3, num_workers=1, persistent_workers=True)


class Continued(IterableDataset):
    """Goes on where it was left, in the next epoch, too."""

    at = 0

    def __iter__(self):
        while self.at < 40:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.filterwarnings("ignore:Worker")
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_resumed_epoch_is_left_and_the_worker_dies_before_the_next(is_killed):
    """Its replacement resumes that epoch, too: only so does the next one begin in the right place."""
    arguments = {"num_workers": 1, "persistent_workers": True, "on_worker_death": "restart", "output": "numpy"}
    with DataLoader(Continued(), None, **arguments) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(7)] == list(range(1, 8))
        state = loader.state_dict()
    with DataLoader(Continued(), None, **arguments) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        assert [next(batches) for _ in range(5)] == list(range(8, 13))
        if is_killed:
            (pid,) = batches._batches._engine.pids().values()
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert next(iter(loader)) == 15  # two were in flight

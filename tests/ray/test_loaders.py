"""Loaders on Ray: transport, several loaders on one pool, a number of workers that follows the loop, and their end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import DataLoader, Dataset, RayEngine, RayPool, WorkerStartError
from tests.ray.data import Slow, Wide, engine_of, plain


def spilled():
    """What the nodes' logs tell of objects that were moved to disk."""
    import ray

    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    lines = [line for path in logs.glob("raylet*.out") for line in path.read_text(errors="replace").splitlines()]
    return [line for line in lines if "Spilled " in line]


def test_large_batches_are_writable_and_the_users_own_and_the_store_never_spills():
    """Each batch is a quarter of the store; twelve would be in flight."""
    loader = DataLoader(Wide(24, 36 * 2**20), 1, num_workers=2, prefetch_factor=6, output="numpy", engine="ray")
    kept = []
    for number, batch in enumerate(loader):
        assert batch.shape == (1, 36 * 2**20)
        assert (batch[0, :: 2**20] == number).all()
        batch += 1
        if number < 3:
            kept.append(batch)
        if number == 5:
            time.sleep(1.0)  # the workers get as far ahead as they may
    assert number == 23
    assert [int(batch[0, 5]) for batch in kept] == [1, 2, 3]
    assert not spilled()


def test_many_small_batches_travel_several_in_one_answer():
    loader = DataLoader(Wide(6000, 8), 2, num_workers=2, output="numpy", engine="ray")
    iterator = iter(loader)
    found = [int(batch[0, 0]) for batch in iterator]
    assert found == [2 * number % 251 for number in range(3000)]


class Weights(Dataset):
    """Refers to a large array."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return int(self.array[index]), self.array.flags.writeable, self.array.flags.owndata


def test_a_large_dataset_is_in_the_store_once_and_actors_read_it_there():
    import ray

    array = np.arange(5 * 2**20)  # 40 MiB; of four copies there would be no room
    loader = DataLoader(
        Weights(array), 1, num_workers=4, engine=RayEngine(placement="local", num_cpus=0.5), collate_fn=list
    )
    iterator = iter(loader)
    first = next(iterator)
    total, free = ray.cluster_resources(), ray.available_resources()
    used = total["object_store_memory"] - free["object_store_memory"]
    assert first == [(0, False, False)]
    assert used < 1.2 * array.nbytes
    assert [batch[0][0] for batch in iterator] == list(range(1, 8))


def test_what_cannot_be_sent_is_named():
    class Locked(Wide):
        def __init__(self):
            super().__init__(4, 4)
            self.lock = threading.Lock()

    with pytest.raises(WorkerStartError, match=r"dataset\.lock cannot be pickled"):
        list(DataLoader(Locked(), num_workers=1, engine="ray"))


def test_as_they_are_ready():
    loader = DataLoader(Slow(40, 0.001), 4, num_workers=2, in_order=False, engine="ray", output="numpy")
    assert sorted(int(i) for batch in loader for i in batch["index"]) == list(range(40))


def test_persistent_workers_keep_their_generators_from_epoch_to_epoch():
    torch = pytest.importorskip("torch")
    found = {}
    for engine in ("processes", "ray"):
        torch.manual_seed(4)
        with DataLoader(Slow(24, 0), 4, num_workers=2, persistent_workers=True, engine=engine) as loader:
            found[engine] = [[plain(batch) for batch in loader] for _ in range(3)]
    assert found["ray"] == found["processes"]


def test_a_state_of_one_engine_resumes_on_the_other():
    def loader(engine, workers):
        return DataLoader(Slow(60, 0), 4, shuffle=True, seed=5, num_workers=workers, engine=engine, output="numpy")

    expected = [plain(batch) for batch in loader("processes", 0)]
    for first, second in (("ray", "processes"), ("processes", "ray")):
        begun = loader(first, 2)
        iterator = iter(begun)
        head = [plain(next(iterator)) for _ in range(5)]
        state = begun.state_dict()
        del iterator
        resumed = loader(second, 1)
        resumed.load_state_dict(state)
        assert head + [plain(batch) for batch in resumed] == expected


@pytest.mark.parametrize("end", ["break", "close", "drop"])
def test_an_epoch_that_is_left_leaves_nothing(end):
    """The guard of every test here sees that no actor, object or thread is left."""
    loader = DataLoader(Slow(400, 0.01), 4, num_workers=2, engine="ray")
    for _ in loader:
        break
    if end == "close":
        iterator = iter(loader)
        next(iterator)
        loader.close()
    elif end == "drop":
        watch = weakref.ref(loader)
        iterator = iter(loader)
        del iterator, loader
        gc.collect()
        assert watch() is None


def test_loaders_share_a_pool_and_get_each_their_own():
    def loader(engine, seed, workers=2):
        return DataLoader(
            Slow(80, 0.001), 4, shuffle=True, seed=seed, num_workers=workers, engine=engine, output="numpy"
        )

    expected = {seed: [plain(batch) for batch in loader("processes", seed)] for seed in range(3)}
    with RayPool(2) as pool:
        found = {}

        def load(seed):
            found[seed] = [[plain(batch) for batch in loader(pool, seed)] for _ in range(1)]

        threads = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {seed: [batches] for seed, batches in expected.items()}


def test_loaders_on_a_pool_are_served_in_turn():
    with RayPool(1) as pool:
        loaders = [DataLoader(Slow(60, 0.005), 2, num_workers=1, engine=pool) for _ in range(2)]
        iterators = [iter(loader) for loader in loaders]
        for iterator in iterators:
            next(iterator)
        ends = []

        def load(number):
            for _ in iterators[number]:
                pass
            ends.append(time.monotonic())

        begun = time.monotonic()
        threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends[0] - begun > 0.6 * (ends[1] - begun)
        iterators.clear()
        del iterator


def test_an_error_in_one_loader_of_a_pool_does_not_touch_another():
    with RayPool(2) as pool:
        good = DataLoader(Slow(40, 0.005), 2, num_workers=2, engine=pool, output="numpy")
        bad = DataLoader(headrace.testing.FlakyDataset(range(10), bad=[3]), 2, num_workers=2, engine=pool)
        iterator = iter(good)
        found = [int(next(iterator)["index"][0])]
        with pytest.raises(ValueError, match="sample 3 is bad"):
            list(bad)
        found += [int(batch["index"][0]) for batch in iterator]
        assert found == list(range(0, 40, 2))


def test_the_number_of_workers_follows_the_loop():
    """One actor cannot keep up with a loop that does nothing; and two are too many for one that is slow."""
    loader = DataLoader(
        Slow(700, 0.02), 2, seed=1, engine=RayEngine(min_workers=1, max_workers=3), prefetch_factor=2, output="numpy"
    )
    assert loader.num_workers == 3
    iterator, found, most, then = iter(loader), [], 0, 0
    for batch in iterator:
        found += batch["index"].tolist()
        running = len(engine_of(iterator)._dispatcher._hosts())
        most = max(most, running)
        if most > 1 and len(found) > 400:
            time.sleep(0.3)
            then = running
        if most > 1 and 0 < then < most:
            break
    assert most > 1
    assert 0 < then < most
    assert found == list(range(len(found)))
    loader.close()


def test_a_seat_moves_only_when_none_of_its_batches_waits_for_room():
    """Two batches fill what may be on its way, so others wait in the actor that the seat is to leave."""
    loader = DataLoader(Wide(24, 30 * 2**20), 1, num_workers=2, engine="ray", seed=1, prefetch_factor=6, output="numpy")
    iterator, moved = iter(loader), []
    dispatcher = engine_of(iterator)._dispatcher

    def move_a_seat():
        if dispatcher._held:
            moved.append(dispatcher._held[0][3])
            dispatcher._move(moved[-1:])
        else:
            dispatcher.inbox.put(move_a_seat)

    dispatcher.inbox.put(move_a_seat)
    assert [int(batch[0, 0]) for batch in iterator] == list(range(24))
    assert moved


def test_auto_has_as_many_seats_as_the_cluster_has_room_for():
    loader = DataLoader(Slow(30, 0), 2, num_workers="auto", engine="ray", output="numpy")
    assert loader.num_workers == 9
    assert [int(i) for batch in loader for i in batch["index"]] == list(range(30))

"""Actors that are killed, nodes that are lost: every batch comes once, or one error tells what happened."""

from __future__ import annotations

import time

import pytest

import headrace
from headrace import DataLoader, RayEngine, WorkerDiedError, WorkerStartError, WorkerTimeoutError
from tests.ray.conftest import NODE
from tests.ray.data import Deadly, Part, Slow, Stuck, engine_of, kill_workers, plain

pytestmark = pytest.mark.filterwarnings("ignore:.*Another one takes its place")
KINDS = {
    "by key": lambda **options: DataLoader(Slow(), 4, shuffle=True, seed=3, output="numpy", **options),
    "torch's order": lambda **options: DataLoader(Slow(), 4, output="numpy", **options),
    "iterable": lambda **options: DataLoader(Part(200), 4, output="numpy", **options),
    "stream": lambda **options: DataLoader(
        headrace.Stream.from_iterable(range(500), block_rows=10).shuffle(blocks=50).map(slow_square),
        4,
        seed=2,
        **options,
    ),
}


def slow_square(number):
    time.sleep(0.002)
    return number * number


def batches(kind, **options):
    import numpy as np

    np.random.seed(5)
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)
    return KINDS[kind](num_workers=2, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_processes_though_actors_are_killed(kind):
    expected = [plain(batch) for batch in batches(kind)]
    loader = batches(kind, engine="ray", on_worker_death="restart")
    found, killed = [], 0
    iterator = iter(loader)
    for batch in iterator:
        found.append(plain(batch))
        if len(found) in (3, 12):
            killed += kill_workers(iterator, 1 + killed)
    assert killed >= 2
    assert found == expected


def test_batches_are_the_same_though_a_node_is_lost_and_another_one_comes(cluster):
    expected = [plain(batch) for batch in batches("by key")]
    loader = DataLoader(
        Slow(seconds=0.02),
        4,
        shuffle=True,
        seed=3,
        output="numpy",
        num_workers=4,
        engine="ray",
        on_worker_death="restart",
        persistent_workers=True,
    )
    with loader:
        for _ in range(2):
            iterator, found = iter(loader), []
            for batch in iterator:
                found.append(plain(batch))
                if len(found) == 5:
                    lost = next(iter(cluster.worker_nodes))
                    cluster.remove_node(lost, allow_graceful=False)
                    cluster.add_node(wait=False, **NODE)
            assert [batch["index"] for batch in found] == [batch["index"] for batch in expected]
            assert len(found) == len(expected)
            loader._epochs.set_next(0)
        assert {member.slot for member in engine_of(iterator)._dispatcher._members.values()} == {0, 1, 2, 3}
    cluster.wait_for_nodes()


def test_a_lost_worker_is_an_error_that_names_node_actor_cause_and_sample():
    loader = DataLoader(Deadly(12, {5}), 4, num_workers=1, engine="ray")
    with pytest.raises(WorkerDiedError) as raised:
        list(loader)
    text = str(raised.value)
    assert text.startswith("DataLoader worker 0 (pid(s) ")
    assert " on node " in text
    assert "Ray actor " in text
    assert "exited unexpectedly at batch 1, sample 5: its process was killed, crashed, or left" in text


def test_a_sample_that_kills_again_and_again_is_left_out(tmp_path):
    loader = DataLoader(
        Deadly(12, {5}), 4, num_workers=2, engine="ray", on_worker_death="restart", on_error="skip", collate_fn=list
    )
    with pytest.warns(UserWarning, match=r"worker to die at batch 1, sample 5|left out"):
        assert list(loader) == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11]]
    assert [bad.key for bad in loader.errors] == [5]


def test_a_sample_that_kills_once_is_not(tmp_path):
    dataset = Deadly(12, {5}, tmp_path, times=1)
    loader = DataLoader(dataset, 4, num_workers=2, engine="ray", on_worker_death="restart", collate_fn=list)
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_timeout_tells_where_the_worker_is_stuck():
    loader = DataLoader(Stuck(), 1, num_workers=1, engine="ray", timeout=3)
    with pytest.raises(WorkerTimeoutError, match=r"is at batch 2, sample 2:\n(.|\n)*__getitem__"):
        list(loader)


@pytest.mark.parametrize(
    ("engine", "asked"),
    [
        (RayEngine(num_cpus=64, start_timeout=2), "64 CPU"),
        (RayEngine(memory=2**42, start_timeout=2), "4,096.0 GiB of memory"),
        (RayEngine(resources={"disk": 1}, start_timeout=2), "1 disk"),
        (RayEngine(node_labels={"zone": "a"}, start_timeout=2), "the labels zone=a"),
    ],
)
def test_a_request_that_cannot_be_placed_says_so_within_seconds(engine, asked):
    begun = time.monotonic()
    loader = DataLoader(range(4), num_workers=2, engine=engine)
    with pytest.raises(WorkerStartError) as raised:
        list(loader)
    assert time.monotonic() - begun < 15
    assert asked in str(raised.value)
    assert "3 CPU of 3 CPU free" in str(raised.value)


def test_more_workers_than_there_is_room_for_share_what_there_is():
    loader = DataLoader(range(60), 4, num_workers=12, engine="ray", collate_fn=list)
    assert [number for batch in loader for number in batch] == list(range(60))

"""The helpers for tests do what they say."""

from __future__ import annotations

import time

import pytest

from headrace import DataLoader, WorkerDiedError, WorkerTimeoutError
from headrace.testing import DyingDataset, FlakyDataset, HandDrivenEngine, SlowDataset
from tests.needs import as_lists


def second(tasks):
    return tasks[min(1, len(tasks) - 1)]


@pytest.mark.parametrize(
    ("choose", "completed"), [(min, [0, 1, 2, 3, 4]), (max, [2, 1, 0, 4, 3]), (second, [1, 2, 0, 4, 3])]
)
def test_the_hand_decides_the_order_of_completion(choose, completed):
    engine = HandDrivenEngine(choose, capacity=3)
    assert as_lists(DataLoader(range(5), engine=engine)) == [[0], [1], [2], [3], [4]]
    assert engine.completed == completed
    assert engine.most_in_flight == 3


def test_without_in_order_batches_come_as_they_complete():
    engine = HandDrivenEngine(max, capacity=3)
    assert as_lists(DataLoader(range(5), engine=engine, in_order=False)) == [[2], [3], [4], [1], [0]]


def test_an_engine_serves_epoch_after_epoch():
    loader = DataLoader(range(3), engine=HandDrivenEngine(min, capacity=2))
    next(iter(loader))
    assert as_lists(loader) == as_lists(loader) == [[0], [1], [2]]


def test_choosing_a_task_that_is_not_in_flight_is_an_error():
    with pytest.raises(KeyError):
        list(DataLoader(range(3), engine=HandDrivenEngine(lambda tasks: 99)))


def test_slow_datasets_wait():
    start = time.perf_counter()
    dataset = SlowDataset("ab", 0.01)
    assert (dataset[0], len(dataset)) == ("a", 2)
    assert time.perf_counter() - start >= 0.01
    assert SlowDataset("ab", lambda index: index * 0.001)[1] == "b"


def test_flaky_datasets_fail_where_told():
    dataset = FlakyDataset("abc", bad=[1])
    assert (dataset[0], dataset[2], len(dataset)) == ("a", "c", 3)
    with pytest.raises(ValueError, match="sample 1 is bad"):
        dataset[1]
    with pytest.raises(OSError, match="disk 1"):
        FlakyDataset("abc", bad=[1], error=lambda index: OSError(f"disk {index}"))[1]


@pytest.mark.parametrize(
    ("how", "told"), [("kill", "signal SIGKILL"), ("segv", "signal SIGSEGV"), ("exit", "exit code 3")]
)
def test_dying_datasets_end_their_worker(how, told):
    iterator = iter(DataLoader(DyingDataset("abc", {1: how}), num_workers=1))
    assert next(iterator) == ["a"]
    with pytest.raises(WorkerDiedError, match=told):
        next(iterator)


def test_dying_datasets_keep_their_worker(monkeypatch):
    monkeypatch.setattr("headrace.base.endings._GRACE_S", 0.1)
    iterator = iter(DataLoader(DyingDataset("abc", {1: "stuck"}), num_workers=1, timeout=0.5))
    assert next(iterator) == ["a"]
    with pytest.raises(WorkerTimeoutError):
        next(iterator)


@pytest.mark.filterwarnings("ignore:DataLoader worker .* exited unexpectedly")
def test_dying_datasets_may_die_once(tmp_path):
    dataset = DyingDataset("abc", {1: "kill", 2: "exit"}, once_in=tmp_path)
    loader = DataLoader(dataset, num_workers=1, on_worker_death="restart")
    assert list(loader) == [["a"], ["b"], ["c"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["died-at-1", "died-at-2"]


def test_dying_datasets_spare_the_main_process():
    dataset = DyingDataset("abc", {1: "kill"})
    assert (dataset[0], dataset[2], len(dataset)) == ("a", "c", 3)
    with pytest.raises(RuntimeError, match="load it with worker processes"):
        dataset[1]

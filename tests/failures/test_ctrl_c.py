"""Ctrl-C in the middle of an epoch: the program ends soon, with one traceback, its own."""

from __future__ import annotations

import time

import pytest

from tests.failures.scripts import needs_proc, script

pytestmark = needs_proc

SOURCES = {
    "quick": "dataset = range(10_000_000)",
    "slow": "dataset = SlowDataset(range(1000), 0.05)",
    "stuck": "dataset = DyingDataset(range(1000), {index: 'stuck' for index in range(3, 1000)})",
    "stuck in sleep": "dataset = SlowDataset(range(1000), lambda index: 60 if index > 3 else 0)",
}


def interrupted(tmp_path, source, wait=0.4):
    with script(tmp_path, source) as running:
        assert running.read_line() == "running"
        time.sleep(wait)
        running.interrupt()
        return running.wait(15)


@pytest.mark.parametrize("state", SOURCES)
def test_the_program_ends_at_once_with_one_traceback(tmp_path, state):
    source = f"""
    {SOURCES[state]}
    iterator = iter(DataLoader(dataset, num_workers=2, output="numpy"))
    next(iterator)
    print("running", flush=True)
    for batch in iterator:
        pass
    """
    ended = interrupted(tmp_path, source)
    assert ended.seconds < 3
    assert ended.code != 0
    assert ended.stderr.count("Traceback") == 1, ended.stderr
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")


def test_persistent_workers(tmp_path):
    source = """
    loader = DataLoader(SlowDataset(range(1000), 0.01), num_workers=2, output="numpy", persistent_workers=True)
    for batch in loader:
        break
    print("running", flush=True)
    for batch in loader:
        pass
    """
    ended = interrupted(tmp_path, source)
    assert ended.seconds < 3
    assert ended.stderr.count("Traceback") == 1, ended.stderr


def test_threads(tmp_path):
    source = """
    loader = DataLoader(SlowDataset(range(1000), 0.01), num_workers=2, output="numpy", engine="threads")
    print("running", flush=True)
    for batch in loader:
        pass
    """
    ended = interrupted(tmp_path, source)
    assert ended.seconds < 3
    assert ended.stderr.count("Traceback") == 1, ended.stderr
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_stuck_thread_does_not_hold_up_the_end(tmp_path):
    source = """
    loader = DataLoader(SlowDataset(range(1000), 60), num_workers=2, output="numpy", engine="threads")
    iterator = iter(loader)
    print("running", flush=True)
    next(iterator)
    """
    ended = interrupted(tmp_path, source)
    assert ended.seconds < 4
    assert ended.stderr.count("Traceback") == 1, ended.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(tmp_path, method):
    source = f"""
    dataset = DyingDataset(range(1000), {{index: "stuck" for index in range(3, 1000)}})
    iterator = iter(DataLoader(dataset, num_workers=2, output="numpy", multiprocessing_context="{method}"))
    next(iterator)
    print("running", flush=True)
    for batch in iterator:
        pass
    """
    ended = interrupted(tmp_path, source)
    assert ended.seconds < 3
    assert ended.stderr.count("Traceback") == 1, ended.stderr


def test_a_program_that_catches_it_can_go_on_with_the_same_iterator(tmp_path):
    source = """
    iterator = iter(DataLoader(SlowDataset(range(12), 0.1), num_workers=2, output="numpy"))
    seen = [next(iterator).tolist()]
    print("running", flush=True)
    while True:
        try:
            for batch in iterator:
                seen.append(batch.tolist())
            break
        except KeyboardInterrupt:
            print("caught", flush=True)
    print(seen == [[i] for i in range(12)])
    """
    ended = interrupted(tmp_path, source, wait=0.25)  # batches come at every tenth of a second; not just then
    assert ended.stdout == "caught\nTrue\n", ended
    assert (ended.code, ended.stderr) == (0, "")


def test_a_program_that_catches_it_and_leaves_does_not_wait_long_for_stuck_workers(tmp_path):
    source = """
    def main():
        try:
            dataset = SlowDataset(range(1000), lambda index: 60 if index else 0)
            for batch in DataLoader(dataset, num_workers=2, output="numpy"):
                print("running", flush=True)
        except KeyboardInterrupt:
            print("bye")

    main()
    """
    ended = interrupted(tmp_path, source)
    assert ended.stdout == "bye\n"
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.seconds < 7


def test_pressed_twice(tmp_path):
    source = """
    dataset = DyingDataset(range(1000), {index: "stuck" for index in range(3, 1000)})
    iterator = iter(DataLoader(dataset, num_workers=2, output="numpy"))
    next(iterator)
    print("running", flush=True)
    for batch in iterator:
        pass
    """
    with script(tmp_path, source) as running:
        assert running.read_line() == "running"
        time.sleep(0.3)
        running.interrupt()
        time.sleep(0.1)
        running.interrupt()
        ended = running.wait(15)
    assert ended.code != 0
    assert ended.seconds < 4
    assert "process_worker.py" not in ended.stderr

"""The process of the loop is killed, without a chance to say so: its workers leave by themselves."""

from __future__ import annotations

import time

import pytest

from tests.failures.scripts import children, members, needs_proc, script, wait_until_gone

pytestmark = needs_proc

SOURCES = {
    "idle": "dataset = range(100_000)",
    "busy": "dataset = SlowDataset(range(100_000), 0.001)",
    "sending": "dataset = np.zeros((1000, 2**20), np.uint8)",
    "stuck in sleep": "dataset = SlowDataset(range(100), lambda index: 60 if index > 3 else 0)",
    "stuck in a lock": "dataset = DyingDataset(range(100), {index: 'stuck' for index in range(4, 100)})",
    "stuck in a loop": """
    class Looping(Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            while index > 3:
                pass
            return index

    dataset = Looping()""",
    "stuck in compiled code": """
    import ctypes

    class Sleeping(Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return ctypes.PyDLL(None).sleep(60) if index > 3 else index  # which does not let go of the GIL

    dataset = Sleeping()""",
    "stuck as they start": "dataset, init = range(100), lambda number: time.sleep(60)",
}


def check(tmp_path, source, method="fork"):
    whole = f"""
    init = None
    {source}
    options = {{"num_workers": 2, "output": "numpy", "multiprocessing_context": "{method}", "worker_init_fn": init}}
    iterator = iter(DataLoader(dataset, **options))
    iterator.begin_now() if init else next(iterator)
    print("running", flush=True)
    time.sleep(60)
    """
    with script(tmp_path, whole) as running:
        assert running.read_line() == "running"
        time.sleep(0.3)
        assert len(members(running.group)) >= 3
        running.kill()
        left = wait_until_gone(running.group, 4)
        assert not left


@pytest.mark.parametrize("state", SOURCES)
def test_workers_leave(tmp_path, state):
    check(tmp_path, SOURCES[state])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_other_start_methods_leave(tmp_path, method):
    check(tmp_path, SOURCES["stuck in a lock"], method)


def test_workers_leave_when_two_loaders_run(tmp_path):
    """A worker of the second loader inherits what the first one has open, and must not keep it alive."""
    source = """
    first = iter(DataLoader(range(1000), num_workers=2, output="numpy"))
    second = iter(DataLoader(range(1000), num_workers=2, output="numpy"))
    next(first), next(second)
    print("running", flush=True)
    time.sleep(60)
    """
    with script(tmp_path, source) as running:
        assert running.read_line() == "running"
        workers = children(running.group)
        assert len(workers) == 4
        running.kill()
        assert not wait_until_gone(running.group, 4)


def test_workers_leave_when_the_loop_has_forked_a_child(tmp_path):
    """A child of the user's inherits the loader's side of all channels, and must not keep the workers alive."""
    source = """
    iterator = iter(DataLoader(range(1000), num_workers=2, output="numpy"))
    next(iterator)
    if os.fork() == 0:
        os.setpgid(0, 0)
        time.sleep(8)
        os._exit(0)
    print("running", flush=True)
    time.sleep(60)
    """
    with script(tmp_path, source) as running:
        assert running.read_line() == "running"
        time.sleep(0.2)
        running.kill()
        assert not wait_until_gone(running.group, 4)

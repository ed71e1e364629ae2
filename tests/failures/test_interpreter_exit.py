"""The program ends in the middle of an epoch: quietly, with its own exit code, and with nothing left."""

from __future__ import annotations

import pytest

from tests.failures.scripts import needs_proc, run_script

pytestmark = needs_proc

OPTIONS = {
    "processes": "num_workers=2",
    "persistent": "num_workers=2, persistent_workers=True",
    "threads": "num_workers=2, engine='threads'",
    "spawn": "num_workers=2, multiprocessing_context='spawn'",
    "forkserver": "num_workers=2, multiprocessing_context='forkserver'",
    "restart": "num_workers=2, on_worker_death='restart'",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_in_the_middle_of_an_epoch(tmp_path, options):
    source = f"""
    loader = DataLoader(SlowDataset(range(1000), 0.002), batch_size=10, output="numpy", {OPTIONS[options]})
    iterator = iter(loader)
    print(next(iterator).tolist()[:2])
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "[0, 1]\n", "")


def test_before_the_first_batch(tmp_path):
    ended = run_script(tmp_path, "iterator = iter(DataLoader(range(10), num_workers=2, output='numpy'))")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")


def test_with_an_iterator_in_a_module_and_in_a_cycle(tmp_path):
    source = """
    class Trainer:
        def __init__(self):
            self.me = self
            self.batches = iter(DataLoader(range(1000), num_workers=2, output="numpy"))

    trainer = Trainer()
    next(trainer.batches)
    sys.modules["headrace"].kept = trainer
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stderr) == (0, "")


@pytest.mark.parametrize("options", ["num_workers=2", "num_workers=2, engine='threads'"])
def test_by_sys_exit_in_the_loop(tmp_path, options):
    source = f"""
    for batch in DataLoader(range(1000), output="numpy", {options}):
        sys.exit(3)
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stderr) == (3, "")


def test_by_an_error_in_the_loop(tmp_path):
    source = """
    for batch in DataLoader(range(1000), num_workers=2, output="numpy"):
        raise ArithmeticError("the loss is not a number")
    """
    ended = run_script(tmp_path, source)
    assert ended.code == 1
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.rstrip().endswith("the loss is not a number")


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_without_any_goodbye(tmp_path, how):
    source = f"""
    for batch in DataLoader(range(1000), num_workers=2, output="numpy"):
        {how}
    """
    ended = run_script(tmp_path, source)
    assert ended.stderr == ""


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_in_a_thread_that_loads(tmp_path, engine):
    """The main thread leaves while a daemon thread waits for batches."""
    source = f"""
    def load():
        for batch in DataLoader(SlowDataset(range(1000), 0.01), num_workers=2, output="numpy", engine="{engine}"):
            pass

    threading.Thread(target=load, daemon=True).start()
    time.sleep(0.5)
    print("done")
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("options", ["", ", persistent_workers=True", ", on_worker_death='restart'"])
def test_in_a_thread_that_sends_tasks(tmp_path, options):
    """Two threads must not send to a worker at once, of which one says that it is the end."""
    source = f"""
    import socket

    class SlowSocket(socket.socket):
        def sendmsg(self, buffers):
            sent = super().sendmsg(buffers)
            time.sleep(0.02)
            return sent

    socketpair = socket.socketpair

    def slow_pair():
        ours, theirs = socketpair()
        return SlowSocket(fileno=ours.detach()), theirs

    socket.socketpair = slow_pair

    def load():
        loader = DataLoader(range(40), num_workers=2, output="numpy"{options})
        while True:
            for batch in loader:
                pass

    threading.Thread(target=load, daemon=True).start()
    time.sleep(0.5)
    print("done")
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_in_a_child_of_multiprocessing(tmp_path):
    source = """
    import multiprocessing

    def train():
        iterator = iter(DataLoader(range(1000), num_workers=2, output="numpy"))
        print(next(iterator).tolist(), flush=True)

    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    print(child.exitcode)
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "[0]\n0\n", "")

"""The user's own code forks the process of the loop while a loader is running."""

from __future__ import annotations

import pytest

from tests.failures.scripts import needs_proc, run_script

pytestmark = needs_proc

SOURCE = """
import warnings

loader = DataLoader(SlowDataset(range(30), 0.02), num_workers=2, output="numpy", {options})
iterator = iter(loader)
seen = [next(iterator).tolist()]
sys.stdout.flush()
warnings.simplefilter("ignore")  # Python 3.12 and later warn of every fork in a process with threads
pid = os.fork()
if pid == 0:
    {child}
_, status = os.waitpid(pid, 0)
seen += [batch.tolist() for batch in iterator]
print(os.waitstatus_to_exitcode(status), seen == [[i] for i in range(30)])
"""


@pytest.mark.parametrize("options", ["", "persistent_workers=True", "on_worker_death='restart'"])
@pytest.mark.parametrize(
    "child",
    [
        "os._exit(0)",
        "del iterator, loader; os._exit(0)",
        "sys.exit(0)",  # with all that is done at the end of a process
    ],
    ids=["leaves at once", "drops the iterator", "ends as a program does"],
)
def test_the_loop_goes_on(tmp_path, child, options):
    ended = run_script(tmp_path, SOURCE.format(child=child, options=options))
    assert ended.stdout == "0 True\n", ended.stderr
    assert ended.code == 0
    assert ended.stderr == ""


def test_the_child_may_load_by_itself(tmp_path):
    child = """
    own = [batch.tolist() for batch in DataLoader(range(4), num_workers=1, output="numpy")]
    os._exit(0 if own == [[0], [1], [2], [3]] else 1)
    """
    ended = run_script(tmp_path, SOURCE.format(child=child.strip(), options=""))
    assert ended.stdout == "0 True\n", ended.stderr


def test_the_child_cannot_take_batches_from_its_parent(tmp_path):
    child = """
    try:
        for _ in range(40):
            next(iterator)
    except (RuntimeError, StopIteration):
        os._exit(7)
    os._exit(1)
    """
    ended = run_script(tmp_path, SOURCE.format(child=child.strip(), options="timeout=5"))
    assert ended.stdout == "7 True\n", ended.stderr


def test_a_process_of_multiprocessing(tmp_path):
    source = """
    import multiprocessing

    loader = DataLoader(SlowDataset(range(30), 0.02), num_workers=2, output="numpy")
    iterator = iter(loader)
    seen = [next(iterator).tolist()]
    child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
    child.start()
    child.join()
    seen += [batch.tolist() for batch in iterator]
    print(child.exitcode, seen == [[i] for i in range(30)])
    """
    ended = run_script(tmp_path, source)
    assert (ended.stdout, ended.stderr) == ("child\n0 True\n", "")


def test_threads_of_the_parent_do_not_live_on_and_nobody_waits_for_them(tmp_path):
    source = SOURCE.format(child="sys.exit(0)", options="engine='threads'")
    ended = run_script(tmp_path, source)
    assert (ended.stdout, ended.stderr) == ("0 True\n", "")
    assert ended.seconds < 8

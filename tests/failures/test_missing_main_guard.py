"""A script without `if __name__ == "__main__"`, under start methods that may import it again."""

from __future__ import annotations

import pytest

from tests.failures.scripts import needs_proc, run_script

pytestmark = needs_proc

WORKS = """
from headrace import DataLoader, Dataset

print("imported", flush=True)

class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return square(index)

def square(number):
    return number * number

print([batch.tolist() for batch in DataLoader(Squares(), num_workers=2, output="numpy", {options})], flush=True)
"""

NEEDS_IMPORT = """
import threading

from headrace import DataLoader, Dataset

print("imported", flush=True)
lock = threading.Lock()  # which the class uses, and which cannot be sent

class Locked(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        with lock:
            return index

{guard}
    print([batch.tolist() for batch in DataLoader(Locked(), num_workers=2, output="numpy", {options})], flush=True)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_is_not_needed(tmp_path, method):
    ended = run_script(tmp_path, WORKS.format(options=f"multiprocessing_context={method!r}"), bare=True)
    assert ended.stdout == "imported\n[[0], [1], [4], [9]]\n", ended.stderr
    assert (ended.code, ended.stderr) == (0, "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_is_not_needed_with_restarts(tmp_path, method):
    options = f"multiprocessing_context={method!r}, on_worker_death='restart'"
    source = WORKS.format(options=options).replace(
        "return square(index)",
        "return square(index) if index != 2 or os.path.exists('died') else (open('died', 'w'), os._exit(1))",
    )
    ended = run_script(tmp_path, "import os\n" + source, bare=True)
    assert ended.stdout == "imported\n[[0], [1], [4], [9]]\n", ended.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_where_the_script_must_be_imported_a_guard_makes_it_work(tmp_path, method):
    source = NEEDS_IMPORT.format(guard='if __name__ == "__main__":', options=f"multiprocessing_context={method!r}")
    ended = run_script(tmp_path, source, bare=True)
    assert ended.stdout.endswith("[[0], [1], [2], [3]]\n"), ended.stderr
    assert ended.code == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_where_the_script_must_be_imported_a_missing_guard_is_one_clear_error(tmp_path, method):
    source = NEEDS_IMPORT.format(guard="if True:", options=f"multiprocessing_context={method!r}")
    ended = run_script(tmp_path, source, bare=True, limit=20)
    assert ended.code != 0
    assert 'if __name__ == "__main__"' in ended.stderr
    assert ended.stdout.count("imported") <= 3  # the script and its two workers: no storm of processes
    assert "[[0]" not in ended.stdout
    assert "WorkerDiedError" in ended.stderr
    assert ended.stderr.count("Traceback") == 1
    assert "the global 'lock' that Locked.__getitem__ uses cannot be pickled" in ended.stderr
    assert ended.stderr.index("cannot be pickled") < ended.stderr.index('if __name__ == "__main__"')


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_at_all_is_told_before_anything_starts(tmp_path, method):
    source = """
    class Locked(Dataset):
        def __init__(self):
            self._lock = threading.Lock()

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    try:
        list(DataLoader(Locked(), num_workers=2, multiprocessing_context="METHOD", output="numpy"))
    except RuntimeError as error:
        print(type(error).__name__, "picklable" in str(error), "dataset._lock" in str(error))
    """
    ended = run_script(tmp_path, source.replace("METHOD", method))
    assert ended.stdout == "WorkerStartError True True\n", ended.stderr
    assert ended.code == 0

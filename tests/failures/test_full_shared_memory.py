"""Shared memory that is small or full: batches come another way, with the same contents."""

from __future__ import annotations

import os
import shutil
import subprocess

import numpy as np
import pytest

from headrace import DataLoader
from headrace.transport import shared_memory
from tests.failures.outcomes import Each
from tests.failures.scripts import needs_proc, run_script

SIZE = 2**20


def make(index):
    return np.full(SIZE, index, np.uint8)


def check(loader):
    """Every batch is right, also those that are kept."""
    kept = list(loader)
    assert [np.asarray(batch)[:, ::4096].tolist() for batch in kept] == [
        [[i] * (SIZE // 4096), [i + 1] * (SIZE // 4096)] for i in range(0, 16, 2)
    ]


@pytest.fixture
def no_memfd(monkeypatch):
    """As on systems that are not Linux."""

    def missing(*args):
        raise AttributeError("memfd_create")

    monkeypatch.setattr(os, "memfd_create", missing, raising=False)


def report_free(monkeypatch, n_bytes):
    """Let every folder seem to have so many bytes free."""
    monkeypatch.setattr(shared_memory, "_free_bytes", lambda folder: n_bytes)


def test_enough_room_in_a_file_warns_of_nothing(no_memfd, monkeypatch):
    report_free(monkeypatch, 2**50)
    check(DataLoader(Each(make, 16), batch_size=2, num_workers=2))


def test_little_room_is_told_with_numbers(no_memfd, monkeypatch):
    report_free(monkeypatch, 16 * 2**20)
    loader = DataLoader(Each(make, 16), batch_size=2, num_workers=2)
    with pytest.warns(UserWarning, match="has 16 MB free") as warned:
        check(loader)
    text = str(warned[0].message)
    assert "4 MB" in text  # for each worker
    assert "--shm-size" in text


def test_a_file_system_that_gives_nothing(no_memfd, monkeypatch):
    """Reserving room fails in the workers, and no batch is lost."""

    def full(*args):
        raise OSError(28, "No space left on device")

    report_free(monkeypatch, 2**50)
    monkeypatch.setattr(os, "posix_fallocate", full)
    check(DataLoader(Each(make, 16), batch_size=2, num_workers=2))


def test_a_memfd_that_is_not_allowed(monkeypatch):
    def refused(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    report_free(monkeypatch, 2**50)
    check(DataLoader(Each(make, 16), batch_size=2, num_workers=2))


def test_an_arena_that_is_full_of_kept_batches(monkeypatch):
    """The user keeps more than the arena holds."""
    monkeypatch.setattr(shared_memory, "preferred_size", lambda n_workers: 2**23)
    check(DataLoader(Each(make, 16), batch_size=2, num_workers=2))


def test_batches_larger_than_the_arena(monkeypatch):
    monkeypatch.setattr(shared_memory, "preferred_size", lambda n_workers: 2**20)
    check(DataLoader(Each(make, 16), batch_size=2, num_workers=2))


def can_mount():
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


SOURCE = """
import warnings

{setup}

class Images(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return np.full(2**20, index, np.uint8)

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    kept = list(DataLoader(Images(), batch_size=2, num_workers=2, output="numpy"))
for warning in warned:
    print(warning.message)
print([batch[:, 0].tolist() for batch in kept] == [[i, i + 1] for i in range(0, 16, 2)])
print(all((batch == batch[:, :1]).all() for batch in kept))
"""


@needs_proc
@pytest.mark.parametrize("size", ["64k", "8m"])
@pytest.mark.parametrize("memfd", [True, False])
def test_a_real_small_file_system(tmp_path, size, memfd):
    if not can_mount():
        pytest.skip("needs the right to mount a file system")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    mounts = f'for f in /dev/shm {temporary}; do mount -t tmpfs -o size={size} tmpfs "$f"; done; exec "$@"'
    prefix = ["env", f"TMPDIR={temporary}", "unshare", "-m", "sh", "-c", mounts, "sh"]
    ended = run_script(tmp_path, SOURCE.format(setup="" if memfd else "del os.memfd_create"), prefix=prefix)
    assert ended.code == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[-2:] == ["True", "True"]
    if memfd:
        assert len(lines) == 2  # nothing to warn of
    else:
        assert "MB free" in lines[0]

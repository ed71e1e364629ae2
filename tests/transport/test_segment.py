"""Shared memory without a name, and what is done where there is little of it."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from headrace import DataLoader
from headrace.transport import segment
from headrace.transport.segment import create_segment, is_backed_by_file, map_segment, preferred_size


def test_the_memory_has_no_name_and_takes_no_space_until_it_is_written_to():
    before = set(os.listdir("/dev/shm"))
    fd, size = create_segment(4)
    try:
        assert size == preferred_size(4)
        assert not is_backed_by_file(fd)
        assert os.fstat(fd).st_blocks == 0
        memory = map_segment(fd, size)
        memory[size - 1] = 1
        assert 0 < os.fstat(fd).st_blocks * 512 <= 2 * mmap.PAGESIZE
        assert set(os.listdir("/dev/shm")) <= before
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_all_workers_together_get_half_of_the_memory():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for workers in (1, 2, 7, 64):
        size = preferred_size(workers)
        assert size % mmap.PAGESIZE == 0
        assert size >= 2**26
        assert size * workers <= max(total // 2, 2**26 * workers)
    assert preferred_size(10**6) == 2**26


def test_where_the_memory_is_not_told_a_guess_is_made(monkeypatch):
    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert preferred_size(1) == 2**32


@pytest.fixture
def no_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)


def test_without_memfd_it_is_a_file_without_a_name(no_memfd, monkeypatch, tmp_path):
    monkeypatch.setattr(segment, "_SHM", tmp_path)
    monkeypatch.setattr(segment, "_free_bytes", lambda folder: 2**40)
    fd, size = create_segment(2)
    try:
        assert size == preferred_size(2)
        assert is_backed_by_file(fd)
        assert list(tmp_path.iterdir()) == []
        memory = map_segment(fd, size)
        memory[100] = 9
        assert os.pread(fd, 1, 100) == b"\t"
    finally:
        os.close(fd)


def test_a_system_that_refuses_memfd_gets_a_file(monkeypatch, tmp_path):
    def refuse(name, flags):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(segment, "_SHM", tmp_path)
    monkeypatch.setattr(segment, "_free_bytes", lambda folder: 2**40)
    fd, _ = create_segment(1)
    assert is_backed_by_file(fd)
    os.close(fd)


def test_no_descriptor_left_is_told_and_not_worked_around(monkeypatch):
    def refuse(name, flags):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        create_segment(1)


def test_little_space_is_told_with_numbers_and_respected(no_memfd, monkeypatch, tmp_path):
    monkeypatch.setattr(segment, "_SHM", tmp_path)
    monkeypatch.setattr(segment, "_free_bytes", lambda folder: 64 * 2**20 if folder == tmp_path else 10 * 2**20)
    with pytest.warns(UserWarning, match=r"has 64 MB free.*has 10 MB free") as caught:
        fd, size = create_segment(4)
    os.close(fd)
    text = str(caught[0].message)
    assert size == 8 * 2**20
    assert f"Each of 4 workers uses at most 8 MB of {tmp_path}" in text
    assert "--shm-size" in text


def test_a_folder_with_room_is_preferred_to_one_without(no_memfd, monkeypatch, tmp_path):
    shm, other = tmp_path / "shm", tmp_path / "tmp"
    shm.mkdir()
    other.mkdir()
    monkeypatch.setattr(segment, "_SHM", shm)
    monkeypatch.setattr("tempfile.tempdir", str(other))
    monkeypatch.setattr(segment, "_free_bytes", lambda folder: 2**20 if folder == shm else 2**40)
    fd, size = create_segment(1)
    assert size == preferred_size(1)
    assert Path(os.readlink(f"/proc/self/fd/{fd}")).parent == other
    os.close(fd)


def test_a_loader_works_without_memfd_and_with_far_too_little_space(no_memfd, monkeypatch, tmp_path):
    """Batches of 4 MB, and room for 1 MB: they go through the socket."""
    monkeypatch.setattr(segment, "_SHM", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(segment, "_free_bytes", lambda folder: 4 * 2**20)
    data = [np.full(2**19, i, np.float64) for i in range(6)]
    loader = DataLoader(data, batch_size=1, num_workers=2, output="numpy", multiprocessing_context="fork")
    with pytest.warns(UserWarning, match="little shared memory"):
        batches = list(loader)
    assert [set(batch.ravel().tolist()) for batch in batches] == [{i} for i in range(6)]
    assert list(tmp_path.iterdir()) == []

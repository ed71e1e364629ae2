"""Workers end: asked, then told, then killed, and always within bounded time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from headrace.base import endings
from headrace.base.messages import Task
from tests.engines.jobs import job, processes, wait_for


class Stubborn:
    """Hangs in its sample, and does not listen to SIGTERM."""

    def __init__(self, folder, *, ignores_sigterm=True):
        self.folder = folder
        self.ignores_sigterm = ignores_sigterm

    def __getitem__(self, index):
        if self.ignores_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (self.folder / f"pid-{os.getpid()}").touch()
        while True:
            time.sleep(60)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(endings, "_GRACE_S", 0.3)
    monkeypatch.setattr(endings, "_TERMINATE_S", 0.3)


def pids(folder):
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


@pytest.mark.parametrize("ignores_sigterm", [True, False])
def test_a_worker_that_hangs_is_ended_in_bounded_time(quick, tmp_path, ignores_sigterm):
    engine = processes("fork")
    engine.start(job(Stubborn(tmp_path, ignores_sigterm=ignores_sigterm)))
    for number in range(2):
        engine.submit(Task(number, [0], number))
    while len(pids(tmp_path)) < 2:
        time.sleep(0.01)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(tmp_path))


def test_the_bounds_are_what_they_should_be():
    assert 1 <= endings._GRACE_S <= 10
    assert endings._TERMINATE_S <= 5
    assert endings._GRACE_URGENT_S + endings._TERMINATE_URGENT_S <= 0.5


def interrupt_soon(seconds):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    return before


def test_a_user_who_presses_ctrl_c_does_not_wait(monkeypatch, tmp_path):
    """Neither where the end is waited for, nor afterwards."""
    monkeypatch.setattr(endings, "_GRACE_S", 100.0)
    engine = processes("fork", workers=1)
    engine.start(job(Stubborn(tmp_path)))
    engine.submit(Task(0, [0], 0))
    while not pids(tmp_path):
        time.sleep(0.01)
    started = time.monotonic()
    before = interrupt_soon(0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    engine.close()
    assert time.monotonic() - started < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(tmp_path))


def test_workers_that_do_as_asked_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(endings, "_GRACE_S", 100.0)
    engine = processes("fork")
    engine.start(job(range(100)))
    engine.submit(Task(0, [0], 0))
    engine.receive()
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 5


class Slow:
    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / "begun").touch()
        time.sleep(0.1)
        return index


def test_a_worker_stops_after_the_sample_it_is_at(monkeypatch, tmp_path):
    monkeypatch.setattr(endings, "_GRACE_S", 100.0)
    engine = processes("fork", workers=1)
    engine.start(job(Slow(tmp_path)))
    for number in range(2):
        engine.submit(Task(number, list(range(1000)), 0))
    wait_for(tmp_path / "begun")
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 10


class Talkative:
    """Batches that neither fit into the arena nor into the socket."""

    def __getitem__(self, index):
        return [os.urandom(2**20)] * 3 + [object]


def test_a_worker_that_waits_to_be_read_ends_at_once(monkeypatch):
    from headrace.transport import shared_memory

    monkeypatch.setattr(endings, "_GRACE_S", 100.0)
    monkeypatch.setattr(shared_memory, "_SMALLEST", 2**20)
    monkeypatch.setattr(shared_memory, "_LARGEST", 2**20)
    engine = processes("fork")
    engine.start(job(Talkative()))
    for number in range(4):
        engine.submit(Task(number, [0], number % 2))
    time.sleep(0.3)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 5
    assert not multiprocessing.active_children()

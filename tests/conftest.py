"""Guards every test: nothing that a test started may be left when it ends."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from headrace.base.endings import await_dropped

# A change is judged by the same examples each time; `make hunt` looks for further ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("hunt", derandomize=False, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HEADRACE_EXAMPLES", "same"))

for _library in ("torch", "jax"):  # their own threads and descriptors come with the import, not with a test
    if importlib.util.find_spec(_library) is not None:
        importlib.import_module(_library)
if importlib.util.find_spec("pyarrow") is not None:  # and those of pyarrow with the first file that it reads
    import pyarrow.csv

    pyarrow.csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))
gc.collect()
gc.freeze()  # what the libraries brought is not a test's: collecting it again after each test takes 0.1 s


def _open_descriptors() -> list[str]:
    """What is open; except for fonts, which matplotlib keeps open for ever."""
    folder = Path("/proc/self/fd")
    found = []
    for link in folder.iterdir() if folder.exists() else ():
        try:
            found.append(os.readlink(link))
        except FileNotFoundError:  # of the listing itself, which has ended by now
            continue
    return sorted(target for target in found if not target.endswith(".ttf"))


def _shared_segments() -> set[str]:
    """headrace's own; other programs may come and go while a test runs."""
    return {path.name for path in Path("/dev/shm").glob("*headrace*")}


@pytest.fixture(autouse=True)
def nothing_learnt() -> Iterator[None]:
    """What a test teaches the default collation is forgotten after it."""
    from headrace.batch import collate

    known = dict(collate._registry)
    yield
    if collate._taught:
        collate._taught.clear()
        collate._registry.clear()
        collate._registry.update(known)
        collate._resolved.clear()


@pytest.fixture(autouse=True, scope="session")
def helpers_of_multiprocessing() -> None:
    """What `multiprocessing` keeps open for good is there before any test counts."""
    from tests.engines.jobs import start_helpers_of_multiprocessing

    start_helpers_of_multiprocessing()


def _await_feeders() -> None:
    """Threads of torch's own loaders, which end a moment after them, and let go of their pipes."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A process, thread, descriptor or shared segment that is left behind fails the test that left it."""
    descriptors, segments, threads = _open_descriptors(), _shared_segments(), set(threading.enumerate())
    yield
    gc.collect()
    await_dropped()
    assert not multiprocessing.active_children()
    _await_feeders()
    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= threads
    assert _shared_segments() <= segments
    deadline = time.monotonic() + 5
    while len(left := _open_descriptors()) > len(descriptors) and time.monotonic() < deadline:
        time.sleep(0.01)  # another thread, of a server or an event loop, may be about to close it
    assert len(left) <= len(descriptors), set(left) - set(descriptors)
    gc.freeze()  # what lives on is seldom a test's, and would be looked at again after each of the next thousands

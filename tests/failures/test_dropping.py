"""What is dropped runs no Python code in the thread that drops it: an interrupt that is raised there would be lost."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from headrace import DataLoader, SharedList
from headrace.base.endings import await_dropped
from headrace.frameworks.page_locks import PageLocks
from headrace.frameworks.recycled_memory import RecycledMemory
from tests.failures.scripts import needs_proc
from tests.needs import needs_torch

pytestmark = needs_proc


def calls_while_dropping(held):
    """The functions in Python that are called when what is in a list goes."""
    calls = []

    def note(frame, event, argument):
        if event == "call":
            calls.append(frame.f_code.co_name)

    gc.collect()
    clear = held.clear
    sys.setprofile(note)
    try:
        clear()
    finally:
        sys.setprofile(None)
    return calls


def batch_of_a_process():
    loader = DataLoader(np.zeros((8, 50_000)), batch_size=2, num_workers=1, output="numpy")
    iterator = iter(loader)
    batch = next(iterator)
    return batch, [loader, iterator]


def array_of_recycled_memory():
    memory = RecycledMemory()
    return memory.allocate((2**21,), np.dtype(np.uint8)), [memory]


def shared_list():
    return SharedList(range(10)), []


def page_locks():
    return PageLocks(lambda address, n_bytes: True, lambda address: None), []


def stream_copier():
    import torch

    from headrace.frameworks.torch_devices import StreamCopier
    from tests.deliver.test_device import OwnBatch, Recorder

    copier = StreamCopier(torch.device("cuda"), Recorder())
    copier.copy([OwnBatch(Recorder())])
    return copier, []


def batch_on_its_way():
    import torch

    from headrace.frameworks.torch_devices import StreamCopier
    from tests.deliver.test_device import OwnBatch, Recorder

    copier = StreamCopier(torch.device("cuda"), Recorder())
    return copier.copy([OwnBatch(Recorder())]), [copier]


def iterator_with(**options):
    def make():
        loader = DataLoader(np.zeros((8, 50_000)), batch_size=2, num_workers=1, output="numpy", **options)
        iterator = iter(loader)
        next(iterator)
        return iterator, [loader]

    return make


MAKERS = {
    "a batch of a process": batch_of_a_process,
    "an array of recycled memory": array_of_recycled_memory,
    "a shared list": shared_list,
    "page locks": page_locks,
    "an iterator of processes": iterator_with(),
    "an iterator of threads": iterator_with(engine="threads"),
    "an iterator of persistent processes": iterator_with(persistent_workers=True),
    "a copier": pytest.param(stream_copier, marks=needs_torch),
    "a batch on its way": pytest.param(batch_on_its_way, marks=needs_torch),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_dropping_runs_no_python_code(make):
    dropped, others = make()
    held = [dropped]
    del dropped
    assert calls_while_dropping(held) == []
    others.clear()
    await_dropped()


def test_a_shared_list_closes_its_descriptor_also_as_part_of_a_cycle():
    def n_open():
        return len(os.listdir("/proc/self/fd"))

    before = n_open()
    shared = [SharedList(range(10)) for _ in range(3)]
    assert n_open() > before
    shared.append(shared)
    del shared
    gc.collect()
    assert n_open() == before


def test_garbage_that_a_forked_child_collects_as_it_starts_ends_no_lease():
    """The parent collects it, too: then the block would be marked as free a second time, when it has another batch."""
    script = """
        import gc, os
        gc.disable()
        os.register_at_fork(after_in_child=gc.collect)  # before headrace's own
        import numpy as np
        from headrace.transport.shared_memory import LoaderArena, WorkerArena, create_segment
        fd, size = create_segment(1)
        worker, loader = WorkerArena(fd, size), LoaderArena(fd, size, size)
        cycle = [loader.lease(worker.send(memoryview(worker.allocate((100_000,), np.dtype(np.uint8)))))]
        cycle.append(cycle)
        before = bytes(loader._states)
        del cycle
        pid = os.fork()
        if pid == 0:
            gc.collect()
            os._exit(0)
        os.waitpid(pid, 0)
        assert bytes(loader._states) == before
        gc.collect()
        assert bytes(loader._states) != before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_an_interrupt_waits_while_the_engine_is_imported(engine):
    """The import system drops locks whose callbacks are in Python."""
    script = f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from headrace import DataLoader
        seen = []

        def note(frame, event, argument):
            if event == "call" and frame.f_code.co_name == "<module>" and "engines" in frame.f_code.co_filename:
                seen.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

        sys.setprofile(note)
        DataLoader(range(10), num_workers=1, engine="{engine}", output="numpy")
        sys.setprofile(None)
        assert seen and not any(seen), seen
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)

"""What every engine promises: each task comes back once, errors are part of the outcome, and everything ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import RemoteTraceback, WorkerError
from headrace.base.messages import Exhausted, Failed, Finished, Pull, Task, decoded
from headrace.engines.engine import Interrupted
from headrace.testing import FlakyDataset
from tests.engines.jobs import (
    AHEAD,
    ENGINES,
    IN_PROCESS,
    START_METHODS,
    Gated,
    Uneven,
    Unstartable,
    WhoAmI,
    fails_to_start,
    job,
    mark_dataset,
    run,
    wait_for,
)


def closing(engine):
    yield engine
    engine.close()
    vars(engine).clear()  # pytest keeps the engine; what a closed engine may keep is a test of its own


@pytest.fixture(params=ENGINES)
def engine(request):
    yield from closing(ENGINES[request.param]())


@pytest.fixture(params=AHEAD)
def ahead(request):
    """An engine that works while nobody waits."""
    yield from closing(AHEAD[request.param]())


def is_remote(engine):
    return type(engine).__name__ in ("ProcessEngine", "RayActorEngine")


# Tasks and outcomes


def test_each_task_comes_back_once_with_its_own_number(engine):
    engine.start(job("abcdefgh"))
    outcomes = list(run(engine, [[0, 1], [2], [3, 4], [5], [6, 7], [0], [1], [2]]))
    assert all(type(outcome) is Finished for outcome in outcomes)
    assert sorted(outcome.number for outcome in outcomes) == list(range(8))
    batches = {outcome.number: "".join(outcome.batch) for outcome in outcomes}
    assert batches == {0: "ab", 1: "c", 2: "de", 3: "f", 4: "gh", 5: "a", 6: "b", 7: "c"}


def test_a_failure_is_told_with_its_error_and_touches_no_other_task(engine):
    engine.start(job(FlakyDataset("abcd", bad=[1])))
    outcomes = {outcome.number: outcome for outcome in run(engine, [[0], [1], [2], [3]])}
    failed = outcomes.pop(1)
    assert type(failed) is Failed
    assert type(failed.error) is ValueError
    assert str(failed.error) == "sample 1 is bad"
    assert {n: outcome.batch for n, outcome in outcomes.items()} == {0: ["a"], 2: ["c"], 3: ["d"]}


def test_an_error_tells_where_it_was_raised(engine):
    engine.start(job(FlakyDataset("a", bad=[0])))
    (outcome,) = run(engine, [[0]])
    if is_remote(engine):
        assert type(outcome.error.__cause__) is RemoteTraceback
        assert "in __getitem__" in str(outcome.error.__cause__)
        assert "in DataLoader worker process 0 (pid " in str(outcome.error.__cause__)
        assert "batch 0, sample 0" in str(outcome.error.__cause__)
        return
    frames = []
    traceback = outcome.error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert frames[-1] == "__getitem__"


def test_the_end_of_a_stream_is_told_for_every_further_task(engine):
    engine.start(job("abc", iterable=True))
    outcomes = list(run(engine, [Pull(2)] * 4 * engine.workers))
    for lane in range(engine.workers):
        mine = [outcome for outcome in outcomes if outcome.number % engine.workers == lane]
        assert [outcome.batch for outcome in mine if type(outcome) is Finished] == [["a", "b"], ["c"]]
        assert [type(outcome) for outcome in mine[2:]] == [Exhausted, Exhausted]


def test_streams_end_at_their_own_length_in_each_worker(engine):
    lengths = [1, 4]
    engine.start(job(Uneven(lengths), iterable=True))
    outcomes = {outcome.number: outcome for outcome in run(engine, [Pull(1)] * 6 * engine.workers)}
    for lane in range(engine.workers):
        mine = [outcomes[number] for number in sorted(outcomes) if number % engine.workers == lane]
        batches = [outcome.batch for outcome in mine if type(outcome) is Finished]
        if engine.capacity == 3:  # a hand-driven engine pulls in its own order
            batches.sort()
        assert batches == [[(lane, i)] for i in range(lengths[lane])]
        assert sum(type(outcome) is Exhausted for outcome in mine) == 6 - lengths[lane]


def test_stop_iteration_in_user_code_does_not_end_the_epoch(engine):
    engine.start(job("ab", collate_fn=lambda samples: next(iter([]))))
    outcomes = list(run(engine, [[0], [1]]))
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert type(outcome.error) is RuntimeError
        assert "raised StopIteration" in str(outcome.error)
        if not is_remote(engine):
            assert type(outcome.error.__cause__) is StopIteration


@pytest.mark.parametrize("name", IN_PROCESS)
def test_without_workers_a_stream_that_cannot_start_fails_at_start(name):
    engine = IN_PROCESS[name]()
    with pytest.raises(OSError, match="no such stream"):
        engine.start(job(Unstartable(), iterable=True))


def test_a_stream_that_cannot_start_is_the_first_outcome_of_its_worker(ahead):
    ahead.start(job(Unstartable(), iterable=True))
    first = list(run(ahead, [Pull(1)] * ahead.workers))
    assert [type(outcome.error) for outcome in first] == [OSError] * ahead.workers
    assert {str(outcome.error) for outcome in first} == {"no such stream"}
    assert {type(outcome) for outcome in run(ahead, [Pull(1)] * ahead.workers)} == {Exhausted}  # so the epoch ends


def test_an_init_function_that_fails_is_the_first_outcome_of_its_worker(ahead):
    ahead.start(job("abcd", init_fn=fails_to_start))
    outcomes = {outcome.number: outcome for outcome in run(ahead, [[0], [1], [2], [3]])}
    assert [type(outcomes[n].error) for n in (0, 1)] == [LookupError, LookupError]
    assert [str(outcomes[n].error) for n in (0, 1)] == ["worker 0 has no licence", "worker 1 has no licence"]
    assert all(isinstance(outcomes[n].error, WorkerError) for n in (2, 3))


def exits_at_start(number):
    raise SystemExit(3)


def test_an_init_function_that_exits_does_not_leave_the_loader_waiting(ahead):
    ahead.start(job("ab", init_fn=exits_at_start))
    told = []

    def receive():
        try:
            told.append(decoded(ahead.receive()))
        except WorkerError as error:
            told.append(error)

    # The worker may be gone before the task is submitted.
    try:
        ahead.submit(Task(0, [0], 0))
        ahead.submit(Task(1, [1], 1))
    except WorkerError as error:
        told.append(error)
    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    thread.join(10)
    waits_for_ever = thread.is_alive()
    ahead.close()
    thread.join(10)
    assert not waits_for_ever
    assert isinstance(told[0], (WorkerError, Failed))


# Workers


def test_workers_know_who_they_are(ahead):
    ahead.start(job(WhoAmI(), base_seed=1000, init_fn=mark_dataset))
    samples = [(outcome.number, outcome.batch[0]) for outcome in run(ahead, [[0]] * 6)]
    for number, (worker, workers, seed, pid, mark) in samples:
        assert worker == number % 2  # the lane of the task decides
        assert (workers, seed, mark) == (2, 1000 + worker, f"marked by {worker}")
        assert (pid == os.getpid()) is not is_remote(ahead)
    if is_remote(ahead):
        assert len({pid for _, (*_, pid, _) in samples}) == 2
    assert WhoAmI.mark == "untouched"


@pytest.mark.parametrize("name", IN_PROCESS)
def test_without_workers_nobody_is_one_and_nothing_is_initialised(name):
    engine = IN_PROCESS[name]()
    engine.start(job(WhoAmI(), init_fn=fails_to_start))
    assert [outcome.batch for outcome in run(engine, [[0]])] == [[None]]


def test_the_tasks_of_a_worker_end_in_the_order_they_came(ahead):
    ahead.start(job(range(100)))
    order = [outcome.number for outcome in run(ahead, [[i] for i in range(40)])]
    assert sorted(order) == list(range(40))
    for lane in range(2):
        mine = [number for number in order if number % 2 == lane]
        assert mine == sorted(mine)


def test_capacity_many_tasks_are_taken_at_once_and_worked_on_while_nobody_waits(ahead, tmp_path):
    assert (ahead.workers, ahead.capacity, ahead.works_ahead) == (2, 4, True)
    ahead.start(job(Gated(tmp_path)))
    for number in range(4):
        ahead.submit(Task(number, [number], number % 2))
    for number in (0, 1):
        wait_for(tmp_path / f"begun-{number}")  # one in each worker
    assert not (tmp_path / "begun-2").exists()
    (tmp_path / "open").touch()
    for number in (2, 3):
        wait_for(tmp_path / f"begun-{number}")
    assert sorted(decoded(ahead.receive()).batch for _ in range(4)) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_engines_without_workers_do_nothing_ahead(name, tmp_path):
    engine = IN_PROCESS[name]()
    assert not engine.works_ahead
    (tmp_path / "open").touch()
    engine.start(job(Gated(tmp_path)))
    engine.submit(Task(0, [0]))
    assert not (tmp_path / "begun-0").exists()
    assert decoded(engine.receive()).batch == [0]


# Epochs


def test_a_new_epoch_gives_up_what_is_in_flight_and_starts_streams_over(engine):
    engine.start(job("abcdef", iterable=True))
    for _ in range(3):
        for number in range(engine.capacity):
            engine.submit(Task(number, Pull(2), number % engine.workers))
        assert type(decoded(engine.receive())) is Finished
        engine.begin_epoch()
    outcomes = list(run(engine, [Pull(2)] * 4 * engine.workers))
    assert sorted(outcome.number for outcome in outcomes) == list(range(4 * engine.workers))
    batches = sorted("".join(outcome.batch) for outcome in outcomes if type(outcome) is Finished)
    assert batches == sorted(["ab", "cd", "ef"] * engine.workers)


def test_a_new_epoch_of_keys_starts_its_numbers_over(engine):
    engine.start(job("abcdef"))
    for number in range(engine.capacity):
        engine.submit(Task(number, [number], number % engine.workers))
    engine.begin_epoch()
    batches = {outcome.number: outcome.batch for outcome in run(engine, [[5], [4], [3], [2]])}
    assert batches == {0: ["f"], 1: ["e"], 2: ["d"], 3: ["c"]}


def test_batches_of_the_epoch_before_are_not_taken_for_its_beginning(ahead):
    """Whatever they are: comparing messages would ask an array whether it is true, or equal a task to an epoch."""
    ahead.start(job([np.arange(3), np.arange(3), np.arange(3)], collate_fn=np.stack))
    for _ in range(3):
        for number in range(3):
            ahead.submit(Task(number, [number], number % 2))
        ahead.receive()
        ahead.begin_epoch()
    ahead.submit(Task(7, [1], 0))
    assert ahead.receive().number == 7


def test_a_new_epoch_waits_for_work_in_flight_and_not_for_ever(ahead, tmp_path):
    ahead.start(job(Gated(tmp_path)))
    ahead.submit(Task(0, [0], 0))
    wait_for(tmp_path / "begun-0")
    threading.Timer(0.05, (tmp_path / "open").touch).start()
    ahead.begin_epoch()
    assert [outcome.batch for outcome in run(ahead, [[7], [8]])] in ([[7], [8]], [[8], [7]])


def test_workers_stay_the_same_from_epoch_to_epoch(ahead):
    ahead.start(job(WhoAmI(), init_fn=mark_dataset))
    before = sorted(outcome.batch for outcome in run(ahead, [[0], [0]]))
    ahead.begin_epoch()
    assert sorted(outcome.batch for outcome in run(ahead, [[0], [0]])) == before


# The end


def test_closing_twice_is_allowed_and_an_engine_can_start_again(engine):
    engine.close()
    engine.start(job("ab"))
    engine.submit(Task(0, [0]))
    engine.close()
    engine.close()
    engine.start(job("cd"))
    assert [outcome.batch for outcome in run(engine, [[0], [1]])] in ([["c"], ["d"]], [["d"], ["c"]])


def receive_in_a_thread(engine):
    """A thread that waits in `receive`, and what comes of it."""
    told = []

    def receive():
        try:
            told.append(decoded(engine.receive()))
        except Exception as error:  # noqa: BLE001
            told.append(error)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    time.sleep(0.05)  # so that it mostly waits; it need not for the test to hold
    return thread, told


def test_closing_from_another_thread_wakes_whoever_waits(ahead, tmp_path):
    ahead.start(job(Gated(tmp_path)))
    ahead.submit(Task(0, [0], 0))
    wait_for(tmp_path / "begun-0")
    thread, told = receive_in_a_thread(ahead)
    opening = threading.Timer(0.05 if is_remote(ahead) else 0, (tmp_path / "open").touch)
    opening.start()  # a dataset that hangs is another test
    ahead.close()
    opening.join()
    thread.join(20)
    assert not thread.is_alive()
    # An outcome that was just there may still be told. Otherwise the error is one that users may see.
    assert isinstance(told[0], (WorkerError, Finished)), told


def test_an_interrupt_wakes_whoever_waits_and_loses_nothing(ahead, tmp_path):
    ahead.start(job(Gated(tmp_path)))
    ahead.submit(Task(0, [0], 0))
    wait_for(tmp_path / "begun-0")
    thread, told = receive_in_a_thread(ahead)
    ahead.interrupt()
    thread.join(20)
    assert not thread.is_alive()
    assert type(told[0]) is Interrupted
    (tmp_path / "open").touch()
    assert decoded(ahead.receive()) == Finished(0, [0])


def test_an_interrupt_that_wakes_nobody_does_not_spoil_the_next_epoch(engine):
    engine.start(job("ab"))
    assert [outcome.batch for outcome in run(engine, [[0]])] == [["a"]]
    engine.interrupt()
    engine.begin_epoch()
    assert [outcome.batch for outcome in run(engine, [[1]])] == [["b"]]


def test_an_interrupt_after_the_end_does_not_spoil_the_next_start(engine):
    engine.start(job("ab"))
    engine.close()
    engine.interrupt()
    engine.start(job("cd"))
    assert [outcome.batch for outcome in run(engine, [[1]])] == [["d"]]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_closed_engine_writes_to_no_descriptor(start_method):
    """Their numbers belong to others by then: a file that the user decoded meanwhile must stay as it is."""
    engine = AHEAD[start_method]()
    engine.start(job("ab"))
    engine.close()
    pipes = [os.pipe() for _ in range(40)]
    try:
        engine.interrupt()
        engine.close()
        for read, _ in pipes:
            os.set_blocking(read, False)
            with pytest.raises(BlockingIOError):  # nothing has been written
                os.read(read, 10)
    finally:
        for pipe in pipes:
            for fd in pipe:
                os.close(fd)


def test_a_closed_engine_keeps_neither_descriptors_nor_shared_memory(ahead):
    def held():
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:headrace")

    before = held()
    ahead.start(job(range(100)))
    assert len(list(run(ahead, [[0], [1], [2]]))) == 3
    ahead.close()
    gc.collect()
    assert held() == before


def test_an_engine_that_is_dropped_ends_its_workers(ahead):
    """And the guard of every test sees that no thread, process or descriptor is left."""
    name = type(ahead).__name__
    engine = AHEAD["threads" if name == "ThreadEngine" else "fork"]()
    engine.start(job(range(10)))
    engine.submit(Task(0, [0], 0))
    watch = weakref.ref(engine)
    del engine
    gc.collect()
    assert watch() is None


def test_engines_keep_no_batch_that_they_gave_away(engine):
    if is_remote(engine):
        pytest.skip("batches of processes are leases: see tests/transport")

    class Batch(list):
        pass

    engine.start(job("ab", collate_fn=Batch))
    engine.submit(Task(0, [0], 0))
    outcome = decoded(engine.receive())
    watch = weakref.ref(outcome.batch)
    del outcome
    deadline = time.monotonic() + 5
    while watch() is not None and time.monotonic() < deadline:
        time.sleep(0.005)  # the worker's thread may be about to let go of it
    assert watch() is None


# Whatever the dataset is made of


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def collate(self, samples):
        return [self.factor * sample for sample in samples]


def closure(factor):
    return lambda samples: [factor * sample for sample in samples]


def test_jobs_of_lambdas_closures_bound_methods_and_local_classes(engine):
    class Local:
        def __getitem__(self, index):
            return index + 1

    parts = [lambda samples: [3 * sample for sample in samples], closure(3), Scaler(3).collate]
    engine.start(job(Local(), collate_fn=lambda samples: [part(samples) for part in parts]))
    assert [outcome.batch for outcome in run(engine, [[1, 2]])] == [[[6, 9]] * 3]


def test_batches_and_errors_of_local_classes(engine):
    class LocalError(Exception):
        pass

    class Local:
        def __init__(self, samples):
            self.samples = samples

    def collate(samples):
        if samples == ["a"]:
            raise LocalError("here")
        return Local(samples)

    engine.start(job("ab", collate_fn=collate))
    outcomes = {outcome.number: outcome for outcome in run(engine, [[0], [1]])}
    assert type(outcomes[0].error).__name__ == "LocalError"
    assert str(outcomes[0].error) == "here"
    assert outcomes[1].batch.samples == ["b"]
    if not is_remote(engine):
        assert type(outcomes[1].batch) is Local


def test_a_batch_that_cannot_be_sent_is_an_error_that_says_so(ahead):
    ahead.start(job("ab", collate_fn=lambda samples: (sample for sample in samples)))
    outcomes = list(run(ahead, [[0], [1]]))
    if is_remote(ahead):
        assert [type(outcome.error) for outcome in outcomes] == [TypeError, TypeError]
        assert "The batch, a generator, cannot be sent to the loader" in str(outcomes[0].error)
    else:
        assert sorted(list(outcome.batch) for outcome in outcomes) == [["a"], ["b"]]


SCRIPT = """
import multiprocessing, sys
import headrace

class Mine(headrace.Dataset):
    offset = 100

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Point(index + self.offset)

class Point:
    def __init__(self, x):
        self.x = x

def collate(samples):
    return Batch([helper(sample.x) for sample in samples])

def helper(x):
    return x + STEP

class Batch(list):
    pass

STEP = 1000
loader = headrace.DataLoader(
    Mine(), 2, num_workers=1, collate_fn=collate, output="numpy", multiprocessing_context=sys.argv[1]
)
for batch in loader:
    assert type(batch) is Batch
    print(list(batch))
"""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_script_without_a_guard_whose_parts_are_its_own(start_method, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-W", "error", str(path), start_method]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.returncode) == ("[1100, 1101]\n[1102, 1103]\n", 0), result.stderr

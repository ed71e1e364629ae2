"""What every engine promises: each task comes back once, and errors are part of the outcome."""

from __future__ import annotations

import pytest

from headrace.base.messages import Exhausted, Failed, Finished, Pull, Task
from headrace.engines.engine import Job
from headrace.engines.inline import InlineEngine
from headrace.testing import FlakyDataset, HandDrivenEngine

ENGINES = {
    "inline": InlineEngine,
    "oldest first": lambda: HandDrivenEngine(min, capacity=3),
    "newest first": lambda: HandDrivenEngine(max, capacity=3),
}


def job(dataset, **options):
    return Job(
        **{
            "dataset": dataset,
            "iterable": False,
            "batched": True,
            "drop_last": False,
            "collate_fn": list,
            "output": "numpy",
            "convert": False,
            **options,
        }
    )


@pytest.fixture(params=ENGINES)
def engine(request):
    engine = ENGINES[request.param]()
    yield engine
    engine.close()


def run(engine, keys):
    """All outcomes, with as many tasks in flight as the engine allows."""
    waiting, in_flight = [Task(n, key) for n, key in enumerate(keys)], 0
    while waiting or in_flight:
        while waiting and in_flight < engine.capacity:
            engine.submit(waiting.pop(0))
            in_flight += 1
        yield engine.receive()
        in_flight -= 1


def test_each_task_comes_back_once_with_its_own_number(engine):
    engine.start(job("abcdefgh"))
    outcomes = list(run(engine, [[0, 1], [2], [3, 4], [5], [6, 7]]))
    assert all(type(outcome) is Finished for outcome in outcomes)
    batches = {outcome.number: "".join(outcome.batch) for outcome in outcomes}
    assert batches == {0: "ab", 1: "c", 2: "de", 3: "f", 4: "gh"}


def test_a_failure_is_told_with_its_error_and_touches_no_other_task(engine):
    engine.start(job(FlakyDataset("abcd", bad=[1])))
    outcomes = {outcome.number: outcome for outcome in run(engine, [[0], [1], [2], [3]])}
    assert type(outcomes.pop(1)) is Failed
    assert {n: outcome.batch for n, outcome in outcomes.items()} == {0: ["a"], 2: ["c"], 3: ["d"]}


def test_an_error_keeps_its_traceback(engine):
    engine.start(job(FlakyDataset("a", bad=[0])))
    (outcome,) = run(engine, [[0]])
    frames = []
    traceback = outcome.error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert frames[-1] == "__getitem__"


def test_the_end_of_a_stream_is_told_for_every_further_task(engine):
    engine.start(job("abc", iterable=True))
    outcomes = list(run(engine, [Pull(2)] * 4))
    assert [outcome.batch for outcome in outcomes if type(outcome) is Finished] == [["a", "b"], ["c"]]
    assert [type(outcome) for outcome in outcomes[2:]] == [Exhausted, Exhausted]


def test_stop_iteration_in_user_code_does_not_end_the_epoch(engine):
    engine.start(job("ab", collate_fn=lambda samples: next(iter([]))))
    for outcome in run(engine, [[0], [1]]):
        assert type(outcome.error) is RuntimeError
        assert type(outcome.error.__cause__) is StopIteration


def test_a_stream_that_cannot_start_fails_at_start(engine):
    with pytest.raises(TypeError, match="not iterable"):
        engine.start(job(5, iterable=True))


def test_closing_twice_is_allowed_and_an_engine_can_start_again(engine):
    engine.start(job("ab"))
    engine.submit(Task(0, [0]))
    engine.close()
    engine.close()
    engine.start(job("cd"))
    assert [outcome.batch for outcome in run(engine, [[0], [1]])] in ([["c"], ["d"]], [["d"], ["c"]])

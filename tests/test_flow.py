"""The flow's guarantees, under every completion order: once each, in order, bounded, and on after an error."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.messages import Pull
from headrace.engines.engine import Job
from headrace.engines.inline import InlineEngine
from headrace.flow import Flow
from headrace.testing import FlakyDataset, HandDrivenEngine


def job(dataset, *, iterable=False):
    return Job(
        dataset=dataset,
        iterable=iterable,
        batched=iterable,
        drop_last=False,
        collate_fn=lambda sample: sample,
        output="numpy",
        convert=False,
    )


class Keys:
    """0, 1, 2, …, and how many were drawn."""

    def __init__(self, n):
        self.n = n
        self.drawn = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.drawn == self.n:
            raise StopIteration
        self.drawn += 1
        return self.drawn - 1


def tell(flow):
    """What the flow tells next: a batch, the index of a bad sample as text, or None at the end."""
    try:
        return next(flow)
    except ValueError as error:
        return str(error)
    except StopIteration:
        return None


@settings(deadline=None, max_examples=300)
@given(
    n=st.integers(0, 25),
    capacity=st.integers(1, 6),
    in_order=st.booleans(),
    bad=st.sets(st.integers(0, 24), max_size=8),
    close_after=st.none() | st.integers(0, 25),
    random=st.randoms(use_true_random=False),
)
def test_guarantees(n, capacity, in_order, bad, close_after, random):
    keys, engine = Keys(n), HandDrivenEngine(random.choice, capacity)
    engine.start(job(FlakyDataset(range(n), bad)))
    flow = Flow(keys, engine, in_order=in_order)
    assert keys.drawn == 0

    expected = [f"sample {i} is bad" if i in bad else i for i in range(n)]
    told = []
    while len(told) != close_after:
        # With k told, exactly as many keys are drawn as may be in flight: never more, and never fewer.
        outcome = tell(flow)
        assert keys.drawn == min(n, len(told) + capacity)
        if outcome is None:
            break
        told.append(outcome)
    assert engine.most_in_flight <= capacity

    completed = [expected[i] for i in engine.completed]
    assert len(set(engine.completed)) == len(engine.completed)  # no task twice
    if in_order:
        assert told == expected[: len(told)]
    else:
        assert told == completed[: len(told)]
    if close_after is None or close_after > n:
        assert sorted(map(str, told)) == sorted(map(str, expected))

    flow.close()
    flow.close()
    assert engine.closed
    drawn = keys.drawn
    assert tell(flow) is None  # and stays ended
    assert keys.drawn == drawn


@pytest.mark.parametrize("in_order", [True, False])
def test_an_ended_flow_stays_ended(in_order):
    engine = HandDrivenEngine(max, capacity=2)
    engine.start(job("ab"))
    flow = Flow(Keys(2), engine, in_order=in_order)
    assert sorted(flow) == ["a", "b"]
    assert list(flow) == []


@settings(deadline=None)
@given(
    n=st.integers(0, 15),
    capacity=st.integers(1, 5),
    size=st.integers(1, 4),
    in_order=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_a_stream_ends_after_all_its_samples_came_once(n, capacity, size, in_order, random):
    engine = HandDrivenEngine(random.choice, capacity)
    engine.start(job(range(n), iterable=True))
    batches = list(Flow(repeat(Pull(size)), engine, in_order=in_order))
    assert sorted(i for batch in batches for i in batch) == list(range(n))
    assert len(batches) == -(-n // size)
    assert len(engine.completed) <= len(batches) + capacity  # it does not go on asking


def test_an_error_of_the_sampler_is_told_and_work_in_flight_is_not_lost():
    def keys():
        yield 0
        yield 1
        raise LookupError("the sampler broke")

    engine = HandDrivenEngine(min, capacity=2)
    engine.start(job("abc"))
    flow = Flow(keys(), engine)
    assert next(flow) == "a"
    with pytest.raises(LookupError, match="the sampler broke"):
        next(flow)
    assert list(flow) == ["b"]


def test_the_error_that_is_raised_is_the_users_own():
    error = ValueError("mine")

    engine = InlineEngine()
    engine.start(job(FlakyDataset("ab", bad=[0], error=lambda index: error)))
    flow = Flow(Keys(2), engine)
    with pytest.raises(ValueError, match="mine") as caught:
        next(flow)
    assert caught.value is error
    assert next(flow) == "b"


def test_an_interrupt_does_not_break_the_flow():
    """As in torch, whoever catches a KeyboardInterrupt can go on with the next batch."""

    class Interrupted(list):
        def __getitem__(self, index):
            if index == 1:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    engine = InlineEngine()
    engine.start(job(Interrupted("abc")))
    flow = Flow(Keys(3), engine)
    assert next(flow) == "a"
    with pytest.raises(KeyboardInterrupt):
        next(flow)
    assert list(flow) == ["c"]

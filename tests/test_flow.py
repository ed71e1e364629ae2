"""The flow's guarantees, under every completion order: once each, in order, bounded, and on after an error."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from functools import partial
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.messages import BadSample, Exhausted, Failed, Finished, LazyBatch, Pull, Skipped, Task
from headrace.base.plan import LOST, Batches, Plan
from headrace.engines.engine import Job
from headrace.engines.inline import InlineEngine
from headrace.flow import Flow
from headrace.order.iterables import IterablePlan, LaneProgress
from headrace.order.key_plan import KeyPlan
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
    flow = Flow(KeyPlan(keys), engine, in_order=in_order)
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
    flow = Flow(KeyPlan(Keys(2)), engine, in_order=in_order)
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
def test_an_iterable_ends_after_all_its_samples_came_once(n, capacity, size, in_order, random):
    engine = HandDrivenEngine(random.choice, capacity)
    engine.start(job(range(n), iterable=True))
    batches = list(Flow(IterablePlan(Pull(size)), engine, in_order=in_order))
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
    flow = Flow(KeyPlan(keys()), engine)
    assert [next(flow), next(flow)] == ["a", "b"]  # the error comes in its turn
    with pytest.raises(LookupError, match="the sampler broke"):
        next(flow)
    assert list(flow) == []


def test_the_error_that_is_raised_is_the_users_own():
    error = ValueError("mine")

    engine = InlineEngine()
    engine.start(job(FlakyDataset("ab", bad=[0], error=lambda index: error)))
    flow = Flow(KeyPlan(Keys(2)), engine)
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
    flow = Flow(KeyPlan(Keys(3)), engine)
    assert next(flow) == "a"
    with pytest.raises(KeyboardInterrupt):
        next(flow)
    assert list(flow) == ["c"]


# Several workers


class Lanes:
    """Worker w gives the outcomes of its own line, one for each task; the test decides who is next."""

    works_ahead = True

    def __init__(self, lines, choose, capacity):
        self.workers = len(lines)
        self.capacity = self.depth = capacity
        self.lines = [deque(line) for line in lines]
        self.choose = choose
        self.inboxes = [deque() for _ in lines]
        self.in_flight = 0
        self.most_in_flight = 0
        self.flushed = 0  # of the tasks that are in flight now
        self.closed = 0

    def submit(self, task, *, more=False):
        self.inboxes[task.worker].append(task)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def flush(self):
        self.flushed = self.in_flight

    def receive(self):
        lane = self.choose([lane for lane, inbox in enumerate(self.inboxes) if inbox])
        task = self.inboxes[lane].popleft()
        self.in_flight -= 1
        if not self.lines[lane]:
            return Exhausted(task.number)
        made = self.lines[lane].popleft()
        return made(task.number) if callable(made) else Finished(task.number, made)

    def close(self):
        self.closed += 1


class Echo(Lanes):
    """Every worker answers with the keys that it was asked for."""

    def receive(self):
        lane = self.choose([lane for lane, inbox in enumerate(self.inboxes) if inbox])
        self.in_flight -= 1
        task = self.inboxes[lane].popleft()
        return Finished(task.number, task.keys)


def bad(key):
    return BadSample(key, 0, 0, "ValueError: bad", "")


@settings(deadline=None, max_examples=300)
@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    prefetch=st.integers(1, 3),
    in_order=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_iterables_of_several_workers(lengths, prefetch, in_order, random):
    lines = [[(worker, i) for i in range(n)] for worker, n in enumerate(lengths)]
    engine = Lanes(lines, random.choice, prefetch * len(lengths))
    told = list(Flow(IterablePlan(Pull(1)), engine, in_order=in_order))
    rounds = sorted((pair for line in lines for pair in line), key=lambda pair: (pair[1], pair[0]))
    if in_order:
        assert told == rounds
    else:
        assert sorted(told) == sorted(rounds)
        for worker, line in enumerate(lines):
            assert [pair for pair in told if pair[0] == worker] == line
    assert engine.most_in_flight <= engine.capacity
    assert not engine.in_flight


def test_out_of_order_a_slow_worker_holds_up_nobody():
    """Worker 0 is asked only when nobody else can be."""
    engine = Lanes([["slow"], list(range(20))], max, 4)
    assert list(Flow(KeyPlan(iter(range(21))), engine, in_order=False))[:19] == list(range(19))


def test_workers_are_kept_busy_while_the_loop_works_on_a_batch():
    engine = Lanes([list("abcdef")], max, 2)
    flow = Flow(KeyPlan(iter(range(6))), engine)
    assert next(flow) == "a"
    assert engine.in_flight == 2  # one came back, and another went out


def test_left_out_samples_are_told_in_the_order_of_their_batches_and_empty_batches_do_not_come():
    lines = [
        [lambda n: Finished(n, "a", (bad(0),)), lambda n: Skipped(n, (bad(2), bad(3)))],
        [lambda n: Skipped(n, ()), lambda n: Finished(n, "d", (bad(4),))],
    ]
    heard = []
    engine = Lanes(lines, max, 4)
    assert list(Flow(KeyPlan(iter(range(4))), engine, on_bad=lambda told: heard.append([b.key for b in told]))) == [
        "a",
        "d",
    ]
    assert heard == [[0], [2, 3], [4]]


def test_what_the_listener_raises_ends_the_epoch_there():
    def refuse(told):
        raise RuntimeError("too many")

    engine = Lanes([[lambda n: Finished(n, "a", (bad(0),)), "b"]], max, 2)
    flow = Flow(KeyPlan(iter(range(2))), engine, on_bad=refuse)
    with pytest.raises(RuntimeError, match="too many"):
        next(flow)


def test_fingerprints_are_told_with_their_worker():
    lines = [[lambda n: Finished(n, "a", (), 11), "c"], [lambda n: Finished(n, "b", (), 22)]]
    heard = []
    engine = Lanes(lines, max, 4)
    assert list(Flow(KeyPlan(iter(range(3))), engine, on_first=lambda *told: heard.append(told))) == ["a", "b", "c"]
    assert sorted(heard) == [(0, 11), (1, 22)]


def test_a_time_out_is_raised_and_the_batch_still_comes():
    class Late(Lanes):
        late = True

        def receive(self):
            if self.late:
                self.late = False
                raise TimeoutError("nothing came")
            return super().receive()

    flow = Flow(KeyPlan(iter(range(2))), Late([list("ab")], max, 2))
    with pytest.raises(TimeoutError):
        next(flow)
    assert list(flow) == ["a", "b"]


def test_a_failure_comes_in_its_turn_and_the_epoch_goes_on():
    error = ValueError("bad")
    engine = Lanes([["a", lambda n: Failed(n, error)], ["b", "d"]], max, 4)
    flow = Flow(KeyPlan(iter(range(4))), engine)
    assert [next(flow), next(flow)] == ["a", "b"]
    with pytest.raises(ValueError, match="bad") as caught:
        next(flow)
    assert caught.value is error
    assert list(flow) == ["d"]


@pytest.mark.parametrize("works_ahead", [True, False])
def test_keys_that_cannot_be_sent_are_an_error_in_their_turn(works_ahead):
    """And the batches before and after them are not lost."""

    class Picky(Lanes):
        def submit(self, task, *, more=False):
            if task.keys == "bad":
                raise TypeError("cannot be sent")
            super().submit(task, more=more)

    engine = Picky([list("abcd")], max, 2)
    engine.works_ahead = works_ahead
    flow = Flow(KeyPlan(iter([0, 1, "bad", 3])), engine)
    told = []
    for _ in range(6):
        try:
            told.append(next(flow))
        except TypeError as error:
            told.append(str(error))
        except StopIteration:
            break
    assert told == ["a", "b", "cannot be sent", "c"]


def test_an_abandoned_flow_is_over_but_leaves_the_engine():
    engine = Lanes([list("abcd")], max, 2)
    flow = Flow(KeyPlan(iter(range(4))), engine)
    assert next(flow) == "a"
    flow.abandon()
    assert list(flow) == []
    assert engine.closed == 0
    flow.close()
    assert engine.closed == 1


# How far it has come


@settings(deadline=None)
@given(
    n=st.integers(0, 25),
    capacity=st.integers(1, 6),
    in_order=st.booleans(),
    stop=st.integers(0, 25),
    random=st.randoms(use_true_random=False),
)
def test_it_goes_on_where_an_epoch_was(n, capacity, in_order, stop, random):
    def flow_of(plan):
        engine = HandDrivenEngine(random.choice, capacity)
        engine.start(job(range(n)))
        return Flow(plan, engine, in_order=in_order)

    plan = KeyPlan(iter(range(n)))
    told = list(islice(flow_of(plan), stop))
    assert set(told) == set(range(plan.batches)) | plan.ahead
    left = [key for key in range(plan.batches, n) if key not in plan.ahead]
    start = {"ahead": [number - plan.batches for number in plan.ahead]}
    rest = KeyPlan(iter(left), start=start, batches=plan.batches)
    more = list(flow_of(rest))
    assert sorted(told + more) == list(range(n))
    assert (rest.batches, rest.ahead) == (n, set())
    if in_order:
        assert more == left


def test_a_plan_counts_what_is_told_not_what_is_made():
    plan = KeyPlan(iter(range(6)))
    flow = Flow(plan, Lanes([list("abcdef")], max, 4))
    flow.fill()
    assert plan.batches == 0
    assert next(flow) == "a"
    assert plan.batches == 1


def test_errors_and_batches_that_are_left_out_count_as_given():
    plan = KeyPlan(iter(range(4)))
    lines = [["a", lambda n: Failed(n, ValueError("bad")), lambda n: Skipped(n, (bad(2),)), "d"]]
    flow = Flow(plan, Lanes(lines, max, 1))
    next(flow)
    with pytest.raises(ValueError, match="bad"):
        next(flow)
    assert plan.batches == 2
    assert next(flow) == "d"
    assert plan.batches == 4


def test_lanes_are_followed_by_what_was_told_of_them():
    plan = IterablePlan(Pull(1))
    state = {"dataset": 1, "has_ended": False}
    lines = [["a", "c"], [lambda n: Finished(n, "b", state=state)]]
    flow = Flow(plan, Lanes(lines, max, 4))
    assert [next(flow), next(flow)] == ["a", "b"]
    assert plan.lanes == {0: LaneProgress(1), 1: LaneProgress(1, state)}
    assert plan.last_lane == 1
    assert list(flow) == ["c"]
    assert [lane.has_ended for _, lane in sorted(plan.lanes.items())] == [True, True]
    assert plan.batches == 3


@pytest.mark.parametrize("told", range(7))
def test_iterables_go_on_with_the_worker_whose_turn_it_is(told):
    lines = [["a0", "a1", "a2"], ["b0"], ["c0", "c1"]]
    order = ["a0", "b0", "c0", "a1", "c1", "a2"]
    plan = IterablePlan(Pull(1))
    plan.workers = 3
    assert list(islice(Flow(plan, Lanes(lines, min, 3)), told)) == order[:told]
    rest = [line[plan.lanes.get(lane, LaneProgress()).batches :] for lane, line in enumerate(lines)]
    again = IterablePlan(Pull(1), start=plan.position(), batches=told)
    assert list(Flow(again, Lanes(rest, max, 3))) == order[told:]


def test_whoever_is_free_gets_the_next_task_if_nobody_has_to_take_turns():
    """Worker 0 is asked only when nobody else can be; in order, all others go on as far as is worth it."""
    engine = Lanes([["slow", *range(20)], list(range(20))], max, 8)
    flow = Flow(KeyPlan(iter(range(12)), takes_turns=False), engine)
    flow.fill()
    assert next(flow) == "slow"
    assert len(engine.lines[1]) < 17  # it did more than its half


def test_tasks_that_go_out_together_are_flushed_once_and_none_is_kept():
    engine = Lanes([list("abcdef")], max, 4)
    flow = Flow(KeyPlan(iter(range(6))), engine)
    flow.fill()
    assert engine.flushed == engine.in_flight == 4
    next(flow)
    assert engine.flushed == engine.in_flight


def test_what_is_in_flight_follows_the_engines_depth():
    engine = Lanes([list(range(30))], max, 10)
    engine.depth = 2
    flow = Flow(KeyPlan(iter(range(30))), engine)
    assert next(flow) == 0
    assert engine.in_flight == 2
    engine.depth = 6
    assert next(flow) == 1
    assert engine.in_flight == 6


def test_an_interrupt_while_a_batch_is_unpacked_loses_nothing():
    interrupts = [KeyboardInterrupt]

    class Packing(InlineEngine):
        def receive(self):
            outcome = super().receive()
            return outcome._replace(batch=LazyBatch(partial(self.unpack, outcome.batch)))

        def unpack(self, batch):
            if interrupts:
                raise interrupts.pop()
            return batch

    engine = Packing()
    engine.start(job("abc"))
    flow = Flow(KeyPlan(iter([0, 1, 2])), engine)
    with pytest.raises(KeyboardInterrupt):
        next(flow)
    assert list(flow) == ["a", "b", "c"]


# What other plans may do


class Grouped(Plan):
    """Asks for key after key, and cuts the answers into groups of three batches; the rest comes at the end."""

    def __init__(self, n, size=3):
        super().__init__(0)
        self.n = n
        self.size = size
        self.asked = 0
        self.answers = []
        self.given = []
        self.abandoned = 0

    def next_task(self, worker):
        if self.asked == self.n:
            return None
        self.asked += 1
        return Task(self.asked - 1, self.asked - 1, worker)

    def accept(self, task, outcome):
        self.answers.append(outcome.batch)
        if len(self.answers) < self.size:
            return ()
        return [self.group(self.size)]

    def group(self, n_tasks):
        batches, self.answers = self.answers, []
        return Batches(lambda: batches, iter(batches), where=lambda: f"group of {batches[0]}", n_tasks=n_tasks)

    def finish(self):
        return [self.group(1)] if self.answers else ()

    def give(self, marks, n):
        self.batches += n
        self.given.extend(islice(marks, n))
        return n

    def keys(self, mark):
        return None if type(mark) is Task else (mark,)

    def position(self):
        return {}

    def abandon(self):
        self.abandoned += 1


class Account:
    def __init__(self):
        self.heard = []

    def ask(self, task, keys):
        self.heard.append(("ask", keys))

    def settle(self, task, outcome):
        self.heard.append(("settle", task.number))

    def give(self, keys, *, is_lost):
        self.heard.append(("lost" if is_lost else "give", *keys))

    def end(self):
        self.heard.append("end")


@settings(deadline=None)
@given(
    n=st.integers(0, 20),
    capacity=st.integers(3, 6),
    works_ahead=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_several_batches_that_are_due_come_one_after_the_other(n, capacity, works_ahead, random):
    engine = HandDrivenEngine(random.choice, capacity)
    engine.works_ahead = works_ahead
    engine.start(job(range(n)))
    plan, account = Grouped(n), Account()
    told = []
    for batch in Flow(plan, engine, account=account):
        told.append(batch)
        assert plan.given == told  # not those that are still to come
    assert told == list(range(n))
    assert engine.most_in_flight <= capacity
    assert account.heard == [("give", i) for i in range(n)] + ["end"]


def test_batches_that_are_lost_are_left_out_and_accounted_for():
    class Losing(Grouped):
        def group(self, n_tasks):
            return super().group(n_tasks)._replace(opened=lambda: ["a", LOST, "c"])

    plan, account = Losing(3), Account()
    assert list(Flow(plan, Lanes([[0, 1, 2]], max, 3), account=account)) == ["a", "c"]
    assert plan.given == [0, 1, 2]
    assert account.heard == [("give", 0), ("lost", 1), ("give", 2), "end"]


def test_an_error_while_batches_are_made_says_where_and_ends_the_epoch():
    class Breaking(Grouped):
        def group(self, n_tasks):
            def opened():
                yield "a"
                raise ValueError("cannot be collated")

            return super().group(n_tasks)._replace(opened=opened)

    plan, account = Breaking(6), Account()
    flow = Flow(plan, Lanes([list(range(6))], max, 3), account=account)
    assert next(flow) == "a"
    with pytest.raises(ValueError, match="cannot be collated") as caught:
        next(flow)
    assert any("in group of 0" in note for note in caught.value.__notes__)
    assert list(flow) == []
    assert plan.abandoned
    assert "end" not in account.heard  # it never came to that


def test_an_error_ends_the_epoch_of_a_plan_that_does_not_survive_it():
    class Fragile(KeyPlan):
        survives_errors = False

    plan = Fragile(iter(range(4)))
    flow = Flow(plan, Lanes([["a", lambda n: Failed(n, ValueError("bad")), "c", "d"]], max, 2))
    assert next(flow) == "a"
    with pytest.raises(ValueError, match="bad"):
        next(flow)
    assert list(flow) == []


def test_what_a_plan_cannot_make_of_an_answer_is_raised_in_its_turn():
    class Choosy(KeyPlan):
        passes_on = False

        def accept(self, task, outcome):
            if outcome.batch == "b":
                raise ValueError("unexpected")
            return super().accept(task, outcome)

    flow = Flow(Choosy(iter(range(3))), Lanes([["a", "c"], ["b"]], max, 4))
    assert next(flow) == "a"
    with pytest.raises(ValueError, match="unexpected"):
        next(flow)
    assert list(flow) == ["c"]


def test_a_plan_that_is_complete_is_not_waited_for():
    class Short(KeyPlan):
        def give_one(self, task, outcome):
            self.is_complete = task.number == 1
            return super().give_one(task, outcome)

    engine = Lanes([list("abcdef")], max, 4)
    assert list(Flow(Short(iter(range(6))), engine)) == ["a", "b"]
    assert engine.in_flight


def test_a_plan_that_bounds_itself_may_ask_for_more():
    class Wide(KeyPlan):
        bounds_itself = True

        def next_task(self, worker):
            return None if self._number - self.batches == 9 else super().next_task(worker)

    engine = Echo([[], []], max, 4)
    flow = Flow(Wide(iter(range(20))), engine)
    flow.fill()
    assert engine.in_flight == 9
    assert [len(inbox) for inbox in engine.inboxes] == [5, 4]  # whoever has least to do gets the next
    assert list(flow) == list(range(20))
    assert engine.most_in_flight == 9


def test_questions_are_answered_at_once_and_are_not_due():
    class Asking(KeyPlan):
        answers = ()

        def next_task(self, worker):
            if not self.answers and not hasattr(self, "asked"):
                self.asked = True
                return Task(-2, "how many?", worker)
            return super().next_task(worker)

        def accept(self, task, outcome):
            if task.number >= 0:
                return super().accept(task, outcome)
            self.answers = (*self.answers, (task.number, outcome.batch))
            return ()

    plan, account = Asking(iter(range(3))), Account()
    assert list(Flow(plan, Lanes([["three", "a", "b", "c"]], max, 2), account=account)) == ["a", "b", "c"]
    assert plan.answers == ((-2, "three"),)
    assert plan.batches == 3
    assert [heard for heard in account.heard if heard[0] == "settle"] == [("settle", i) for i in range(3)]


@pytest.mark.parametrize("at", ["next_task", "accept"])
def test_a_plan_may_call_the_workers_out_of_turn(at):
    """What comes back meanwhile is not lost, and comes in its turn."""

    class Calling(KeyPlan):
        passes_on = False
        called = None

        def ask_all(self):
            if self.called is None and self.batches + self._number > 1:
                self.called = "now"
                self.called = [answer.batch for answer in self.call(["x", "y"])]

        def next_task(self, worker):
            if at == "next_task":
                self.ask_all()
            return super().next_task(worker)

        def accept(self, task, outcome):
            if at == "accept":
                self.ask_all()
            return super().accept(task, outcome)

    plan, heard = Calling(iter(range(6))), Account()
    flow = Flow(plan, Echo([[], []], max, 4), account=heard)
    assert list(flow) == list(range(6))
    assert plan.called == ["x", "y"]
    assert [keys for what, *keys in heard.heard[:-1] if what == "settle"] == [[i] for i in range(6)]


def test_nobody_can_be_called_without_a_flow_and_a_plan_keeps_none_alive():
    plan = KeyPlan(iter(range(2)))
    with pytest.raises(RuntimeError, match="must be run by a flow"):
        plan.call(["x"])
    flow = Flow(plan, Lanes([list("ab")], max, 2))
    there = weakref.ref(flow)
    gc.disable()
    try:
        del flow
        assert there() is None
    finally:
        gc.enable()
    with pytest.raises(RuntimeError, match="must be run by a flow"):
        plan.call(["x"])


def test_samples_and_tasks_are_counted_for_the_reports():
    class Run:
        samples = n_tasks = 0

        def count(self, n_batches, n_samples):
            self.samples += n_samples

    run, bads = Run(), (bad(0),)
    lines = [["a", lambda n: Finished(n, "b", bads), lambda n: Skipped(n, bads), "d"]]
    flow = Flow(KeyPlan(iter([[0, 1], [2, 3], [4], [5, 6, 7]])), Lanes(lines, max, 2), run=run)
    assert [(batch, run.samples) for batch in flow] == [("a", 2), ("b", 3), ("d", 6)]
    assert run.n_tasks == 3  # that were finished: only these tell how long they took

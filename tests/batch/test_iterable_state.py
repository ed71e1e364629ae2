"""The state of a stream: told by the dataset, by its iterator or by both, and loaded at the moment that each needs."""

from __future__ import annotations

import pytest

from headrace import StateError
from headrace.base.messages import IterableStart
from headrace.batch.iterable_state import begin_stream, stream_state


class Both:
    """A dataset and an iterator that each know a state, and note what is called."""

    def __init__(self):
        self.calls = []

    def __iter__(self):
        self.calls.append("iter")
        return Iterator(self.calls)

    def state_dict(self):
        return {"of": ["dataset"]}

    def load_state_dict(self, state):
        self.calls.append(("dataset", state))


class Iterator:
    def __init__(self, calls):
        self.calls = calls

    def __iter__(self):
        raise AssertionError("an iterator is not begun again")

    def __next__(self):
        raise StopIteration

    def state_dict(self):
        return {"of": ["iterator"]}

    def load_state_dict(self, state):
        self.calls.append(("iterator", state))


class Own(Both):
    """A dataset that is its own iterator."""

    def __iter__(self):
        self.calls.append("iter")
        return self

    __next__ = Iterator.__next__


class Half:
    """Half a protocol is none."""

    def __iter__(self):
        return iter(())

    def state_dict(self):
        return {}


def start(**state):
    return IterableStart(state=state)


def test_a_stream_from_its_beginning():
    dataset = Both()
    begin_stream(dataset)
    begin_stream(dataset, IterableStart())
    assert dataset.calls == ["iter", "iter"]


def test_a_dataset_gets_its_state_before_and_its_iterator_after():
    dataset = Both()
    begin_stream(dataset, start(dataset=1, iterator=2))
    assert dataset.calls == [("dataset", 1), "iter", ("iterator", 2)]


def test_a_dataset_that_is_its_own_iterator_gets_its_state_afterwards_too():
    dataset = Own()
    begin_stream(dataset, start(dataset=1))
    assert dataset.calls[-2:] == ["iter", ("dataset", 1)]
    assert dataset.calls.count("iter") == 1


def test_both_tell():
    dataset = Both()
    assert stream_state(dataset, iter(dataset)) == {"dataset": {"of": ["dataset"]}, "iterator": {"of": ["iterator"]}}
    own = Own()
    assert stream_state(own, iter(own)) == {"dataset": {"of": ["dataset"]}}


@pytest.mark.parametrize("dataset", [[], Half()])
def test_who_knows_none(dataset):
    assert stream_state(dataset, iter(dataset)) is None


def test_states_are_copied_both_ways():
    state = {"of": ["dataset"]}
    dataset = Both()
    dataset.state_dict = lambda: state
    told = stream_state(dataset, iter([]))
    state["of"].append("changed")
    assert told == {"dataset": {"of": ["dataset"]}}
    begin_stream(dataset, start(dataset=state))
    dataset.calls[0][1]["of"].clear()
    assert state["of"] == ["dataset", "changed"]


@pytest.mark.parametrize("saved", [{"dataset": 1}, {"iterator": 1}])
def test_a_state_for_somebody_who_knows_none_is_an_error(saved):
    with pytest.raises(StateError, match=r"has none\. Load it with the class that it was saved with"):
        begin_stream([], start(**saved))

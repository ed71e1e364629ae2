"""Batches of P classes with K samples each: the right shape, no repeats before their time, all classes alike."""

from __future__ import annotations

import json
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader
from headrace.order.class_batches import ClassBatchSampler, EvenGroups
from tests.needs import as_lists, needs_torch


def batches_of(order):
    return [order.batch(i).tolist() for i in range(len(order))]


@st.composite
def samplers(draw):
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=9))
    labels = draw(st.permutations([label for label, size in enumerate(sizes) for _ in range(size)]))
    classes = draw(st.integers(1, len(sizes)))
    batches = draw(st.none() | st.integers(1, 40))
    return ClassBatchSampler(labels, classes, draw(st.integers(1, 7)), batches_per_epoch=batches), labels


@settings(deadline=None, max_examples=60)
@given(sampler=samplers(), epoch=st.integers(0, 3))
def test_batches_are_classes_times_samples_and_everything_is_used_evenly(sampler, epoch):
    sampler, labels = sampler
    size = Counter(labels)
    times_of_class, times_of_sample = Counter(dict.fromkeys(size, 0)), Counter(dict.fromkeys(range(len(labels)), 0))
    for batch in batches_of(sampler.seeded(0, epoch)):
        groups = np.reshape(batch, (sampler.classes_per_batch, sampler.samples_per_class)).tolist()
        classes = [{labels[i] for i in group} for group in groups]
        assert [len(members) for members in classes] == [1] * len(groups)
        chosen = [members.pop() for members in classes]
        assert len(set(chosen)) == len(groups)
        for label, group in zip(chosen, groups, strict=True):
            assert len(set(group)) == min(size[label], sampler.samples_per_class)
            times_of_sample.update(group)
        times_of_class.update(chosen)
        assert max(times_of_class.values()) - min(times_of_class.values()) <= 1
        for label in size:
            times = [times_of_sample[i] for i in range(len(labels)) if labels[i] == label]
            assert max(times) - min(times) <= 1


@settings(deadline=None, max_examples=60)
@given(sampler=samplers(), data=st.data())
def test_a_batch_is_the_same_wherever_reading_begins(sampler, data):
    sampler, _ = sampler
    order = sampler.seeded(7, 1)
    batches = batches_of(order)
    numbers = data.draw(st.permutations(range(len(order))))
    fresh = pickle.loads(pickle.dumps(order))
    assert [fresh.batch(i).tolist() for i in numbers] == [batches[i] for i in numbers]


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 12), size=st.integers(1, 15), key=st.integers(0, 2**128))
def test_even_groups_have_each_item_once_per_round_and_none_twice(n, size, key):
    groups = EvenGroups(n, size, key)
    drawn = [groups.group(i).tolist() for i in range(4 * n)]
    assert all(len(group) == size and len(set(group)) == min(n, size) for group in drawn)
    if size <= n:
        flat = [item for group in drawn for item in group]
        assert all(sorted(flat[i : i + n]) == list(range(n)) for i in range(0, len(flat), n))
    assert Counter(item for group in drawn for item in group) == dict.fromkeys(range(n), 4 * size)
    assert EvenGroups(n, size, key).group(4 * n - 1).tolist() == drawn[-1]


def test_a_far_group_is_found_without_those_before():
    groups = EvenGroups(10, 4, key=1)
    made = []
    shuffled = groups._shuffled
    groups._shuffled = lambda cycle, round_: made.append((cycle, round_)) or shuffled(cycle, round_)
    groups.group(10**15 + 4)
    assert made == [(2 * 10**14, 0), (2 * 10**14, 1)]


def test_every_pair_of_classes_meets():
    labels = np.repeat(np.arange(7), 6)
    sampler = ClassBatchSampler(labels, 3, 2, batches_per_epoch=400)
    pairs = Counter()
    for batch in sampler:
        present = sorted(set(labels[batch].tolist()))
        pairs.update((a, b) for a in present for b in present if a < b)
    mean = 400 * 3 / 21
    assert len(pairs) == 21
    assert all(0.6 * mean < times < 1.4 * mean for times in pairs.values())


def test_seeds_and_epochs_give_other_batches():
    sampler = ClassBatchSampler(np.repeat(np.arange(50), 20), 5, 4)
    seen = {(seed, epoch): batches_of(sampler.seeded(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len({str(batches) for batches in seen.values()}) == 4
    assert batches_of(sampler.seeded(1, 1)) == seen[1, 1]


def test_an_epoch_has_room_for_every_sample_and_uses_it_if_classes_are_equal():
    labels = np.repeat(np.arange(6), 8)
    sampler = ClassBatchSampler(labels, 3, 4)
    assert len(sampler) == 4
    assert sorted(i for batch in sampler for i in batch) == list(range(48))
    assert len(ClassBatchSampler([0, 0, 0, 1, 1], 2, 2)) == 2
    assert len(ClassBatchSampler(labels, 3, 4, batches_per_epoch=9)) == 9


def test_small_classes_are_repeated_or_dropped():
    labels = list("aaaaabbbbbccd")
    repeated = ClassBatchSampler(labels, 4, 5)
    [batch] = {tuple(sorted(Counter(labels[i] for i in batch).items())) for batch in repeated}
    assert batch == (("a", 5), ("b", 5), ("c", 5), ("d", 5))
    dropped = ClassBatchSampler(labels, 2, 5, small_classes="drop")
    assert len(dropped) == 1
    assert sorted(next(iter(dropped))) == list(range(10))


@pytest.mark.parametrize(
    "labels",
    [
        ["x", "y", "x", "y"],
        np.array([2.5, -1.0, 2.5, -1.0]),
        np.array(["2024", "2025"] * 2, "datetime64[Y]"),
        (0, 1, 0, 1),
    ],
    ids=["strings", "floats", "dates", "tuple"],
)
def test_labels_may_be_anything_that_can_be_sorted(labels):
    [batch] = ClassBatchSampler(labels, 2, 2)
    assert sorted(sorted(batch[i : i + 2]) for i in (0, 2)) == [[0, 2], [1, 3]]


@needs_torch
def test_labels_may_be_a_tensor():
    import torch

    [batch] = ClassBatchSampler(torch.tensor([1, 0, 1, 0]), 2, 2)
    assert sorted(sorted(batch[i : i + 2]) for i in (0, 2)) == [[0, 2], [1, 3]]


def test_it_iterates_and_continues_as_its_base_does():
    def make():
        return ClassBatchSampler([0, 1, 2, 3] * 9, 3, 2, seed=5)

    sampler = make()
    expected = [list(sampler), list(sampler)]
    assert expected == [batches_of(sampler.seeded(5, epoch)) for epoch in range(2)]
    stopped = make()
    batches = iter(stopped)
    next(batches), next(batches)
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert list(resumed) == expected[0][2:]
    assert list(resumed) == expected[1]


def test_in_the_loader():
    sampler = ClassBatchSampler([0, 1] * 6, 2, 3)
    loader = DataLoader(range(12), batch_sampler=sampler)
    assert as_lists(loader) == batches_of(sampler.seeded(0, 0))
    assert as_lists(loader) == batches_of(sampler.seeded(0, 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"classes_per_batch": 4}, ValueError, "at most the number of classes, got classes_per_batch=4 and 3 classes."),
        ({"samples_per_class": 3, "small_classes": "drop"}, ValueError, "and 1 classes, 2 smaller ones dropped"),
        ({"classes_per_batch": 0}, ValueError, "classes_per_batch must be at least 1, got 0"),
        ({"samples_per_class": 1.5}, TypeError, "samples_per_class must be an int, got 1.5"),
        ({"batches_per_epoch": 0}, ValueError, "batches_per_epoch must be at least 1, got 0"),
        ({"small_classes": "fill"}, ValueError, "small_classes must be 'repeat' or 'drop', got 'fill'"),
        ({"labels": [[0, 1], [2, 3]]}, ValueError, r"one label per sample, got an array of shape \(2, 2\)"),
        ({"labels": []}, ValueError, "and 0 classes"),
        ({"seed": "x"}, TypeError, "seed must be an int"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ClassBatchSampler(**{"labels": [0, 0, 0, 1, 2], "classes_per_batch": 2, "samples_per_class": 2, **arguments})

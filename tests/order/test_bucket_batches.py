"""Batches by length: every sample once, within the limits, little padding, and random all the same."""

from __future__ import annotations

import json
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, pad_collate
from headrace.order.batch_order_sampler import BatchOrderSampler
from headrace.order.bucket_batches import BucketBatchSampler, sample_lengths
from tests.engines.jobs import start_helpers_of_multiprocessing
from tests.needs import needs_torch

SKEWED = np.random.default_rng(0).lognormal(4, 0.8, 6000).astype(np.int64) + 1


@pytest.fixture(autouse=True, scope="module")
def _helpers_of_multiprocessing():
    start_helpers_of_multiprocessing()


def batches_of(order):
    return [order.batch(i).tolist() for i in range(len(order))]


def padding_share(batches, lengths):
    """How much of the padded batches is padding."""
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return 1 - sum(lengths[i] for batch in batches for i in batch) / padded


@st.composite
def samplers(draw, shuffle=(False, True)):
    lengths = draw(st.lists(st.integers(0, 30), max_size=120))
    batch_size = draw(st.none() | st.integers(1, 9))
    max_tokens = draw(st.integers(1, 90) if batch_size is None else st.none() | st.integers(1, 90))
    return BucketBatchSampler(
        lengths,
        batch_size,
        max_tokens=max_tokens,
        window=draw(st.none() | st.integers(1, 50)),
        shuffle=draw(st.sampled_from(shuffle)),
        drop_last=max_tokens is None and draw(st.booleans()),
        oversized="alone",
        seed=draw(st.integers(-3, 2**70)),
    )


@settings(deadline=None, max_examples=60)
@given(sampler=samplers(), epoch=st.integers(0, 5))
def test_every_sample_comes_once_within_the_limits(sampler, epoch):
    order = sampler.seeded(sampler.seed, epoch)
    batches = batches_of(order)
    n = len(sampler.lengths)
    indices = [i for batch in batches for i in batch]
    dropped = n % sampler.batch_size if sampler.drop_last else 0
    assert len(set(indices)) == len(indices) == n - dropped
    assert set(indices) <= set(range(n))
    for batch in batches:
        assert len(batch) > 0
        longest = max(sampler.lengths[i] for i in batch)
        assert sampler.max_tokens is None or len(batch) * longest <= sampler.max_tokens or len(batch) == 1
        assert sampler.batch_size is None or len(batch) <= sampler.batch_size
    if sampler.max_tokens is None:
        assert [len(batch) for batch in batches[:-1]] == [sampler.batch_size] * (len(batches) - 1)


@settings(deadline=None, max_examples=60)
@given(sampler=samplers(), epoch=st.integers(0, 3), data=st.data())
def test_a_batch_is_the_same_wherever_reading_begins(sampler, epoch, data):
    order = sampler.seeded(5, epoch)
    batches = batches_of(order)
    numbers = data.draw(st.permutations(range(len(order))))
    fresh = pickle.loads(pickle.dumps(order))
    assert [fresh.batch(i).tolist() for i in numbers] == [batches[i] for i in numbers]
    assert len(pickle.loads(pickle.dumps(order))) == len(batches)


@settings(deadline=None, max_examples=60)
@given(sampler=samplers(shuffle=[False]))
def test_unshuffled_windows_hold_the_samples_of_their_positions_longest_first(sampler):
    batches = iter(sampler)
    n = len(sampler.lengths) - (len(sampler.lengths) % sampler.batch_size if sampler.drop_last else 0)
    for start in range(0, n, sampler.window):
        window = range(start, min(start + sampler.window, n))
        expected = sorted(window, key=lambda i: -sampler.lengths[i])
        seen = []
        while len(seen) < len(window):
            seen += next(batches)
        assert seen == expected
    assert next(batches, None) is None


def test_memory_holds_one_window_and_counting_goes_in_parts(monkeypatch):
    monkeypatch.setattr("headrace.order.bucket_batches._COUNTED_AT_ONCE", 100)
    order = BucketBatchSampler(SKEWED, max_tokens=2000, window=30).seeded(0, 0)
    most = []
    by_length = order._by_length
    order._by_length = lambda start, windows, size: most.append(windows * size) or by_length(start, windows, size)
    n_batches = len(order)
    assert max(most) <= 100
    assert sum(most) == len(SKEWED)
    most.clear()
    assert sum(len(order.batch(i)) for i in range(n_batches)) == len(SKEWED)
    assert most == [30] * (len(SKEWED) // 30)  # each window is made once


def test_little_is_padded():
    random = np.random.default_rng(1).permutation(len(SKEWED)).reshape(-1, 30).tolist()
    at_random = padding_share(random, SKEWED)
    assert at_random > 0.6
    assert padding_share(BucketBatchSampler(SKEWED, 30), SKEWED) < 0.1 * at_random
    assert padding_share(BucketBatchSampler(SKEWED, 30, window=300), SKEWED) < 0.6 * at_random
    batches = list(BucketBatchSampler(SKEWED, max_tokens=4000))
    assert padding_share(batches, SKEWED) < 0.1 * at_random
    assert len(batches) < 1.1 * SKEWED.sum() / 4000


def test_seeds_and_epochs_give_other_batches_and_the_same_ones_the_same():
    sampler = BucketBatchSampler(SKEWED, 16)
    seen = {(seed, epoch): batches_of(sampler.seeded(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert batches_of(sampler.seeded(1, 0)) == seen[1, 0]
    sets = [{frozenset(batch) for batch in batches} for batches in seen.values()]
    for i, one in enumerate(sets):
        for other in sets[:i]:
            assert len(one & other) < 0.01 * len(one)


def test_the_lengths_of_neighbouring_batches_have_nothing_to_do_with_each_other():
    longest = np.array([SKEWED[batch].max() for batch in BucketBatchSampler(SKEWED, 4)])
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.1
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.1


def test_equal_lengths_are_in_random_order():
    indices = np.concatenate(BucketBatchSampler(np.full(1000, 7), 10).seeded(0, 0)._batches_of(0))
    assert abs(np.corrcoef(indices, np.arange(len(indices)))[0, 1]) < 0.15


@pytest.mark.parametrize("window", [20, None])
def test_only_the_last_batch_of_the_epoch_is_short(window):
    sampler = BucketBatchSampler(SKEWED[:103], 10, window=window)
    assert [[len(batch) for batch in sampler] for _ in range(5)] == [[10] * 10 + [3]] * 5


def test_other_samples_are_dropped_in_each_epoch():
    sampler = BucketBatchSampler(np.arange(11), 4, drop_last=True)
    dropped = {frozenset(range(11)) - {i for batch in sampler for i in batch} for _ in range(8)}
    assert {len(samples) for samples in dropped} == {3}
    assert len(dropped) > 4


def test_without_shuffling_every_epoch_is_the_same():
    sampler = BucketBatchSampler([1, 5, 3, 2, 9, 4, 7], 2, window=4, shuffle=False)
    assert list(sampler) == list(sampler) == [[1, 2], [3, 0], [4, 6], [5]]


def test_the_window_is_about_a_hundred_batches_and_whole_ones():
    assert BucketBatchSampler(SKEWED, 16).window == 1600
    assert BucketBatchSampler(SKEWED, 16, window=17).window == 32
    assert BucketBatchSampler([10] * 5, max_tokens=50).window == 500


def test_both_limits_hold_together():
    batches = list(BucketBatchSampler([1] * 9 + [10] * 4, 5, max_tokens=20, shuffle=False))
    assert batches == [[9, 10], [11, 12], [0, 1, 2, 3, 4], [5, 6, 7, 8]]


def test_what_is_too_long_is_refused_or_alone_and_never_lost():
    with pytest.raises(
        ValueError, match=r"got max_tokens=10, and 2 longer samples: sample 2 has 99.*oversized='alone'"
    ):
        BucketBatchSampler([5, 11, 99, 4], max_tokens=10)
    sampler = BucketBatchSampler([5, 11, 99, 4], max_tokens=10, oversized="alone", shuffle=False)
    assert list(sampler) == [[2], [1], [0, 3]]


@pytest.mark.parametrize("limits", [{"batch_size": 4}, {"max_tokens": 9}], ids=["batch_size", "max_tokens"])
def test_no_samples_give_no_batches(limits):
    sampler = BucketBatchSampler([], **limits)
    assert len(sampler) == 0
    assert list(sampler) == list(sampler) == []


# What every sampler of this kind does.


def test_each_iteration_is_the_next_epoch_unless_told():
    sampler = BucketBatchSampler(SKEWED[:200], 8, seed=3)
    epochs = [batches_of(sampler.seeded(3, epoch)) for epoch in range(8)]
    assert [list(sampler), list(sampler)] == epochs[:2]
    sampler.set_epoch(6)
    assert [list(sampler), list(sampler)] == epochs[6:]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]


def test_iterators_that_are_not_used_begin_no_epoch():
    sampler = BucketBatchSampler(SKEWED[:200], 8)
    iter(sampler), iter(sampler)
    assert list(sampler) == batches_of(sampler.seeded(0, 0))


def test_an_epoch_that_was_left_is_not_taken_up_again():
    sampler = BucketBatchSampler(SKEWED[:200], 8)
    next(iter(sampler))
    assert list(sampler) == batches_of(sampler.seeded(0, 1))


def test_the_length_is_that_of_the_epoch_at_hand():
    sampler = BucketBatchSampler(SKEWED[:500], max_tokens=600, window=20, oversized="alone")
    lengths = [len(sampler.seeded(0, epoch)) for epoch in range(4)]
    assert len(set(lengths)) > 1
    for expected in lengths:
        assert len(sampler) == expected
        batches = iter(sampler)
        next(batches)
        assert len(sampler) == expected
        assert 1 + sum(1 for _ in batches) == expected


@pytest.mark.parametrize("limits", [{"batch_size": 8}, {"max_tokens": 900}], ids=["batch_size", "max_tokens"])
def test_a_state_continues_with_the_next_batch_at_every_place_and_twice(limits):
    def make():
        return BucketBatchSampler(SKEWED[:64], oversized="alone", seed=1, **limits)

    reference = make()
    expected = [batch for _ in range(3) for batch in reference]
    state = make().state_dict()
    for i, batch in enumerate(expected):
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        assert next(iter(resumed)) == batch
        state = resumed.state_dict()
        resumed.load_state_dict(state)
        rest = [batch for _ in range(3) for batch in resumed]
        assert rest[: len(expected) - i - 1] == expected[i + 1 :]


def test_continuing_makes_no_earlier_window():
    order = BucketBatchSampler(SKEWED, 8, window=80).seeded(0, 0)
    made = []
    cut = order._cut
    order._cut = lambda window: made.append(window) or cut(window)
    order.batch(len(order) - 1)
    assert made == [len(SKEWED) // 80 - 1]


def test_set_epoch_keeps_the_place_of_a_state_of_that_epoch():
    sampler = BucketBatchSampler(SKEWED[:64], 8)
    sampler.load_state_dict({"seed": 0, "epoch": 2, "batch": 5})
    sampler.set_epoch(2)
    assert list(sampler) == batches_of(sampler.seeded(0, 2))[5:]
    sampler.set_epoch(2)
    assert list(sampler) == batches_of(sampler.seeded(0, 2))
    sampler.load_state_dict({"seed": 0, "epoch": 2, "batch": 5})
    sampler.set_epoch(3)
    assert list(sampler) == batches_of(sampler.seeded(0, 3))


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"seed": 1, "epoch": 0, "batch": 0}, ValueError, "of the same seed, got seed=1"),
        ({"seed": 0, "epoch": 1, "batch": 8}, ValueError, "got batch 8 of epoch 1"),
        ({"seed": 0, "epoch": -1, "batch": 0}, ValueError, "got batch 0 of epoch -1"),
        ({"seed": 0, "epoch": "1", "batch": 0}, TypeError, "epoch must be an int, got '1'"),
        ({"seed": 0, "epoch": 1}, KeyError, "batch"),
    ],
)
def test_a_state_that_cannot_be_ours_is_refused(state, error, message):
    with pytest.raises(error, match=message):
        BucketBatchSampler(SKEWED[:64], 8).load_state_dict(state)


def test_a_sampler_survives_pickling_in_the_middle():
    sampler = BucketBatchSampler(SKEWED[:64], 8)
    batches = iter(sampler)
    next(batches)
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.state_dict() == {"seed": 0, "epoch": 0, "batch": 1}
    assert list(copy) == batches_of(sampler.seeded(0, 1))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "engine": "threads"}], ids=["inline", "threads"])
def test_in_the_loader_each_epoch_counts_once(workers):
    dataset = [[1] * n for n in (3, 1, 5, 2, 4, 6)]
    sampler = BucketBatchSampler(sample_lengths(dataset), 2)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad_collate(), output="numpy", **workers)
    for epoch in range(3):
        expected = [[len(dataset[i]) for i in batch] for batch in batches_of(sampler.seeded(0, epoch))]
        assert [batch.lengths.tolist() for batch in loader] == expected
    assert len(loader) == 3


@needs_torch
@pytest.mark.parametrize("num_workers", [0, 1])
def test_in_torchs_loader_each_epoch_counts_once(num_workers):
    from torch.utils.data import DataLoader as TorchLoader

    sampler = BucketBatchSampler(SKEWED[:20], 6)
    loader = TorchLoader(range(20), batch_sampler=sampler, num_workers=num_workers)
    for epoch in range(2):
        assert [batch.tolist() for batch in loader] == batches_of(sampler.seeded(0, epoch))
    assert len(loader) == 4
    for thread in threading.enumerate():  # torch does not wait for those of its queues
        if thread.name == "QueueFeederThread":
            thread.join()


@needs_torch
def test_it_is_one_of_torchs_samplers_and_takes_tensors():
    import torch

    sampler = BucketBatchSampler(torch.tensor([3, 1, 2]), 2, shuffle=False)
    assert isinstance(sampler, torch.utils.data.Sampler)
    assert list(sampler) == [[0, 2], [1]]


def test_lengths_of_samples_are_read_when_asked_for():
    assert sample_lengths("abc" for _ in range(2)).tolist() == [3, 3]
    samples = {1: "aa", 0: "b"}  # by index, not by iterating
    assert sample_lengths(samples).tolist() == [1, 2]
    assert sample_lengths([(0, "aaa")], lambda sample: len(sample[1])).tolist() == [3]


@pytest.mark.parametrize("lengths", [[[1, 2], [3]], [1.5, 2.5], ["a"], 7, np.ones((2, 2), int), [None]])
def test_lengths_that_are_none_are_refused(lengths):
    with pytest.raises(TypeError, match=r"(?s)one int per sample.*sample_lengths"):
        BucketBatchSampler(lengths, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "batch_size or max_tokens must be given"),
        ({"batch_size": 0}, ValueError, "batch_size should be a positive integer value, but got batch_size=0"),
        ({"batch_size": 2.0}, ValueError, "batch_size should be a positive integer value"),
        ({"max_tokens": 0}, ValueError, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": "9"}, TypeError, "max_tokens must be an int, got '9'"),
        ({"batch_size": 2, "window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"batch_size": 2, "window": 2.5}, TypeError, "window must be an int"),
        ({"batch_size": 2, "drop_last": 1}, ValueError, "drop_last should be a boolean value"),
        ({"max_tokens": 9, "drop_last": True}, ValueError, "drop_last is mutually exclusive with max_tokens"),
        ({"max_tokens": 9, "oversized": "drop"}, ValueError, "oversized must be 'raise' or 'alone', got 'drop'"),
        ({"batch_size": 2, "seed": None}, TypeError, "seed must be an int, got None"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        BucketBatchSampler([1, 2, 3], **arguments)


def test_negative_lengths_and_epochs_are_refused():
    with pytest.raises(ValueError, match="must not be negative, got -2 for sample 1"):
        BucketBatchSampler([1, -2, 3], 2)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        BucketBatchSampler([1], 2).set_epoch(-1)


def test_the_base_class_says_what_to_write():
    with pytest.raises(NotImplementedError, match="BatchOrderSampler must implement seeded"):
        list(BatchOrderSampler())

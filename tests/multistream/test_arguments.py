"""Wrong arguments are told when the loader is made, with what to write instead."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest

from headrace import CollateError
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import Generated, take

TWO = [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an int"),
        ({"seq_len": 0}, ValueError, "seq_len must be at least 1"),
        ({"seq_len": True}, TypeError, "seq_len must be an int"),
        ({"assign": "random"}, ValueError, "assign must be one of 'shuffle', 'partition', 'offset'"),
        ({"batch_first": True}, ValueError, "batch_first=True needs seq_len"),
        ({"seed": 1.5}, TypeError, "seed must be an int"),
        ({"lengths": [1]}, ValueError, "each of the 2 sequences"),
        ({"lengths": [1, -1]}, ValueError, "each of the 2 sequences"),
        ({"lengths": 5}, TypeError, "each sequence, got 5"),
        ({"lengths": [3, 2], "assign": "offset"}, TypeError, "an int"),
        ({"shard": (2, 2)}, ValueError, "shard must be"),
        ({"num_workers": -1}, ValueError, "num_workers option should be non-negative"),
        ({"num_workers": "many"}, TypeError, "num_workers option should be an integer"),
        ({"on_error": "ignore"}, ValueError, "on_error must be"),
        ({"max_errors": -1, "on_error": "skip"}, ValueError, "max_errors must not be negative"),
        ({"on_worker_death": "mourn"}, ValueError, "on_worker_death must be"),
        ({"quarantine": "bad.jsonl"}, ValueError, "quarantine"),
        ({"collate_fn": 3}, TypeError, "collate_fn must be"),
        ({"device": "cpu", "output": "numpy"}, ValueError, "device needs torch"),
        ({"engine": "trains"}, ValueError, "engine must be"),
        ({"batch_size": 3, "assign": "partition"}, ValueError, "1 of 3 positions without an item"),
        ({"batch_size": 3, "assign": "partition", "cycle": False}, ValueError, "1 of 3 positions without an item"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        MultiStreamDataLoader(TWO, **{"batch_size": 2, **arguments})


@pytest.mark.parametrize(
    ("sequences", "kind", "said"),
    [
        ([], ValueError, "at least one sequence, got none"),
        ([[], []], ValueError, "all are empty"),
        (iter(TWO), TypeError, "a list or a dataset of sequences"),
        (7, TypeError, "a list or a dataset of sequences, got int. For one long sequence pass assign='offset'"),
        ([iter([1, 2])], TypeError, "can be read only once"),
        (np.arange(4), TypeError, "got one row. Pass assign='offset'"),
        ({"a": [1]}, TypeError, "A dict is one sequence, made of columns. Pass it in a list"),
    ],
)
def test_what_holds_no_sequences(sequences, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        MultiStreamDataLoader(sequences, 2)


@pytest.mark.parametrize("sequences", [["a.txt"], [b"ab"], [3], [None]])
def test_elements_that_are_no_sequences(sequences):
    said = "read=" if isinstance(sequences[0], (str, bytes)) else "assign='offset'"
    with pytest.raises(TypeError, match=re.escape(said)):
        next(iter(MultiStreamDataLoader(sequences, 2)))


@pytest.mark.parametrize(
    ("sequences", "got"),
    [
        ([[1]], "got 1"),
        ([range(3), range(3)], "got 0"),
        (np.zeros((2, 3)), "0.0"),  # as NumPy writes it
        ([["ab", "c"]], "got 'ab'"),
        (7, "got int"),
        (iter(TWO), "got list_iterator"),
    ],
)
def test_a_batch_size_that_was_forgotten(sequences, got):
    with pytest.raises(TypeError, match=r"Without batch_size, .*Pass batch_size") as raised:
        MultiStreamDataLoader(sequences)
    assert got in str(raised.value)


def test_a_batch_size_that_turns_out_to_have_been_forgotten():
    loader = MultiStreamDataLoader([Generated([1, 2])], num_workers=0)
    with pytest.raises(TypeError, match=r"Without batch_size, .* got 1\. Pass batch_size"):
        next(iter(loader))


@pytest.mark.parametrize("sequences", [TWO, [[1, 2, 3]], [np.arange(2), np.arange(3)], ([1], (2, 3))], ids=repr)
def test_several_sequences_have_no_offsets(sequences):
    with pytest.raises(
        TypeError, match=f"got a list of {len(sequences)} of them. Pass assign='shuffle' or 'partition'"
    ):
        MultiStreamDataLoader(sequences, 2, assign="offset")


def test_items_that_are_lists_of_one_length_have_offsets():
    loader = MultiStreamDataLoader([[1, 2], [3, 4], [5, 6], [7, 8]], 2, assign="offset", output="numpy")
    assert [np.array(part).tolist() for part in next(iter(loader))] == [[1, 5], [2, 6]]


def test_items_of_different_lengths_side_by_side():
    loader = MultiStreamDataLoader([Generated([[1], [2, 3]]), Generated([[4, 5], [6]])], 2)
    with pytest.raises(CollateError, match=r"must have one shape and length.*in read= for instance"):
        next(iter(loader))


@pytest.mark.parametrize("sequence", [[], np.empty((0, 3)), Generated([])])
def test_an_empty_sequence_has_no_offsets(sequence):
    with pytest.raises(ValueError, match="at least one item"):
        MultiStreamDataLoader(sequence, 2, assign="offset")


def test_sequences_that_turn_out_to_be_empty():
    loader = MultiStreamDataLoader([Generated([]), Generated([])], 2)
    with pytest.raises(ValueError, match="all of its sequences are empty"):
        next(iter(loader))
    loader = MultiStreamDataLoader([Generated([]), Generated([])], 2, cycle=False)
    with pytest.raises(ValueError, match="all are empty"):
        next(iter(loader))


def test_lengths_that_are_wrong():
    loader = MultiStreamDataLoader([Generated([1, 2, 3])], 1, lengths=[2])
    with pytest.raises(ValueError, match="Sequence 0 must have 2 items, as lengths says, but has 3"):
        list(islice(loader, 10))


def test_lengths_that_are_told_are_believed():
    sequences = [Generated([0] * n) for n in (6, 1, 2, 3)]
    loader = MultiStreamDataLoader(sequences, 2, lengths=[6, 1, 2, 3], assign="partition", cycle=False)
    assert len(loader) == 6
    assert all(all(batch["mask"]) for batch in take(loader, 100))


def test_targets_of_types_that_do_not_hold_the_ignored_value():
    tokens = np.arange(9, dtype=np.uint16)
    with pytest.raises(CollateError, match="ignore_index=-100, got uint16"):
        next(iter(MultiStreamDataLoader(tokens, 2, assign="offset", targets=True)))
    loader = MultiStreamDataLoader(tokens, 2, assign="offset", targets=True, ignore_index=65535, output="numpy")
    assert [batch.targets.tolist() for batch in islice(loader, 5)] == [[1, 6], [2, 7], [3, 8], [4, 65535], [5, 1]]
    frames = MultiStreamDataLoader([np.arange(2.0)], 1, targets=True)
    assert [batch["targets"] for batch in take(frames, 2)] == [[1.0], [-100.0]]
    words = MultiStreamDataLoader([["a", "b"]], 1, targets=True)
    assert [batch["targets"] for batch in take(words, 3)] == [["b"], [""], ["b"]]

"""Packing: rows of one length, nothing lost at their ends, and what belongs together can be told."""

from __future__ import annotations

import pickle
from collections import namedtuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import CollateError, Collator, DataLoader
from headrace.batch.packing import Packed, lay_out, pack_collate, unpack_sequences
from headrace.frameworks import framework_of
from tests.engines.jobs import start_helpers_of_multiprocessing
from tests.needs import needs_jax, needs_torch

Text = namedtuple("Text", "tokens label")

batches = st.lists(st.integers(0, 25), min_size=1, max_size=12).map(
    lambda sizes: np.split(np.arange(1, sum(sizes) + 1), np.cumsum(sizes)[:-1])
)


@pytest.fixture(autouse=True, scope="module")
def _helpers_of_multiprocessing():
    start_helpers_of_multiprocessing()


def as_arrays(packed):
    return Packed(*(None if array is None else np.asarray(array) for array in packed))


@settings(deadline=None, max_examples=60)
@given(sequences=batches, length=st.integers(1, 12), split=st.booleans(), dtype=st.sampled_from(["int64", "uint16"]))
def test_what_was_packed_can_be_unpacked(sequences, length, split, dtype):
    packed = pack_collate(length, split=split, padding_value=9)([s.astype(dtype) for s in sequences])
    expected = [s.tolist() for s in sequences if len(s)]
    assert [s.tolist() for s in unpack_sequences(packed)] == expected
    tokens, segments, _, targets, borders = as_arrays(packed)
    assert tokens.dtype == dtype
    assert tokens.shape[1] == length
    assert (tokens[segments == 0] == 9).all()
    assert targets is None
    assert borders is None


@settings(deadline=None, max_examples=60)
@given(sequences=batches, length=st.integers(1, 12))
def test_split_sequences_fill_all_rows_but_the_last(sequences, length):
    packed = as_arrays(pack_collate(length)(sequences))
    n = sum(map(len, sequences))
    assert packed.tokens.shape == (-(-n // length), length)
    assert packed.tokens.ravel()[:n].tolist() == list(range(1, n + 1))
    assert (packed.segments.ravel() > 0).tolist() == [i < n for i in range(packed.segments.size)]


@settings(deadline=None, max_examples=60)
@given(sequences=batches, length=st.integers(1, 30))
def test_whole_sequences_stay_whole_and_no_two_rows_could_be_one(sequences, length):
    segments = as_arrays(pack_collate(length, split=False)(sequences)).segments
    for i, sequence in enumerate(sequences):
        rows = (segments == i + 1).any(axis=1).sum()
        assert rows == -(-len(sequence) // length)
    used = (segments > 0).sum(axis=1)
    assert all(used[a] + used[b] > length for a in range(len(used)) for b in range(a))


@settings(deadline=None, max_examples=60)
@given(sequences=batches, length=st.integers(1, 12), split=st.booleans(), ignore_index=st.sampled_from([-100, -1]))
def test_targets_are_the_next_tokens_of_the_sequence_also_over_the_end_of_a_row(sequences, length, split, ignore_index):
    packed = as_arrays(pack_collate(length, split=split, targets=True, ignore_index=ignore_index)(sequences))
    following = {int(a): int(b) for s in sequences for a, b in pairwise(s)}
    expected = [following.get(token, ignore_index) for token in packed.tokens.ravel().tolist()]
    assert packed.targets.ravel().tolist() == expected


@settings(deadline=None, max_examples=60)
@given(sequences=batches, length=st.integers(1, 12), split=st.booleans())
def test_positions_and_borders_are_those_of_the_pieces(sequences, length, split):
    packed = as_arrays(pack_collate(length, split=split, cu_seqlens=True)(sequences))
    assert packed.cu_seqlens.dtype == np.int32
    assert packed.cu_seqlens[0] == 0
    assert packed.cu_seqlens[-1] == packed.tokens.size
    segments, positions = packed.segments.ravel(), packed.positions.ravel()
    for start, end in pairwise(packed.cu_seqlens):
        assert 0 < end - start <= length
        assert len(set(segments[start:end].tolist())) == 1
        is_padding = segments[start] == 0
        assert positions[start:end].tolist() == [0 if is_padding else i for i in range(end - start)]
    new = [i for i in range(1, packed.tokens.size) if i % length == 0 or segments[i] != segments[i - 1]]
    assert packed.cu_seqlens[1:-1].tolist() == new


def test_all_of_it_by_hand():
    packed = as_arrays(pack_collate(4, targets=True, cu_seqlens=True)([[1, 2, 3], [4, 5, 6], [7]]))
    assert packed.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert packed.segments.tolist() == [[1, 1, 1, 2], [2, 2, 3, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert packed.targets.tolist() == [[2, 3, -100, 5], [6, -100, -100, -100]]
    assert packed.cu_seqlens.tolist() == [0, 3, 4, 6, 7, 8]
    whole = as_arrays(pack_collate(4, split=False, cu_seqlens=True)([[1, 2], [4, 5, 6], [7], [8, 9]]))
    assert whole.tokens.tolist() == [[4, 5, 6, 7], [1, 2, 8, 9]]
    assert whole.segments.tolist() == [[2, 2, 2, 3], [1, 1, 4, 4]]


def test_only_what_is_longer_than_a_row_is_cut():
    packed = as_arrays(pack_collate(4, split=False)([[1, 2, 3], list(range(11, 20))]))
    assert packed.tokens.tolist() == [[11, 12, 13, 14], [15, 16, 17, 18], [1, 2, 3, 19]]


def test_the_layout_is_a_function_of_sizes_alone():
    assert [tuple(piece) for piece in lay_out([3, 2], 4, split=True)] == [
        (0, 0, 3, 0, 0),
        (1, 0, 1, 0, 3),
        (1, 1, 1, 1, 0),
    ]
    assert [tuple(piece) for piece in lay_out([3, 2], 4, split=False)] == [(0, 0, 3, 0, 0), (1, 0, 2, 1, 0)]


def test_no_tokens_give_no_rows():
    packed = as_arrays(pack_collate(4, targets=True, cu_seqlens=True)([[], []]))
    assert packed.tokens.shape == packed.targets.shape == (0, 4)
    assert packed.cu_seqlens.tolist() == [0]
    assert unpack_sequences(packed) == []


def test_an_empty_list_does_not_change_the_type_of_the_others():
    packed = pack_collate(4)([np.array([1, 2], np.uint16), []])
    assert np.asarray(packed.tokens).dtype == np.uint16


@pytest.mark.parametrize(
    ("sample", "field"),
    [({"x": [1, 2], "y": 5}, "x"), (("a", [1, 2]), 1), (Text([1, 2], "a"), "tokens")],
    ids=["dict", "tuple", "named tuple"],
)
def test_a_field_of_the_samples_is_packed_and_the_others_are_not_lost_unasked(sample, field):
    with pytest.raises(CollateError, match=r"samples also have \[.*\].*drop_others=True"):
        pack_collate(3, field=field)([sample, sample])
    packed = as_arrays(pack_collate(3, field=field, drop_others=True)([sample, sample]))
    assert packed.tokens.tolist() == [[1, 2, 1], [2, 0, 0]]


def test_a_field_that_is_alone_needs_no_permission():
    assert as_arrays(pack_collate(2, field="x")([{"x": [1, 2]}])).tokens.tolist() == [[1, 2]]


@pytest.mark.parametrize("sample", [{"tokens": [1]}, ([1],), Text([1], 0), [1]])
def test_a_wrong_field_name_is_named(sample):
    with pytest.raises(KeyError, match=r"pack_collate\(field='token'\) names a field that a sample lacks"):
        pack_collate(4, field="token", drop_others=True)([sample])


@pytest.mark.parametrize(
    "sample",
    [{"x": [1]}, ([1], 2), (1, 2), 3, "text", [[1, 2]], [[1], [2, 3]], [1.5], [True], ["a"], np.ones(3), None],
)
def test_what_is_no_sequence_of_ints_is_refused(sample):
    with pytest.raises(CollateError, match=r"must get a sequence of ints per sample.*pass field="):
        pack_collate(4)([sample])


def test_a_padding_value_that_does_not_fit_the_type_is_refused():
    with pytest.raises(CollateError, match="padding_value=-1 does not fit uint16"):
        pack_collate(4, padding_value=-1)([np.array([1], np.uint16)])


@pytest.mark.parametrize(
    ("length", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError), ([[1]], TypeError)]
)
def test_a_wrong_length_is_refused(length, error):
    with pytest.raises(error, match="length must be"):
        pack_collate(length)


@pytest.mark.parametrize(
    "output", ["numpy", pytest.param("torch", marks=needs_torch), pytest.param("jax", marks=needs_jax)]
)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=["inline", "processes"])
def test_packing_follows_the_output_of_the_loader(output, workers):
    collate = pack_collate(4, targets=True, cu_seqlens=True)
    loader = DataLoader([[1], [2, 3, 4], [5]], batch_size=3, collate_fn=collate, output=output, **workers)
    [batch] = loader
    assert type(batch) is Packed
    assert {type(array).__module__.partition(".")[0] for array in batch} <= {output, "jaxlib"}
    assert as_arrays(batch).tokens.tolist() == [[1, 2, 3, 4], [5, 0, 0, 0]]
    assert as_arrays(batch).targets.tolist() == [[-100, 3, 4, -100], [-100] * 4]
    assert [s.tolist() for s in unpack_sequences(batch)] == [[1], [2, 3, 4], [5]]


@needs_torch
def test_tensors_are_sequences():
    import torch

    packed = pack_collate(3)([torch.tensor([1, 2], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)])
    assert packed.tokens.dtype == torch.int32
    assert packed.tokens.tolist() == [[1, 2, 3]]
    assert packed.positions.dtype == torch.int64


def test_rows_lie_in_the_memory_that_the_collator_gives():
    given = []

    def allocate(shape, dtype):
        given.append(np.empty(shape, dtype))
        return given[-1]

    packed = pack_collate(4, targets=True).collate_into([[1, 2], [3]], Collator(framework_of("numpy", allocate)))
    assert [array is memory for array, memory in zip(packed[:4], given, strict=True)] == [True] * 4


def test_a_pack_collate_survives_pickling():
    collate = pickle.loads(pickle.dumps(pack_collate(2, field="x")))
    assert as_arrays(collate([{"x": [1]}])).tokens.tolist() == [[1, 0]]

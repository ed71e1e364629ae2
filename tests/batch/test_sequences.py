"""Padding and packing: nothing is lost, wherever in the sample the sequences lie, and back again."""

from __future__ import annotations

import pickle
from collections import namedtuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import CollateError, Collator, DataLoader, Padded, pad_collate
from headrace.batch.sequences import Packed, lay_out, pack_collate, unpack_sequences
from headrace.frameworks import framework_of
from tests.engines.jobs import start_helpers_of_multiprocessing
from tests.needs import as_lists, needs_jax, needs_torch

Text = namedtuple("Text", "tokens label")


def values(batch):
    return np.asarray(batch.values if isinstance(batch, Padded) else batch).tolist()


def lengths(batch):
    return np.asarray(batch.lengths).tolist()


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    trailing=st.sampled_from([(), (2,), (2, 3)]),
    dtype=st.sampled_from(["int64", "float32", "uint8"]),
    padding_value=st.sampled_from([0, 1, 9]),
    batch_first=st.booleans(),
    sort=st.booleans(),
    multiple_of=st.integers(1, 4),
)
def test_what_was_padded_can_be_unpadded(sizes, trailing, dtype, padding_value, batch_first, sort, multiple_of):
    sequences = [np.full((size, *trailing), i + 1).astype(dtype) for i, size in enumerate(sizes)]
    collate = pad_collate(padding_value=padding_value, batch_first=batch_first, sort=sort, multiple_of=multiple_of)
    batch = collate(list(sequences))
    array = np.asarray(batch.values)
    rows = array if batch_first else array.swapaxes(0, 1)
    expected = sorted(sequences, key=len, reverse=True) if sort else sequences
    assert array.dtype == dtype
    assert rows.shape == (len(sizes), -(-max(sizes) // multiple_of) * multiple_of, *trailing)
    assert lengths(batch) == [len(sequence) for sequence in expected]
    for row, sequence in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(row[: len(sequence)], sequence)
        assert (row[len(sequence) :] == padding_value).all()


@needs_torch
@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", "bool"]),
    batch_first=st.booleans(),
    padding_value=st.sampled_from([0, 1]),
)
def test_padding_equals_torchs_pad_sequence(sizes, dtype, batch_first, padding_value):
    import torch

    sequences = [torch.arange(size * 2).reshape(size, 2).to(getattr(torch, dtype)) for size in sizes]
    batch = pad_collate(batch_first=batch_first, padding_value=padding_value, lengths=False)(sequences)
    expected = torch.nn.utils.rnn.pad_sequence(sequences, batch_first, padding_value)
    assert batch.dtype == expected.dtype
    assert torch.equal(batch, expected)


@needs_torch
def test_gradients_flow_through_padding():
    import torch

    short, long = torch.ones(1, requires_grad=True), torch.ones(3, requires_grad=True)
    batch = pad_collate(multiple_of=4)([short, long])
    assert batch.values.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    batch.values.sum().backward()
    assert (short.grad.tolist(), long.grad.tolist()) == ([1], [1, 1, 1])


def test_lists_of_numbers_are_sequences():
    batch = pad_collate()([[1, 2, 3], [4]])
    assert (values(batch), lengths(batch)) == ([[1, 2, 3], [4, 0, 0]], [3, 1])
    assert values(pad_collate(padding_value=-1)([[1.5], [2.5, 3.5]])) == [[1.5, -1], [2.5, 3.5]]
    assert values(pad_collate()([[[1, 2]], [[3, 4], [5, 6]]])) == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]


@pytest.mark.parametrize("samples", [[[1, 2], []], [[], [1, 2]]])
def test_an_empty_list_does_not_change_the_type_of_the_others(samples):
    batch = pad_collate()(samples)
    assert str(batch.values.dtype).removeprefix("torch.") == "int64"
    assert sorted(lengths(batch)) == [0, 2]


def test_all_sequences_empty():
    batch = pad_collate()([np.zeros((0, 3)), np.zeros((0, 3))])
    assert np.asarray(batch.values).shape == (2, 0, 3)
    assert lengths(batch) == [0, 0]


def test_without_lengths_the_values_stand_alone():
    batch = pad_collate(lengths=False)([{"x": [1, 2]}, {"x": [3]}])
    assert np.asarray(batch["x"]).tolist() == [[1, 2], [3, 0]]


def test_everything_else_is_collated_as_by_default():
    batch = pad_collate()([("a", [1, 2], 0.5), ("b", [3], 1.5)])
    assert tuple(batch[0]) == ("a", "b")
    assert type(batch[1]) is Padded
    assert np.asarray(batch[2]).tolist() == [0.5, 1.5]


def test_nested_fields_by_path():
    samples = [{"text": {"tokens": np.ones(n), "mask": np.ones(2)}, "other": np.ones(3), "label": n} for n in (1, 3, 2)]
    batch = pad_collate(fields=[("text", "tokens")], sort=True)(samples)
    assert np.asarray(batch["text"]["tokens"].values).shape == (3, 3)
    assert lengths(batch["text"]["tokens"]) == [3, 2, 1]
    assert np.asarray(batch["text"]["mask"]).shape == (3, 2)
    assert np.asarray(batch["other"]).shape == (3, 3)
    assert np.asarray(batch["label"]).tolist() == [3, 2, 1]


def test_fields_of_tuples_and_named_tuples():
    batch = pad_collate(fields=[1])([(np.ones(2), np.ones(1)), (np.ones(2), np.ones(3))])
    assert np.asarray(batch[0]).shape == (2, 2)
    assert np.asarray(batch[1].values).shape == (2, 3)
    batch = pad_collate(fields=["tokens"], sort=True)([Text([1], "a"), Text([1, 2], "b")])
    assert type(batch) is Text
    assert values(batch.tokens) == [[1, 2], [1, 0]]
    assert tuple(batch.label) == ("b", "a")


def test_a_field_that_is_not_named_is_stacked_and_must_fit():
    with pytest.raises(CollateError, match=r"In the field sample\['b'\]: stack expects"):
        pad_collate(fields=["a"])([{"a": np.ones(1), "b": np.ones(n)} for n in (1, 2)])


@pytest.mark.parametrize("samples", [[{"tokens": [1]}], [([1],)], [Text([1], 0)]], ids=["dict", "tuple", "named"])
def test_a_wrong_field_name_is_named(samples):
    with pytest.raises(KeyError, match=r"pad_collate\(fields=…\) names \('token',\), which a sample lacks"):
        pad_collate(fields=["token"])(samples)


def test_a_field_counted_from_the_end_is_refused_and_not_passed_by():
    with pytest.raises(ValueError, match="counted from the front"):
        pad_collate(fields=[-1])


def test_a_single_field_may_be_named_without_a_list():
    batch = pad_collate(fields="tokens")([{"tokens": [1, 2]}, {"tokens": [3]}])
    assert as_lists(batch["tokens"].values) == [[1, 2], [3, 0]]


def test_a_padding_value_that_does_not_fit_the_type_is_refused():
    with pytest.raises(CollateError, match=r"padding_value=0\.5"):
        pad_collate(padding_value=0.5)([[1, 2], [3]])
    assert np.isnan(as_lists(pad_collate(padding_value=float("nan"))([[1.0, 2.0], [3.0]]).values)[1][1])


def test_sorting_is_stable_and_leaves_the_list_alone():
    samples = [("a", [1]), ("b", [1, 2]), ("c", [3]), ("d", [4, 5])]
    given = list(samples)
    assert tuple(pad_collate(sort=True)(given)[0]) == ("b", "d", "a", "c")
    assert given == samples


def test_what_cannot_be_padded_says_so():
    with pytest.raises(CollateError, match=r"first dimension only, but their shapes are \(2, 3\), \(2, 4\)"):
        pad_collate()([np.ones((2, 3)), np.ones((2, 4))])
    with pytest.raises(CollateError, match=r"In the field sample\['n'\]: a padded field must be a sequence.*got 1"):
        pad_collate(fields=["n"])([{"n": 1}, {"n": 2}])
    with pytest.raises(CollateError, match=r"sort=True\) must find a sequence"):
        pad_collate(sort=True)([1, 2])
    with pytest.raises(ValueError, match="multiple_of must be at least 1, got 0"):
        pad_collate(multiple_of=0)


def test_ragged_lists_in_a_sample_are_refused_in_our_words():
    with pytest.raises(CollateError):
        pad_collate()([[[1, 2], [3]], [[4, 5]]])


def test_padding_follows_the_output_of_the_loader():
    loader = DataLoader([[1], [2, 3]], batch_size=2, collate_fn=pad_collate(), output="numpy")
    (batch,) = loader
    assert type(batch) is Padded
    assert type(batch.values) is type(batch.lengths) is np.ndarray
    collate = pad_collate()
    assert type(collate.collate_into([[1]], Collator(framework_of("numpy"))).values) is np.ndarray


def test_a_pad_collate_survives_pickling():
    collate = pickle.loads(pickle.dumps(pad_collate(fields=["x"], multiple_of=3)))
    assert values(collate([{"x": [1]}])["x"]) == [[1, 0, 0]]


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


def test_an_empty_list_does_not_change_the_type_of_the_others_in_packing():
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
def test_a_wrong_field_name_is_named_in_packing(sample):
    with pytest.raises(KeyError, match=r"pack_collate\(field='token'\) names a field that a sample lacks"):
        pack_collate(4, field="token", drop_others=True)([sample])


@pytest.mark.parametrize(
    "sample",
    [{"x": [1]}, ([1], 2), (1, 2), 3, "text", [[1, 2]], [[1], [2, 3]], [1.5], [True], ["a"], np.ones(3), None],
)
def test_what_is_no_sequence_of_ints_is_refused(sample):
    with pytest.raises(CollateError, match=r"must get a sequence of ints per sample.*pass field="):
        pack_collate(4)([sample])


def test_a_padding_value_that_does_not_fit_the_type_is_refused_in_packing():
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

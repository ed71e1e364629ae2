"""Padding: each batch to its own longest sequence, wherever in the sample it lies, and back again."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import CollateError, Collator, DataLoader, Padded, pad_collate
from headrace.frameworks import framework_of
from tests.needs import as_lists, needs_torch

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

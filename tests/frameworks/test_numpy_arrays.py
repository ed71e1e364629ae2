"""Stacking, padding and gathering with NumPy, which the other frameworks build on."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import CollateError
from headrace.frameworks.numpy_arrays import NumpyArrays, gather_rows, join_rows, pad_arrays


def test_rows_are_joined_if_shape_and_type_agree():
    rows = [np.arange(6).reshape(2, 3) + i for i in range(3)]
    np.testing.assert_array_equal(join_rows(rows, np.empty), np.stack(rows))
    np.testing.assert_array_equal(join_rows([np.asfortranarray(row) for row in rows], np.empty), np.stack(rows))


@pytest.mark.parametrize(
    "arrays",
    [
        [np.zeros(2), np.zeros(3)],
        [np.zeros((2, 3)), np.zeros((2, 4))],
        [np.zeros(2), np.zeros((2, 1))],
        [np.zeros(2), np.zeros(())],
        [np.zeros(2), np.zeros(2, np.float32)],
        [np.zeros(()), np.zeros(())],
        [np.zeros(2), [0.0, 0.0, 0.0]],
    ],
)
def test_otherwise_a_closer_look_is_needed(arrays):
    assert join_rows(arrays, np.empty) is None


def test_mixed_types_are_promoted_and_mixed_shapes_refused():
    assert NumpyArrays().stack([np.zeros(2, np.int16), np.zeros(2, np.float32)]).dtype == np.float32
    with pytest.raises(CollateError, match=r"\(2,\) at entry 0 and \(3,\) at entry 2"):
        NumpyArrays().stack([np.zeros(2), np.zeros(2), np.zeros(3)])


def test_many_shapes_are_cut_short_in_the_message():
    with pytest.raises(CollateError, match=r"shapes in this batch: \(0,\), .*\(7,\), …\)"):
        NumpyArrays().stack([np.zeros(n) for n in range(20)])


def test_a_stack_never_shares_memory_with_its_samples():
    row = np.arange(3)
    for samples in ([row], [row, row], [row.reshape(3, 1)]):
        assert not np.shares_memory(NumpyArrays().stack(samples), row)


def test_text_arrays_are_stacked():
    assert NumpyArrays().stack([np.array(["a", "b"]), np.array(["c", "d"])]).tolist() == [["a", "b"], ["c", "d"]]


def test_padding_fills_memory_that_was_not_empty():
    def dirty(shape, dtype):
        return np.full(shape, 77, dtype)

    padded, _ = pad_arrays([np.array([1, 2]), np.array([3])], 4, 0, False, dirty)
    assert padded.T.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]


def test_padding_is_the_same_for_batches_that_do_not_fit_the_cache():
    sequences = [np.ones(n) for n in (40_000, 1, 0)]
    padded, lengths = pad_arrays(sequences, 1, -1, True, lambda shape, dtype: np.full(shape, 77, dtype))
    assert padded.nbytes > 2**18
    assert lengths == [40_000, 1, 0]
    assert [row[:n].tolist() + row[n:].tolist() for row, n in zip(padded, lengths, strict=True)] == [
        [1.0] * n + [-1.0] * (40_000 - n) for n in lengths
    ]


def test_large_rows_are_gathered_into_aligned_memory():
    source = np.arange(4 * 600.0).reshape(4, 600)
    gather = gather_rows(source)
    rows = gather(np.array([3, 0, 3]))
    assert rows.ctypes.data % 64 == 0
    assert np.array_equal(rows, source[[3, 0, 3]])
    assert np.array_equal(gather(np.array([-1])), source[[-1]])
    with pytest.raises(IndexError):
        gather(np.array([0, 4]))


def test_gathering_a_strided_source_gives_rows_in_order():
    source = np.asfortranarray(np.arange(12).reshape(4, 3))
    rows = gather_rows(source)(np.array([3, -4]))
    assert rows.tolist() == [[9, 10, 11], [0, 1, 2]]
    assert rows.flags.c_contiguous


def test_a_gathered_row_follows_changes_of_the_source():
    source = np.zeros(3)
    gather = gather_rows(source)
    source[1] = 5
    assert gather(np.array([1])).tolist() == [5]

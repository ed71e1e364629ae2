"""Stacking, padding, gathering, sending and drawing with NumPy, which the other frameworks build on."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from headrace import CollateError
from headrace.frameworks.numpy_arrays import (
    PLAIN_TYPES,
    NumpyArrays,
    NumpyRandom,
    draw_weighted,
    gather_rows,
    join_rows,
    pad_arrays,
    rebuild_array,
    reduce_array,
)


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


@pytest.mark.parametrize("kind", sorted(PLAIN_TYPES))
def test_plain_arrays_are_their_buffer(kind):
    array = np.arange(6).astype(kind).reshape(2, 3)
    function, (buffer, char, shape) = reduce_array(array)
    assert function is rebuild_array
    assert isinstance(buffer, pickle.PickleBuffer)
    back = rebuild_array(buffer, char, shape)
    assert back.dtype == array.dtype
    assert np.shares_memory(back, array)
    assert (back == array).all()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.arange(6)[::2],
        np.arange(6, dtype=">i4"),
        np.array(["a", "bc"]),
        np.array([None, 1], object),
        np.zeros(2, [("x", "i4")]),
        np.arange(3, dtype=np.longdouble),
        np.array(["2001-01-01"], "M8[D]"),
    ],
)
def test_all_others_go_numpys_own_way(array):
    assert reduce_array(array)[0] is not rebuild_array


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_shapes_without_extent(shape):
    array = np.ones(shape)
    function, arguments = reduce_array(array)
    back = function(*arguments)
    assert back.shape == shape
    assert (back == array).all()


GENERATORS = [lambda: np.random.default_rng(4), lambda: np.random.RandomState(4), lambda: np.random.seed(4)]


@pytest.mark.parametrize("make", GENERATORS, ids=["Generator", "RandomState", "global"])
def test_every_generator_is_repeatable_and_moves_on(make):
    def draw_all():
        source = NumpyRandom(make())
        return [
            source.draw_seed(),
            source.permutation(20).tolist(),
            source.permutation(20).tolist(),
            source.integers(1000, 5).tolist(),
            source.integers(1000, 5).tolist(),
            source.weighted(np.ones(50), 5, True).tolist(),
        ]

    first = draw_all()
    assert draw_all() == first
    assert first[1] != first[2]
    assert first[3] != first[4]


@pytest.mark.parametrize("make", GENERATORS, ids=["Generator", "RandomState", "global"])
def test_seeds_use_all_63_bits(make):
    source = NumpyRandom(make())
    seeds = [source.draw_seed() for _ in range(100)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 100
    assert max(seeds) > 2**62


def test_a_fresh_source_takes_one_draw_and_then_leaves_the_generator_alone():
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    fresh = NumpyRandom(one).fresh()
    NumpyRandom(other).draw_seed()
    fresh.permutation(100)
    assert one.bit_generator.state == other.bit_generator.state


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1.0], "not negative"),
        ([1.0, np.nan], "finite"),
        ([1.0, np.inf], "finite"),
        ([0.0, 0.0], "must not all be zero"),
    ],
)
@pytest.mark.parametrize("replacement", [True, False])
def test_wrong_weights_are_refused(weights, words, replacement):
    with pytest.raises(RuntimeError, match=words):
        draw_weighted(rng(), np.array(weights), 1, replacement)


def test_too_many_draws_without_replacement_are_refused():
    with pytest.raises(RuntimeError, match="Cannot draw 3 samples without replacement from 2 that have a weight"):
        draw_weighted(rng(), np.array([1.0, 0.0, 1.0]), 3, False)


def test_weightless_samples_are_never_drawn():
    weights = np.array([0.0, 1e-12, 0.0, 1.0, 0.0])
    for replacement, size in ((True, 10_000), (False, 2)):
        assert set(draw_weighted(rng(), weights, size, replacement).tolist()) <= {1, 3}


class Always:
    """A generator that always draws the same number."""

    def __init__(self, number):
        self.number = number

    def random(self, size):
        return np.full(size, self.number)


def test_both_ends_of_the_draw_stay_within_the_weights():
    weights = np.array([0.0, 0.25, 0.25, 0.0])
    assert draw_weighted(Always(0.0), weights, 1, True).tolist() == [1]
    assert draw_weighted(Always(0.5), weights, 1, True).tolist() == [2]
    assert draw_weighted(Always(np.nextafter(1, 0)), weights, 1, True).tolist() == [2]
    smallest = np.array([5e-324, 0.0])  # times 0.9 is itself again
    assert draw_weighted(Always(0.9), smallest, 1, True).tolist() == [0]


def test_weights_whose_sum_overflows_are_still_drawn_alike():
    draws = draw_weighted(rng(), np.full(4, 1e308), 4000, True)
    assert np.allclose(np.bincount(draws, minlength=4) / 4000, 0.25, atol=0.05)


@pytest.mark.parametrize("replacement", [True, False])
def test_the_first_draw_follows_the_weights_on_any_scale(replacement):
    weights, generator = np.array([1.0, 2.0, 1.0]) * 1e-300, rng()
    first = [int(draw_weighted(generator, weights, 1, replacement)[0]) for _ in range(4000)]
    assert np.allclose(np.bincount(first) / 4000, [0.25, 0.5, 0.25], atol=0.035)

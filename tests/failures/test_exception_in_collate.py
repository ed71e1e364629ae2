"""An exception in `collate_fn`, the user's or headrace's own: the same as one in the dataset."""

from __future__ import annotations

import traceback

import numpy as np

from headrace import CollateError, CollateTypeError, DataLoader
from tests.failures.outcomes import Each, outcomes, told


def refuse_three(samples):
    if 3 in samples:
        raise ArithmeticError("three is odd")
    return np.array(samples)


def test_each_bad_batch_is_one_error_and_the_others_come(engine):
    seen = outcomes(DataLoader(range(8), batch_size=2, collate_fn=refuse_three, **engine))
    assert [seen[0], seen[2], seen[3]] == [[0, 1], [4, 5], [6, 7]]
    assert type(seen[1]) is ArithmeticError
    assert str(seen[1]) == "three is odd"
    assert "in refuse_three" in "".join(traceback.format_exception(seen[1]))


def test_the_error_names_worker_and_batch(workers):
    seen = outcomes(DataLoader(range(8), batch_size=2, collate_fn=refuse_three, **workers))
    assert "worker" in told(seen[1])
    assert "batch 1" in told(seen[1])


def test_no_single_sample_is_blamed_for_the_collation_of_all():
    seen = outcomes(DataLoader(range(8), batch_size=4, collate_fn=refuse_three, num_workers=1))
    assert "sample 3" not in told(seen[0]).partition("Original")[0]  # the last that was fetched, and not at fault
    assert "[0, 1, 2, 3]" in told(seen[0])


def test_shapes_that_do_not_fit_are_told_as_without_workers(engine):
    seen = outcomes(DataLoader(Each(lambda i: np.zeros(1 + i // 5), 8), batch_size=2, **engine))
    assert type(seen[2]) is CollateError
    assert "shape" in str(seen[2])
    assert [np.shape(seen[i]) for i in (0, 1, 3)] == [(2, 1), (2, 1), (2, 2)]


def test_the_field_that_cannot_be_collated_is_still_named(engine):
    loader = DataLoader(Each(lambda i: {"image": 1, "mask": object()}, 2), batch_size=2, **engine)
    (error,) = outcomes(loader)
    assert type(error) is CollateTypeError
    assert error.path == ("mask",)
    assert "sample['mask']" in str(error)


def test_stop_iteration_does_not_end_the_epoch(engine):
    def stop(samples):
        return next(iter([]))

    seen = outcomes(DataLoader(range(3), collate_fn=stop, **engine))
    assert [type(each) for each in seen] == [RuntimeError] * 3

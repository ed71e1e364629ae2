"""Workers that stream the same data are noticed, and nobody else is blamed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from headrace import DataLoader, IterableDataset, get_worker_info
from headrace.base.messages import Exhausted, Failed, Finished
from headrace.engines.duplicates import DuplicateWatch, Fingerprints, fingerprint_of
from tests.engines.jobs import job
from tests.needs import needs_torch

ENGINES = [{"engine": "threads"}, {"multiprocessing_context": "fork"}]


class Unsplit(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


class Split(Unsplit):
    def __iter__(self):
        info = get_worker_info()
        return iter(self.samples[info.id :: info.num_workers])


def load(dataset, engine, epochs=1, **options):
    """The warnings of some epochs, and all batches."""
    loader = DataLoader(dataset, output="numpy", **{"num_workers": 2, "batch_size": 2, **engine, **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [batch for _ in range(epochs) for batch in loader]
    loader.close()
    mine = [warning for warning in caught if "same batches" in str(warning.message)]
    assert {warning.filename for warning in mine} <= {__file__}  # the line of the loop
    return [str(warning.message) for warning in mine], batches


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unsplit_stream_warns_once_and_all_its_data_comes(engine):
    told, batches = load(Unsplit(list(range(20))), engine)
    (text,) = told
    assert "Workers 0 and 1 return the same batches" in text
    assert "Unsplit" in text
    assert "get_worker_info()" in text
    assert sorted(i for batch in batches for i in batch.tolist()) == sorted(list(range(20)) * 2)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_warns_once_in_all_epochs(persistent):
    told, _ = load(Unsplit(list(range(20))), ENGINES[1], epochs=3, persistent_workers=persistent)
    assert len(told) == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Split(list(range(20))), {}),
        (Unsplit([7] * 20), {}),  # constant data: nothing to tell apart
        (Unsplit([1, 2]), {}),  # a single batch
        (Unsplit([]), {}),
        (Unsplit([1, 2, 3]), {"batch_size": 3}),
        (list(range(20)), {}),  # not a stream
    ],
)
def test_nobody_else_is_warned(engine, dataset, options):
    assert load(dataset, engine, **options)[0] == []


def test_one_worker_has_no_twin():
    told, batches = load(Unsplit(list(range(9))), ENGINES[1], num_workers=1)
    assert told == []
    assert len(batches) == 5


# The parts


def stamped(fingerprints, outcome):
    return getattr(fingerprints.stamp(outcome), "fingerprint", None)


def test_the_first_two_batches_of_a_stream_are_stamped():
    fingerprints = Fingerprints(job([], iterable=True), workers=2)
    assert fingerprints.stamp(Failed(0, ValueError())).number == 0
    assert fingerprints.stamp(Exhausted(1)) == Exhausted(1)
    assert stamped(fingerprints, Finished(2, [1])) is not None
    assert stamped(fingerprints, Finished(3, [1])) is not None
    assert stamped(fingerprints, Finished(4, [1])) is None


@pytest.mark.parametrize(("iterable", "workers"), [(False, 2), (True, 1)])
def test_where_there_are_no_twins_nothing_is_stamped(iterable, workers):
    assert stamped(Fingerprints(job([], iterable=iterable), workers), Finished(0, [1])) is None


def test_equal_batches_share_a_fingerprint_and_others_do_not():
    def batches():
        yield [1, 2]
        yield [1, 3]
        yield {"x": np.arange(10_000.0)}
        yield {"x": np.arange(10_000.0) + 1}
        yield {"x": np.arange(10_001.0)}
        yield ["text"]
        yield {"x": np.zeros(10**6)}

    once, again = [[fingerprint_of(batch) for batch in batches()] for _ in range(2)]
    assert once == again
    assert len(set(once)) == len(once)


def test_a_batch_that_cannot_be_read_has_no_fingerprint():
    assert fingerprint_of(lambda: None) is None
    assert fingerprint_of(sample for sample in ()) is None


@needs_torch
def test_equal_tensors_share_a_fingerprint():
    """As a user's own collate_fn makes them."""
    import torch

    assert fingerprint_of([torch.arange(5)]) == fingerprint_of([torch.arange(5)])
    assert fingerprint_of([torch.arange(5)]) != fingerprint_of([torch.arange(5).float()])
    assert fingerprint_of([torch.arange(5)]) != fingerprint_of([torch.arange(1, 6)])


@needs_torch
def test_tensors_in_any_layout_have_fingerprints():
    import torch

    assert fingerprint_of(torch.eye(3).to_sparse()) is not None
    assert fingerprint_of(torch.ones(4, 4).t()) is not None


def test_workers_must_agree_in_two_batches_that_differ():
    watch = DuplicateWatch("data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.tell(0, 1)
        watch.tell(1, 1)
        watch.tell(0, 2)
        watch.tell(1, 3)  # another second batch
        watch.tell(2, 2)
        watch.tell(2, 1)  # the same two in another order
    watch.tell(3, 1)
    with pytest.warns(UserWarning, match="Workers 0 and 3 return the same batches"):
        watch.tell(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.tell(4, 1)
        watch.tell(4, 2)

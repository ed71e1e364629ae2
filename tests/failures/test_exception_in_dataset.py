"""An exception in `__getitem__`: one error for its batch, all the other batches come."""

from __future__ import annotations

import os
import traceback

import pytest

from headrace import DataLoader, RemoteTraceback
from headrace.testing import FlakyDataset
from tests.failures.outcomes import Each, outcomes, told


def test_each_bad_batch_is_one_error_in_its_turn_and_the_others_come(engine):
    loader = DataLoader(FlakyDataset(range(10), bad=[0, 5, 9]), batch_size=2, **engine)
    seen = outcomes(loader)
    assert [type(each) for each in seen] == [ValueError, list, ValueError, list, ValueError]
    assert [each for each in seen if type(each) is list] == [[2, 3], [6, 7]]
    assert [str(error) for error in seen if type(error) is ValueError] == [
        "sample 0 is bad",
        "sample 5 is bad",
        "sample 9 is bad",
    ]


def test_the_epoch_after_an_error_is_whole(engine):
    loader = DataLoader(FlakyDataset(range(6), bad=[3]), batch_size=2, **engine)
    for _ in range(2):
        seen = outcomes(loader)
        assert (seen[0], seen[2]) == ([0, 1], [4, 5])
        assert type(seen[1]) is ValueError


def test_persistent_workers_go_on_after_an_error(workers):
    loader = DataLoader(FlakyDataset(range(6), bad=[3]), batch_size=2, persistent_workers=True, **workers)
    for _ in range(3):
        seen = outcomes(loader)
        assert (seen[0], seen[2]) == ([0, 1], [4, 5])
    loader.close()


def test_the_error_names_worker_batch_and_sample(workers):
    loader = DataLoader(FlakyDataset(range(8), bad=[6]), batch_size=2, shuffle=False, **workers)
    error = outcomes(loader)[3]
    assert "worker" in told(error)
    assert "batch 3, sample 6" in told(error)
    assert "(pid " in told(error)


def test_the_worker_and_its_pid_are_the_ones_that_raised():
    def raise_pid(index):
        raise ValueError(os.getpid())

    errors = outcomes(DataLoader(Each(raise_pid, 4), num_workers=2))
    pids = {error.args[0] for error in errors}
    assert len(pids) == 2
    assert os.getpid() not in pids
    for number, error in enumerate(errors):
        assert f"worker process {number % 2} (pid {error.args[0]}), batch {number}, sample {number}" in told(error)


def test_the_cause_shows_the_original_traceback():
    def deep_inside(index):
        raise LookupError(f"no {index}")

    (error,) = outcomes(DataLoader(Each(deep_inside, 1), num_workers=1))
    assert type(error) is LookupError
    assert type(error.__cause__) is RemoteTraceback
    assert "in deep_inside" in error.__cause__.traceback
    assert 'raise LookupError(f"no {index}")' in error.__cause__.traceback
    shown = "".join(traceback.format_exception(error))
    assert "in deep_inside" in shown
    assert shown.rstrip().endswith("LookupError: no 0")


def test_a_thread_keeps_the_traceback_itself():
    def deep_inside(index):
        raise LookupError(f"no {index}")

    (error,) = outcomes(DataLoader(Each(deep_inside, 1), num_workers=1, engine="threads"))
    assert traceback.extract_tb(error.__traceback__)[-1].name == "deep_inside"


def test_causes_and_contexts_of_the_original_are_shown(workers):
    def chained(index):
        try:
            {}["missing"]
        except KeyError as error:
            raise OSError("no such file") from error

    (error,) = outcomes(DataLoader(Each(chained, 1), **workers))
    assert type(error) is OSError
    shown = "".join(traceback.format_exception(error))
    assert "KeyError: 'missing'" in shown
    assert "direct cause" in shown


def test_keys_of_a_dictionary_are_shown_as_they_are(workers):
    loader = DataLoader({"process/1": 1}, sampler=["process/1", "process/2"], **workers)
    seen = outcomes(loader)
    assert seen[0] == [1]
    assert type(seen[1]) is KeyError
    assert "sample 'process/2'" in told(seen[1])


def test_the_key_of_a_single_sample_is_named(workers):
    loader = DataLoader(FlakyDataset(range(4), bad=[2]), batch_size=None, **workers)
    seen = outcomes(loader)
    assert [each for each in seen if not isinstance(each, Exception)] == [0, 1, 3]
    assert "batch 2" in told(seen[2])
    assert "2" in told(seen[2]).partition("batch 2")[2]


def test_an_error_in_getitems_names_the_keys_of_its_batch(workers):
    class Whole(Each):
        def __getitems__(self, indices):
            if 3 in indices:
                raise ValueError("bad batch")
            return indices

    seen = outcomes(DataLoader(Whole(int, 6), batch_size=2, **workers))
    assert (seen[0], seen[2]) == ([0, 1], [4, 5])
    assert "[2, 3]" in told(seen[1])


def test_stop_iteration_does_not_end_the_epoch(engine):
    def stop(index):
        if index == 1:
            raise StopIteration
        return index

    seen = outcomes(DataLoader(Each(stop, 4), **engine))
    assert [seen[0], seen[2], seen[3]] == [[0], [2], [3]]
    assert type(seen[1]) is RuntimeError
    assert "StopIteration" in str(seen[1])


def test_errors_come_as_they_happen_without_order(workers):
    loader = DataLoader(FlakyDataset(range(20), bad=[3, 11]), batch_size=2, in_order=False, **workers)
    seen = outcomes(loader)
    good = sorted(each for each in seen if type(each) is list)
    assert good == [[i, i + 1] for i in range(0, 20, 2) if i not in (2, 10)]
    assert sorted(str(each) for each in seen if type(each) is not list) == ["sample 11 is bad", "sample 3 is bad"]


@pytest.mark.parametrize("bad", [range(12), range(0, 12, 2)])
def test_many_errors_do_not_hold_up_the_epoch(workers, bad):
    seen = outcomes(DataLoader(FlakyDataset(range(12), bad=bad), prefetch_factor=1, **workers))
    assert [type(each) is ValueError for each in seen] == [i in bad for i in range(12)]

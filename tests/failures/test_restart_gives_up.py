"""`on_worker_death="restart"` has limits: what kills again and again is named, and not tried for ever."""

from __future__ import annotations

import os
import signal
import time

import pytest

from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, WorkerDiedError, get_worker_info, read_text
from headrace import Stream as HeadraceStream
from headrace.testing import DyingDataset
from tests.failures.outcomes import Each, outcomes, split, until

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:DataLoader worker .* exited unexpectedly"),
    pytest.mark.filterwarnings("ignore:on_error='skip' leaves out"),
]


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("how", "told"), [("kill", "SIGKILL"), ("segv", "SIGSEGV"), ("exit", "exit code 3")])
def test_a_sample_that_kills_again_is_named_and_the_others_come(in_order, how, told):
    dataset = DyingDataset(range(12), {5: how})
    loader = DataLoader(dataset, batch_size=2, num_workers=2, on_worker_death="restart", in_order=in_order)
    batches, (error,) = split(outcomes(loader))
    assert sorted(batches) == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    assert type(error) is WorkerDiedError
    assert told in str(error)
    nth = "third" if how == "kill" else "second"
    assert f"{nth} worker to die at batch 2, sample 5" in str(error)


def test_a_sample_that_is_killed_twice_by_chance_is_tried_once_more(tmp_path):
    def sample(index):
        if index == 5 and len(list(tmp_path.iterdir())) < 2:
            (tmp_path / str(os.getpid())).touch()
            kill()
        return index

    loader = DataLoader(Each(sample, 12), batch_size=2, num_workers=2, on_worker_death="restart")
    with pytest.warns(UserWarning, match="second worker to die at batch 2, sample 5. It is tried once more"):
        assert outcomes(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_several_such_samples():
    dataset = DyingDataset(range(12), {0: "kill", 1: "exit", 7: "segv", 11: "kill"})
    batches, errors = split(outcomes(DataLoader(dataset, batch_size=2, num_workers=2, on_worker_death="restart")))
    assert batches == [[2, 3], [4, 5], [8, 9]]
    assert ["sample 0" in str(errors[0]), "sample 7" in str(errors[1]), "sample 11" in str(errors[2])] == [True] * 3


def test_with_skip_it_is_left_out_and_recorded():
    dataset = DyingDataset(range(12), {5: "kill"})
    loader = DataLoader(dataset, batch_size=2, num_workers=2, on_worker_death="restart", on_error="skip")
    assert outcomes(loader) == [[0, 1], [2, 3], [4], [6, 7], [8, 9], [10, 11]]
    (bad,) = loader.errors
    assert (bad.key, bad.batch, bad.worker) == (5, 2, 0)
    assert "WorkerDiedError" in bad.error
    assert "SIGKILL" in bad.error


def test_with_skip_several_in_one_batch():
    dataset = DyingDataset(range(8), {4: "kill", 5: "exit", 7: "kill"})
    loader = DataLoader(dataset, batch_size=4, num_workers=2, on_worker_death="restart", on_error="skip")
    assert outcomes(loader) == [[0, 1, 2, 3], [6]]
    assert sorted(bad.key for bad in loader.errors) == [4, 5, 7]


@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_with_skip_a_batch_of_nothing_else_is_left_out(batch_size):
    dataset = DyingDataset(range(6), {2: "kill", 3: "kill"})
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=2, on_worker_death="restart", on_error="skip")
    expected = {1: [[0], [1], [4], [5]], 2: [[0, 1], [4, 5]], None: [0, 1, 4, 5]}[batch_size]
    assert outcomes(loader) == expected
    assert [bad.key for bad in loader.errors] == [2, 3]


def test_with_skip_samples_that_raise_and_samples_that_kill():
    def both(index):
        if index == 1:
            raise ValueError("bad")
        if index == 2:
            kill()
        return index

    loader = DataLoader(Each(both, 4), batch_size=4, num_workers=1, on_worker_death="restart", on_error="skip")
    assert outcomes(loader) == [[0, 3]]
    assert sorted(bad.key for bad in loader.errors) == [1, 2]


def test_a_collation_that_kills():
    def collate(samples):
        if 4 in samples:
            kill()
        return samples

    loader = DataLoader(range(8), batch_size=2, num_workers=2, collate_fn=collate, on_worker_death="restart")
    batches, (error,) = split(outcomes(loader))
    assert batches == [[0, 1], [2, 3], [6, 7]]
    assert "batch 2" in str(error)


def test_with_skip_a_collation_that_kills_costs_its_batch():
    def collate(samples):
        if 4 in samples or not samples:
            kill()
        return samples

    loader = DataLoader(
        range(8), batch_size=2, num_workers=2, collate_fn=collate, on_worker_death="restart", on_error="skip"
    )
    assert outcomes(loader) == [[0, 1], [2, 3], [6, 7]]
    assert {bad.batch for bad in loader.errors} == {2}


def test_getitems_that_kills():
    class Whole(Each):
        def __getitems__(self, indices):
            return kill() if 4 in indices else indices

    loader = DataLoader(Whole(int, 8), batch_size=2, num_workers=2, on_worker_death="restart")
    batches, (error,) = split(outcomes(loader))
    assert batches == [[0, 1], [2, 3], [6, 7]]
    assert "[4, 5]" in str(error)


def test_a_batch_that_kills_as_it_is_sent():
    class Deadly:
        def __reduce__(self):
            kill()

    def collate(samples):
        return Deadly() if 4 in samples else samples

    loader = DataLoader(range(8), batch_size=2, num_workers=2, collate_fn=collate, on_worker_death="restart")
    batches, errors = split(outcomes(loader))
    assert [batch for batch in batches if batch != [6, 7]] == [[0, 1], [2, 3]]
    assert type(errors[0]) is WorkerDiedError


@pytest.mark.parametrize("which", [{0, 1}, {1}], ids=["all", "one of them"])
def test_a_worker_that_always_dies_as_it_starts(tmp_path, which):
    def init(number):
        (tmp_path / f"{number}-{os.getpid()}").touch()
        if number in which:
            os._exit(9)

    iterator = iter(DataLoader(range(100), num_workers=2, worker_init_fn=init, on_worker_death="restart"))
    with pytest.raises(WorkerDiedError, match="exit code 9 as it started") as caught:
        list(iterator)
    assert "again and again" in str(caught.value) or "whenever" in str(caught.value)
    assert len(list(tmp_path.iterdir())) < 30


def test_a_worker_that_dies_while_idle_again_and_again(tmp_path):
    """A thread of the dataset's kills it soon after each start, whatever it does."""

    def init(number):
        import threading

        (tmp_path / f"{os.getpid()}").touch()
        threading.Timer(0.05, os._exit, [9]).start()

    dataset = Each(lambda index: time.sleep(5), 4)
    iterator = iter(DataLoader(dataset, num_workers=1, worker_init_fn=init, on_worker_death="restart"))
    with pytest.raises(WorkerDiedError, match="exit code 9"):
        list(iterator)
    iterator.close()
    assert len(list(tmp_path.iterdir())) < 60


def loaders_that_die(init):
    options = {"num_workers": 1, "worker_init_fn": init, "on_worker_death": "restart", "max_restarts": 4}
    yield DataLoader(range(4), **options)
    yield DataLoader(Stream(), **options)
    yield DataLoader(HeadraceStream.from_blocks([0], range), seed=1, **options)
    yield MultiStreamDataLoader([range(4)], 1, **options)


def test_max_restarts_sets_how_many_are_replaced_for_every_kind_of_loader(tmp_path):
    def init(number):
        (tmp_path / f"{os.getpid()}").touch()
        os._exit(9)

    for n, loader in enumerate(loaders_that_die(init), 1):
        with pytest.raises(WorkerDiedError, match=r"5 workers within \d+\.\d s, with no batch in between"):
            list(loader)
        loader.close()
        assert len(list(tmp_path.iterdir())) == 5 * n


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"max_restarts": 3}, ValueError, "needs on_worker_death='restart'"),
        ({"max_restarts": 0, "on_worker_death": "restart"}, ValueError, "at least 1, got 0"),
        ({"max_restarts": "3", "on_worker_death": "restart"}, TypeError, "should be an integer, got '3'"),
    ],
)
def test_max_restarts_is_checked(options, error, told):
    with pytest.raises(error, match=told):
        DataLoader(range(4), num_workers=1, **options)
    with pytest.raises(error, match=told):
        MultiStreamDataLoader([range(4)], 1, num_workers=1, **options)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 20, info.num_workers):
            if number == 9:
                kill()
            yield number


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_stream_that_kills_again_at_one_place_ends_with_an_error(on_error):
    """Nothing can be left out of a stream, which would have to go past the place."""
    iterator = iter(DataLoader(Stream(), batch_size=2, num_workers=2, on_worker_death="restart", on_error=on_error))
    seen, error = until(WorkerDiedError, iterator)
    assert "third worker to die at batch 5" in str(error)
    assert seen == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10]][: len(seen)]


@pytest.mark.filterwarnings("default:on_error='skip' leaves out")
def test_with_skip_a_window_of_a_stream_is_left_out_and_named(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\nfour\n")
    stream = read_text(tmp_path).map(lambda line: kill() if line == "two" else line)
    loader = DataLoader(stream, batch_size=2, num_workers=2, on_worker_death="restart", on_error="skip")
    with pytest.warns(UserWarning, match=r"a\.txt, bytes 0 to 8.* to die at .*a\.txt, bytes 0 to 8\. This is said"):
        assert outcomes(loader) == [["three", "four"]]
    (bad,) = loader.errors
    assert "a.txt, bytes 0 to 8" in bad.key


def test_max_errors_counts_samples_that_kill():
    dataset = DyingDataset(range(12), {1: "kill", 3: "kill"})
    loader = DataLoader(dataset, batch_size=2, num_workers=2, on_worker_death="restart", on_error="skip", max_errors=1)
    batches, errors = split(outcomes(loader))
    assert batches[0] == [0]
    assert "max_errors=1" in str(errors[0])
    assert "SIGKILL" in str(errors[0])

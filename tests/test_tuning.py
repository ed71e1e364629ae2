"""Workers are chosen within the machine's limits, from measured stages, and nobody's state is disturbed by it."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest

import headrace
from headrace import DataLoader
from headrace.base.generators import GENERATORS
from headrace.tuning import auto, machine, tune
from headrace.tuning.auto import StageProbe, Stages, estimate_prefetch, estimate_workers, some_keys
from headrace.tuning.machine import Machine, this_machine
from headrace.tuning.tune import Candidate, Trial

GB = 10**9
FOUR_CORES = Machine(affinity=4, cpu_limit=None, memory_limit=None, memory_free=64 * GB)
SLOW = Stages(
    batch_size=32, fetch_s=1e-3, cpu_share=1.0, unevenness=1.0, collate_s=1e-4, batch_bytes=10**6, draws=False
)


class Numbers:
    """Notes in itself how often it was asked."""

    def __init__(self, n=100):
        self.n = n
        self.asked = 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked += 1
        return np.int64(index)


class Drawing(Numbers):
    def __getitem__(self, index):
        return random.random()


class Endless(headrace.IterableDataset):
    def __iter__(self):
        return iter(range(40))


# The machine


def limited_root(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_limits_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_affinity", lambda: 8)
    root = limited_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/mine\n",
            "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8000000 kB\n",
            "sys/fs/cgroup/jobs/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n",
            "sys/fs/cgroup/jobs/mine/memory.max": "4000000000\n",
            "sys/fs/cgroup/jobs/mine/memory.current": "1000000000\n",
        },
    )
    found = this_machine(root)
    assert (found.cpu_limit, found.cores) == (2.5, 3)
    assert (found.memory_limit, found.memory_free) == (4 * GB, 3 * GB)


def test_limits_of_an_older_container(tmp_path):
    root = limited_root(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n1:name=systemd:/a\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert (this_machine(root).cpu_limit, this_machine(root).memory_limit) == (1.0, None)


def test_a_system_that_tells_nothing(tmp_path):
    found = this_machine(tmp_path)
    assert (found.cpu_limit, found.memory_limit, found.memory_free) == (None, None, None)
    assert found.cores >= 1


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Machine(8, None, None, None, this_machine().ranks).cores == 2


# The choice


@pytest.mark.parametrize(
    ("stages", "machine", "step_s", "workers"),
    [
        (SLOW, FOUR_CORES, 0, 3),  # one core is the loop's
        (Stages(32, 1e-6, 1.0, 1.0, 0.0, 1000, False), FOUR_CORES, 0, 0),  # quicker made than handed over
        (Stages(32, 1e-3, 0.1, 1.0, 0.0, 1000, False), FOUR_CORES, 0, 4),  # waiting takes no core
        (SLOW, Machine(1, None, None, None), 0, 0),
        (SLOW, FOUR_CORES, 0.033, 2),  # enough to hide behind the model
        (Stages(32, 1e-1, 1.0, 1.0, 0.0, GB, False), Machine(4, None, None, 8 * GB), 0, 1),  # two fit into memory
    ],
)
def test_workers_are_reckoned(stages, machine, step_s, workers):
    assert estimate_workers(stages, machine, step_s) == workers


def test_prefetch_is_reckoned():
    uneven = Stages(32, 1e-3, 1.0, 10.0, 0.0, 1000, False)
    large = Stages(32, 1e-3, 1.0, 1.0, 0.0, GB, False)
    assert estimate_prefetch(SLOW, FOUR_CORES, 0) is None
    assert estimate_prefetch(SLOW, FOUR_CORES, 2) is None
    assert estimate_prefetch(uneven, FOUR_CORES, 2) == 4
    assert estimate_prefetch(large, Machine(4, None, None, 8 * GB), 2) == 1


def test_the_trial_that_takes_least_among_the_quick_ones_is_chosen():
    inline, threads, processes = (
        Trial(Candidate("inline", 0), 0.0, 1000.0),
        Trial(Candidate("threads", 2), 0.0, 1950.0),
        Trial(Candidate("processes", 2), 0.0, 2000.0),
    )
    trials = [inline, processes, threads]
    assert tune.choose(trials, batch_size=10, model_s=0.0) is threads  # as quick as processes, nearly
    assert tune.choose(trials, batch_size=10, model_s=0.02) is threads  # with none, the model would wait 10 ms
    assert tune.choose(trials, batch_size=10, model_s=1.0) is inline  # 10 ms in a second matter to nobody


# The stages


def asked(dataset, **changes):
    settings = {"batch_size": 8, "collate_fn": None, "output": "numpy", "seconds": 0.05, "patience_s": 30.0}
    return StageProbe(dataset, some_keys(dataset), **{**settings, **changes}, make_loader=DataLoader).measure()


def test_stages_of_a_dataset():
    stages = asked(Numbers())
    assert stages.batch_size == 8
    assert stages.batch_bytes == 64
    assert 0 < stages.fetch_s <= stages.batch_s
    assert not stages.draws
    assert asked(Drawing()).draws
    assert asked(Endless(), batch_size=None).batch_size == 1


def test_a_dataset_that_takes_too_long_is_given_up():
    class Stuck(Numbers):
        def __getitem__(self, index):
            time.sleep(60)

    assert asked(Stuck(), patience_s=0.05) is None


def test_keys_are_spread_over_the_dataset():
    assert some_keys(range(640)) == list(range(0, 640, 10))
    assert some_keys(range(3)) == [0, 1, 2]
    assert some_keys(Endless()) is None
    with pytest.raises(ValueError, match="empty"):
        some_keys([])


# num_workers="auto"


def test_auto_is_a_number_and_touches_nothing_here():
    dataset = Drawing()
    before = [generator.save() for generator in GENERATORS]
    expected = [generator.glance() for generator in GENERATORS]
    loader = DataLoader(dataset, batch_size=4, num_workers="auto", output="numpy")
    assert [generator.glance() for generator in GENERATORS] == expected
    assert isinstance(loader.num_workers, int)
    assert dataset.asked == 0
    for generator, state in zip(GENERATORS, before, strict=True):
        generator.restore(state)


def test_auto_takes_what_was_reckoned(monkeypatch):
    monkeypatch.setattr(auto, "estimate_workers", lambda stages, machine: 3)
    monkeypatch.setattr("headrace.loader.warn_of_many_workers", lambda n, engine: None)
    loader = DataLoader(Numbers(), batch_size=4, num_workers="auto", output="numpy")
    assert loader.num_workers == 3
    assert loader.prefetch_factor == 2
    assert [batch.tolist() for batch in loader] == [list(range(i, i + 4)) for i in range(0, 100, 4)]


def test_auto_of_slow_samples_takes_all_cores(monkeypatch):
    monkeypatch.setattr(auto, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(auto, "this_machine", lambda: FOUR_CORES)
    monkeypatch.setattr("headrace.loader.warn_of_many_workers", lambda n, engine: None)

    class Stuck(Numbers):
        def __getitem__(self, index):
            time.sleep(60)

    assert DataLoader(Stuck(), num_workers="auto", output="numpy").num_workers == 4


def test_auto_leaves_errors_to_the_loop():
    class Broken(Numbers):
        def __getitem__(self, index):
            raise KeyError("lost")

    loader = DataLoader(Broken(), num_workers="auto", output="numpy")
    assert loader.num_workers == 0
    with pytest.raises(KeyError, match="lost"):
        next(iter(loader))


def test_auto_does_not_multiply_a_stream():
    loader = DataLoader(Endless(), batch_size=10, num_workers="auto", output="numpy")
    assert loader.num_workers == 0
    assert len(list(loader)) == 4


def test_auto_has_workers_where_other_arguments_need_them(tmp_path):
    loader = DataLoader(list(range(8)), batch_size=4, num_workers="auto", persistent_workers=True, output="numpy")
    assert loader.num_workers >= 1
    (tmp_path / "lines.txt").write_text("a\nb\n")
    assert DataLoader(headrace.read_text(tmp_path), num_workers="auto", output="numpy").num_workers >= 1


def test_another_word_than_auto_is_refused():
    with pytest.raises(TypeError, match="num_workers option should be an integer, got 'many'"):
        DataLoader(range(3), num_workers="many")


# headrace.tune


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(tune, "this_machine", lambda: Machine(2, None, None, 8 * GB))
    monkeypatch.setattr("headrace.loader.warn_of_many_workers", lambda n, engine: None)


def test_everybody_is_tried_and_the_line_is_that_of_the_best(two_cores):
    told = []
    found = tune.tune(Numbers(), batch_size=10, seconds=0.3, tell=lambda what, share: told.append(what))
    tried = [str(trial.candidate) for trial in found.trials]
    assert tried[0] == "in this process"
    assert told[1:] == tried
    untried = [remark for remark in found.remarks if "want of time" in remark]
    assert len(tried) + len(untried) == 5  # one and two processes and threads
    assert found.best in found.trials
    assert str(found).splitlines()[-1] == found.line
    loader = DataLoader(Numbers(), output="numpy", **found.arguments)
    assert len(list(loader)) == 10


class Slow(Numbers):
    """Each sample takes a millisecond or longer, whoever loads it."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.int64(index)


@pytest.mark.parametrize("seconds", [0.1, 1.0])  # less than workers take to start, and enough
def test_no_rate_is_beyond_workers_by_sample_time(two_cores, seconds):
    found = headrace.tune(Slow(1000), batch_size=8, seconds=seconds)
    assert found.stages.fetch_s >= 0.001
    for trial in found.trials:
        assert trial.samples_per_s <= max(trial.candidate.workers, 1) / found.stages.fetch_s


def test_a_loader_brings_its_batch_size_and_collate_function(two_cores):
    found = tune.tune(DataLoader(Numbers(), batch_size=5, collate_fn=len), seconds=0.2)
    assert found.batch_size == 5
    assert found.stages.batch_size == 5
    assert found.stages.batch_bytes < 100  # what len returns, not five numbers


def test_threads_are_not_tried_where_samples_share_a_generator(two_cores):
    found = tune.tune(Drawing(), seconds=0.2)
    assert {trial.candidate.engine for trial in found.trials} <= {"inline", "processes"}
    assert any("No threads" in remark for remark in found.remarks)


def test_a_stream_gets_one_worker_at_most(two_cores):
    found = tune.tune(Endless(), batch_size=4, seconds=0.2)
    assert max(trial.candidate.workers for trial in found.trials) <= 1
    assert any("Not more than one worker" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("data", "arguments", "error", "complaint"),
    [
        ([], {}, ValueError, "empty"),
        (object(), {}, TypeError, "has no len"),
        ([1], {"seconds": 0}, ValueError, "seconds must be positive"),
        ([1], {"step_time": -1.0}, ValueError, "step_time not negative"),
    ],
)
def test_wrong_arguments_of_tune(data, arguments, error, complaint):
    with pytest.raises(error, match=complaint):
        tune.tune(data, **arguments)


def test_what_was_found_is_plain_enough_for_json():
    trial = Trial(Candidate("threads", 2), 0.1, 100.0)
    found = tune.Tuning(SLOW, FOUR_CORES, (trial,), trial, 32, 4, 0.0)
    assert json.loads(json.dumps(found.arguments)) == {
        "batch_size": 32,
        "num_workers": 2,
        "engine": "threads",
        "prefetch_factor": 4,
    }
    assert found.line == "DataLoader(dataset, batch_size=32, num_workers=2, engine='threads', prefetch_factor=4)"
    assert list(found.rows()) == [("2 threads", "100 ms", "100", "3.1", "320.00 ms")]

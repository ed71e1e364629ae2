"""The audit: silent where every sample comes once, and loud where one is lost or doubled, by anybody."""

from __future__ import annotations

import json
import pickle
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BucketBatchSampler,
    ClassBatchSampler,
    DataLoader,
    DistributedSampler,
    HeadraceError,
    IterableDataset,
    RandomSampler,
    Sampler,
    StateError,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.base.errors import AuditError
from headrace.base.messages import Finished
from headrace.flow import Flow
from headrace.insight.audit import Audit
from headrace.order.order import Order
from headrace.testing import FlakyDataset, HandDrivenEngine

N = 23
LENGTHS = [3 + 5 * i % 11 for i in range(N)]
SAMPLERS = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "several shuffles": lambda: {"sampler": RandomSampler(range(N), num_samples=50)},
    "with replacement": lambda: {"sampler": RandomSampler(range(N), replacement=True)},
    "subset": lambda: {"sampler": SubsetRandomSampler([3, 1, 4, 15, 9, 2, 6])},
    "weighted": lambda: {"sampler": WeightedRandomSampler(np.arange(N) + 1.0, 40)},
    "buckets": lambda: {"batch_sampler": BucketBatchSampler(LENGTHS, max_tokens=30)},
    "classes": lambda: {"batch_sampler": ClassBatchSampler([i % 4 for i in range(N)], 2, 2)},
}


def make_loader(kind="shuffle", **options):
    options = {"batch_size": 4, "seed": 3, **options, **SAMPLERS[kind]()}
    if "batch_sampler" in options:
        del options["batch_size"]
    return DataLoader(range(N), **options)


def flat(batches):
    return sorted(key for batch in batches for key in np.asarray(batch).ravel().tolist())


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("engine", [{}, {"num_workers": 2, "engine": "threads"}, {"num_workers": 2}])
def test_every_sampler_of_ours_with_a_seed_is_proven(kind, engine):
    with make_loader(kind, **engine) as loader:
        audit = loader.audit()
        counts = [len(flat(loader)) for _ in range(2)]
    assert audit.proven == [0, 1]
    audit.check()
    lines = [f"epoch {i}: {n} samples expected, {n} delivered, each exactly once." for i, n in enumerate(counts)]
    assert audit.report().splitlines() == lines


@pytest.mark.parametrize("kind", ["sequential", "shuffle", "subset"])
def test_without_a_seed_samplers_that_draw_each_key_once_are_proven(kind):
    loader = make_loader(kind, seed=None)
    audit = loader.audit()
    list(loader)
    assert audit.proven == [0]


@pytest.mark.parametrize("kind", ["with replacement", "weighted", "buckets"])
def test_where_only_the_sampler_knows_it_is_said_so(kind):
    loader = make_loader(kind, seed=None)
    audit = loader.audit()
    n = len(flat(loader))
    audit.check()
    assert audit.proven == []
    assert f"epoch 0: {n} samples delivered, each exactly once, as asked for by the sampler" in audit.report()
    assert "audit(expect=...)" in audit.report()


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("even", ["drop", "pad", "repeat", "allow"])
def test_ranks_are_merged(kind, even):
    audits, delivered = [], []
    for rank in range(3):
        loader = make_loader(kind, shard=(rank, 3), even=even)
        audits.append(loader.audit())
        delivered += flat(loader)
    alone, merged = audits[0], Audit.merged(json.loads(json.dumps(audit.state_dict())) for audit in audits)
    assert alone.proven == []
    assert "merge the audits of all ranks" in alone.report()
    merged.check()
    assert merged.proven == [0]
    n = f"{len(delivered)} samples expected, {len(delivered)} delivered, each exactly once over 3 ranks"
    assert n in merged.report()
    assert audits[2].merge(audits[:2]).report() == merged.report()


def test_what_is_dropped_or_doubled_on_purpose_is_told():
    reports = {}
    for even in ("drop", "pad", "repeat"):
        audits = []
        for rank in range(3):
            loader = DataLoader(range(11), 4, shard=(rank, 3), even=even)
            audits.append(loader.audit())
            list(loader)
        reports[even] = Audit.merged(audits).report()
    assert "9 delivered, each exactly once over 3 ranks (2 dropped" in reports["drop"]
    assert "12 delivered, each exactly once over 3 ranks (1 of them came again" in reports["pad"]
    assert "12 delivered, each exactly once over 3 ranks (1 of them came again" in reports["repeat"]


@pytest.mark.parametrize("even", ["drop", "pad", "repeat", "allow"])
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 60),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stop=st.integers(0, 5),
)
def test_a_stop_and_another_number_of_ranks_are_proven_as_a_whole(even, n, batch_size, drop_last, worlds, stop):
    def loaders(world):
        options = {"shuffle": n > 0, "seed": 1, "drop_last": drop_last, "even": even}
        return [DataLoader(range(n), batch_size, shard=(rank, world), **options) for rank in range(world)]

    first = loaders(worlds[0])
    stop = min([stop, *map(len, first)])
    audits, states = [], []
    for loader in first:
        audits.append(loader.audit(full=True))
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        states.append(loader.state_dict())
    parts = [audit.state_dict() for audit in audits]
    for loader in loaders(worlds[1]):
        audits.append(loader.audit(full=True))
        loader.load_state_dict(states[0])
        list(loader)
        parts.append(audits[-1].state_dict())
    merged = Audit.merged(parts if stop else parts[worlds[0] :])
    merged.check()
    # Where the first ranks had already given all, and that is not what the second ones would have, nobody can tell.
    proven = [epoch for epoch in merged.proven if epoch == 0]  # the next one may have begun
    assert proven == ([0] if worlds[0] == worlds[1] or states[0]["course"]["position"] <= n else [])


def test_the_rest_alone_is_proven_from_its_position_on():
    loader = make_loader()
    loader.seek(2)
    audit = loader.audit()
    list(loader)
    assert audit.proven == [0]
    assert audit.report() == "epoch 0: 15 samples expected, 15 delivered, each exactly once, from position 8 on."


@pytest.mark.parametrize("seed", [3, None])
@pytest.mark.parametrize("in_order", [True, False])
def test_an_account_goes_on_with_the_state_of_the_loader(seed, in_order):
    with make_loader(seed=seed, num_workers=2, engine="threads", in_order=in_order) as loader:
        audit = loader.audit()
        list(loader)
        batches = iter(loader)
        next(batches)
        next(batches)
        saved = json.dumps([loader.state_dict(), audit.state_dict()])
        del batches

    loader = make_loader(seed=seed)
    audit = loader.audit()
    state, account = json.loads(saved)
    loader.load_state_dict(state)
    audit.load_state_dict(account)
    assert re.search(r"epoch 1: [78] samples delivered so far; it is not over.", audit.report())
    list(loader)
    assert audit.proven == [0, 1]


@pytest.mark.parametrize("seed", [3, None])
def test_out_of_order_the_parts_are_proven_together(seed):
    newest_first = make_loader(seed=seed, in_order=False, engine=HandDrivenEngine(choose=max, capacity=3))
    audit = newest_first.audit(full=True)
    batches = iter(newest_first)
    next(batches)
    state, before = newest_first.state_dict(), audit.state_dict()
    assert state["batches"] == 0
    loader = make_loader(seed=seed)
    audit = loader.audit(full=True)
    loader.load_state_dict(state)
    list(loader)
    audit.check()
    assert audit.proven == []  # what was given before is not known here
    assert audit.merge([before]).proven == [0]


def test_a_state_of_the_last_batch_is_proven_too():
    loader = make_loader()
    audit = loader.audit()
    states = [(loader.state_dict(), audit.state_dict()) for _ in loader]
    resumed = make_loader()
    audit = resumed.audit()
    resumed.load_state_dict(states[-1][0])
    audit.load_state_dict(states[-1][1])
    assert next(iter(resumed)) is not None  # of the next epoch
    assert audit.proven == [0]


def test_an_epoch_that_is_run_again_counts_anew():
    loader = make_loader()
    audit = loader.audit()
    next(iter(loader))
    loader.set_epoch(0)
    list(loader)
    assert audit.report() == "epoch 0: 23 samples expected, 23 delivered, each exactly once."


def test_a_loop_that_is_left_early_is_not_over():
    loader = make_loader(num_workers=2, engine="threads")
    audit = loader.audit()
    with loader:
        next(iter(loader))
        audit.check()
        assert audit.report() == "epoch 0: 4 samples delivered so far; it is not over."
    assert audit.proven == []


# What goes wrong


class Broken(Sampler):
    """Draws 7 instead of 11."""

    def __iter__(self):
        return iter([7 if i == 11 else i for i in range(N)])

    def __len__(self):
        return N


@pytest.mark.parametrize("options", [{}, {"seed": 0}, {"seed": 0, "num_workers": 2, "engine": "threads"}])
def test_a_broken_sampler_is_caught(options):
    loader = DataLoader(range(N), 4, sampler=Broken(), **options)
    audit = loader.audit(full=True, expect=range(N))
    list(loader)
    with pytest.raises(AuditError, match=r"epoch 0: WRONG: .* 1 missing: 11; 1 too often: 7") as caught:
        audit.check()
    assert isinstance(caught.value, HeadraceError)
    assert audit.proven == []


def test_without_the_keys_the_error_tells_how_to_get_them():
    loader = DataLoader(range(N), 4, sampler=Broken())
    audit = loader.audit(expect=range(N))
    list(loader)
    with pytest.raises(AuditError, match=r"some samples are missing, and others .*audit\(full=True\) names them"):
        audit.check()


class LeakyOrder:
    """A shuffle with a fault: position 5 is read as position 6, but not where all are read at once."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def __len__(self):
        return len(self.order)

    def at(self, positions):
        if len(positions) < 20:
            positions = np.where(positions == 5, 6, positions)
        return self.order.at(positions)


class LeakySampler(RandomSampler):
    def seeded(self, seed, epoch):
        return LeakyOrder(super().seeded(seed, epoch))


def test_ranks_that_read_an_order_differently_are_caught():
    audits = []
    for rank in range(2):
        loader = DataLoader(range(N), 4, sampler=LeakySampler(range(N)), seed=0, shard=(rank, 2), even="allow")
        audits.append(loader.audit(full=True))
        list(loader)
        audits[-1].check()  # alone, it is just what this rank asked for
    with pytest.raises(AuditError, match=r"1 missing: .*1 too often: "):
        Audit.merged(audits).check()


def test_a_rank_of_another_seed_is_caught():
    audits = []
    for rank in range(2):
        loader = DataLoader(range(N), 4, sampler=WeightedRandomSampler(np.ones(N), N), seed=rank, shard=(rank, 2))
        audits.append(loader.audit())
        list(loader)
    merged = Audit.merged(audits)
    assert merged.proven == []
    with pytest.raises(AuditError, match="ranks expect different samples"):
        merged.check()


def test_a_share_that_is_merged_twice_is_caught():
    audits = []
    for rank in range(2):
        loader = make_loader(shard=(rank, 2))
        audits.append(loader.audit())
        list(loader)
    with pytest.raises(AuditError, match="11 samples too many"):
        Audit.merged([*audits, audits[0]]).check()
    with pytest.raises(AuditError, match="too many"):
        Audit.merged([audits[0], audits[0], audits[1]]).check()


def tamper(monkeypatch, change):
    """Let `change` decide what becomes of a task and its outcome, of which the loop is to hear: a list of such."""
    receive = Flow._receive

    def receive_tampered(flow):
        n_before = len(flow._due)
        receive(flow)
        new = [flow._due.pop() for _ in range(len(flow._due) - n_before)][::-1]
        changed = [one for due in new for one in change(*due)]
        flow._n_open += len(changed) - len(new)
        flow._due.extend(changed)

    monkeypatch.setattr(Flow, "_receive", receive_tampered)


@pytest.mark.parametrize("full", [False, True])
def test_a_flow_that_loses_a_batch_is_caught(monkeypatch, full):
    tamper(monkeypatch, lambda task, outcome: [] if task.number == 2 else [(task, outcome)])
    loader = DataLoader(range(N), 4, in_order=False, num_workers=1, engine="threads", prefetch_factor=2)
    audit = loader.audit(full=full)
    assert len(list(loader)) == 5
    with pytest.raises(AuditError, match="asked for, but never came: 4 samples") as caught:
        audit.check()
    assert ("samples, 10, 11, 8, 9" in str(caught.value)) == full


def test_a_flow_that_doubles_a_batch_is_caught(monkeypatch):
    tamper(monkeypatch, lambda task, outcome: [(task, outcome)] * (2 if task.number == 2 else 1))
    loader = DataLoader(range(N), 4, in_order=False)
    audit = loader.audit()
    assert len(list(loader)) == 7
    with pytest.raises(AuditError, match="batches came twice, or without being asked for: 2"):
        audit.check()
    assert audit.proven == []


def test_a_flow_that_exchanges_a_batch_for_another_is_caught(monkeypatch):
    tamper(monkeypatch, lambda task, outcome: [(task._replace(number=0) if task.number == 3 else task, outcome)])
    loader = DataLoader(range(N), 4, in_order=False)
    audit = loader.audit(full=True)
    list(loader)
    with pytest.raises(AuditError, match="twice, or without being asked for: 0; asked for, but never came: 4 samples"):
        audit.check()


# What is nobody's fault


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "engine": "threads"}])
@pytest.mark.filterwarnings("ignore:on_error='skip' leaves out")
def test_bad_samples_are_accounted_for(options):
    dataset = FlakyDataset(range(10), bad=[1, 4, 5, 6, 7])
    loader = DataLoader(dataset, 4, seed=0, on_error="skip", **options)
    audit = loader.audit(full=True)
    assert flat(loader) == [0, 2, 3, 8, 9]
    audit.check()
    assert audit.report() == "epoch 0: 10 samples expected, 5 delivered, 5 left out as bad, each exactly once."


def test_batches_that_raise_are_accounted_for():
    loader = DataLoader(FlakyDataset(range(10), bad=[5]), 4, shuffle=False)
    audit = loader.audit()
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="sample 5 is bad"):
        next(batches)
    list(batches)
    audit.check()
    assert "10 samples expected, 6 delivered, 4 in batches that raised, each exactly once." in audit.report()


def test_too_many_bad_samples_leave_the_epoch_unfinished():
    loader = DataLoader(FlakyDataset(range(10), bad=[5]), 4, on_error="skip", max_errors=0)
    audit = loader.audit()
    with pytest.raises(HeadraceError, match="max_errors=0"):
        list(loader)
    assert "4 samples delivered so far" in audit.report()  # the batch with the bad one was never handed out


def test_a_sampler_that_raises_leaves_its_batch_out():
    class Failing(Sampler):
        def __iter__(self):
            yield 0
            raise KeyError("no more")

    loader = DataLoader(range(5), 1, sampler=Failing())
    audit = loader.audit()
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    assert list(batches) == []
    audit.check()
    assert audit.report().startswith("epoch 0: 1 samples delivered, each exactly once")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_of_a_stream_batches_are_counted_worker_by_worker():
    loader = DataLoader(Stream(), 4, num_workers=2, engine="threads")
    audit = loader.audit()
    with pytest.warns(UserWarning, match="return the same batches"):
        assert len(list(loader)) == 6
    audit.check()
    assert audit.proven == []
    assert audit.report() == (
        "epoch 0: 6 batches of a stream delivered (worker 0 3, worker 1 3); which samples these are, only the dataset "
        "knows."
    )


def test_without_workers_none_is_named():
    loader = DataLoader(Stream(), 10)
    audit = loader.audit()
    assert len(list(loader)) == 1
    assert audit.report().startswith("epoch 0: 1 batch of a stream delivered; which samples")


def test_the_ranks_of_a_distributed_sampler_are_merged():
    audits = []
    for rank in range(2):
        sampler = DistributedSampler(range(10), num_replicas=2, rank=rank)
        loader = DataLoader(range(10), 2, sampler=sampler)
        audits.append(loader.audit(expect=range(10)))
        list(loader)
        assert "rank" in audits[-1].report()
    assert Audit.merged(audits).proven == [0]


@pytest.mark.parametrize("batch_size", [2, None])
def test_keys_may_be_anything(batch_size):
    data = {("a", 1): 1, ("b", 2): 2, "c": 3}
    loader = DataLoader(data, batch_size, sampler=list(data))
    audit = loader.audit(expect=reversed(list(data)))
    assert flat(loader) == [1, 2, 3]
    assert audit.proven == [0]


# Loose ends


def test_before_the_first_epoch_nothing_is_known():
    audit = make_loader().audit()
    with pytest.raises(AuditError, match="No epoch has begun"):
        audit.check()
    assert audit.proven == []
    assert audit.report() == "No epoch has begun since the audit was switched on."
    assert "No epoch" in repr(audit)


def test_a_further_call_begins_a_new_account():
    loader = make_loader()
    older = loader.audit()
    newer = loader.audit()
    list(loader)
    assert (older.proven, newer.proven) == ([], [0])


def test_a_pickled_loader_has_no_audit():
    loader = make_loader()
    audit = loader.audit()
    assert len(flat(pickle.loads(pickle.dumps(loader)))) == N
    assert audit.proven == []


@pytest.mark.parametrize("state", [{}, None, {"headrace_audit": 2}, {"headrace_audit": 1, "epochs": [{}]}, "x"])
def test_what_is_no_account_is_refused(state):
    with pytest.raises(StateError, match="This is no account"):
        Audit().load_state_dict(state)
    with pytest.raises(StateError, match="This is no account"):
        Audit.merged([state])


def test_keys_that_were_not_kept_cannot_be_named_later():
    with pytest.raises(StateError, match="without full=True"):
        Audit(full=True).load_state_dict(Audit().state_dict())


def test_memory_does_not_grow_with_the_epoch():
    loader = DataLoader(np.zeros(400_000, np.int8), 1000, shuffle=True, seed=0)
    audit = loader.audit()
    for _ in loader:
        pass
    tracemalloc.start()
    for _ in loader:
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert audit.proven == [0, 1]
    assert most < 2_000_000  # the keys alone would take 3.2 MB
    assert len(json.dumps(audit.state_dict())) < 3000


def test_a_batch_counts_when_the_loop_gets_it():
    loader = make_loader(num_workers=2, engine="threads")
    audit = loader.audit()
    with loader:
        for i, _ in enumerate(loader):
            assert audit.state_dict()["epochs"][0]["delivered"]["count"] == min(N, 4 * (i + 1))


def test_outcomes_are_named_tuples_as_the_tests_above_need():
    assert Finished(3, None)._replace(number=0).number == 0

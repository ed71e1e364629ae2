"""Audits of streams: every row of every window came once, over all ranks, also after a stop."""

from __future__ import annotations

import pytest

from headrace import Audit, AuditError, DataLoader, Stream
from headrace.streams.readers import mix
from tests.streams.memory import in_memory

EVEN = ["drop", "pad", "repeat", "allow"]
STREAMS = {
    "few": in_memory(40, 9),
    "many": in_memory(90, 2).shuffle(blocks=2),
    "filtered": in_memory(90, 3).filter(lambda n: n % 3),
    "mixed": mix([in_memory(30, 4), in_memory(50, 6)], stop="all"),
}


def audited(stream, **options):
    loader = DataLoader(stream, 4, collate_fn=list, **options)
    return loader, loader.audit(full=True)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_together_are_proven(name, even, drop_last):
    audits = []
    for rank in range(3):
        loader, audit = audited(STREAMS[name], shard=(rank, 3), even=even, drop_last=drop_last)
        list(loader)
        audits.append(audit)
    whole = Audit.merged(audits)
    whole.check()
    assert whole.proven == [0]


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_one_rank_is_proven_with_workers(engine):
    loader, audit = audited(in_memory(90, 7), num_workers=2, engine=engine)
    with loader:
        list(loader)
        list(loader)
    audit.check()
    assert audit.proven == [0, 1]
    assert "90 samples expected, 90 delivered, each exactly once" in audit.report()


def test_packed_tokens_are_proven():
    loader, audit = audited(in_memory(30, 4).map(lambda n: [n] * n).pack(7), drop_last=True)
    list(loader)
    audit.check()
    assert audit.proven == [0]


def test_parts_of_an_epoch_are_proven_together():
    first, audit = audited(in_memory(50, 6))
    batches = iter(first)
    for _ in range(5):
        next(batches)
    second, rest = audited(in_memory(50, 6))
    second.load_state_dict(first.state_dict())
    list(second)
    whole = audit.merge([rest.state_dict()])
    whole.check()
    assert whole.proven == [0]


def test_other_numbers_of_ranks_are_proven_together():
    states, audits = [], []
    for rank in range(2):
        loader, audit = audited(in_memory(80, 3), shard=(rank, 2), even="allow")
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        states.append(loader.state_dict())
        audits.append(audit)
    for rank in range(3):
        loader, audit = audited(in_memory(80, 3), shard=(rank, 3), even="allow")
        loader.load_state_dict(states)
        list(loader)
        audits.append(audit)
    whole = Audit.merged(audits)
    whole.check()
    assert whole.proven == [0]


def test_a_rank_that_is_missing_is_noticed():
    audits = []
    for rank in (0, 0):
        loader, audit = audited(in_memory(40, 9), shard=(rank, 2))
        list(loader)
        audits.append(audit)
    assert Audit.merged(audits).proven == []


def test_rows_that_never_came_are_named(monkeypatch):
    from headrace.streams.rank_split import Deal

    dealt = Deal.__iter__, Deal.__getitem__
    loader, audit = audited(in_memory(40, 4))

    def without_the_last(self, index):
        if index == 9:
            raise IndexError
        return dealt[1](self, index)

    monkeypatch.setattr(Deal, "__getitem__", without_the_last)
    list(loader)
    with pytest.raises(AuditError, match="4 missing"):
        audit.check()


@pytest.mark.filterwarnings("ignore:on_error='skip'")
def test_batches_that_are_left_out_are_counted_as_such():
    def refuse_5(rows):
        if 5 in rows:
            raise ValueError("refused")
        return rows

    loader = DataLoader(in_memory(20, 9), 4, collate_fn=refuse_5, on_error="skip")
    audit = loader.audit()
    list(loader)
    audit.check()
    assert "16 delivered, 4 left out as bad" in audit.report()


@pytest.mark.parametrize("shard", ["stride", "dispatch"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("n", [0, 5, 6])
def test_an_iterable_that_does_not_tell_its_length_is_proven(shard, workers, n):
    stream = Stream.from_iterable(lambda: iter(range(n)), shard=shard, block_rows=2)
    loader, audit = audited(stream, num_workers=workers)
    assert [row for batch in loader for row in batch] == list(range(n))
    audit.check()
    assert audit.proven == [0]

"""Two ranks are stopped; one, or three, go on: every row of mixed and packed streams comes once, by audit."""

from __future__ import annotations

import json
from itertools import islice

import pytest

import headrace
from headrace import Audit, DataLoader
from tests.streams.test_ranks import numbers

LENGTHS = [4, 7, 3, 9, 5, 6, 8, 4, 7, 2, 6]


def mixed(known):
    first = numbers(LENGTHS, known=known).shuffle(blocks=3)
    second = numbers([5, 3, 6, 5], known=known).map(minus)
    return headrace.mix([first, second], [3, 1], stop="all")


def minus(number):
    return -1 - number


def tokens(number):
    return [number] * (abs(number) % 3 + 1)


STREAMS = {
    "shuffled": lambda known: numbers(LENGTHS, known=known).shuffle(blocks=3),
    "mixed by weight": mixed,
    "packed": lambda known: numbers(LENGTHS, known=known).shuffle(blocks=3).map(tokens).pack(4),
    "mixed and packed": lambda known: mixed(known).map(tokens).pack(4),
}


def make(kind, known, rank, world, **workers):
    return DataLoader(STREAMS[kind](known), 3, shard=(rank, world), even="allow", collate_fn=list, seed=1, **workers)


def rows_of(batches):
    """Tokens, where rows are packed."""
    rows = [getattr(row, "tolist", lambda row=row: row)() for batch in batches for row in batch]
    return [token for row in rows for token in (row if isinstance(row, list) else [row])]


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("later", [1, 3])
@pytest.mark.parametrize("saved_by", ["one rank", "all ranks"])
def test_the_union_of_all_rows_is_the_epoch(kind, known, later, saved_by):
    whole = sorted(rows_of(make(kind, known, 0, 1)))
    for steps in (0, 1, 2):
        audits, states, seen = [], [], []
        for rank in range(2):
            loader = make(kind, known, rank, 2)
            audits.append(loader.audit())
            batches = iter(loader)
            seen += rows_of(islice(batches, steps))
            states.append(json.loads(json.dumps(loader.state_dict())))
        state = states if saved_by == "all ranks" else states[1]
        for rank in range(later):
            workers = {"num_workers": 2, "engine": "threads"} if rank == 1 else {}
            with make(kind, known, rank, later, **workers) as loader:
                audit = loader.audit()
                loader.load_state_dict(state)
                seen += rows_of(loader)
                audits.append(audit)
        assert sorted(seen) == whole
        audit = Audit.merged(audits if steps else audits[2:])
        audit.check()
        assert audit.proven == [0], audit.report()

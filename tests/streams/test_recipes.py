"""Random recipes, engines, ranks and stops: the rows are those of one plain reader, each once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import DataLoader, Stream
from headrace.streams.readers import mix
from tests.streams.memory import in_memory
from tests.streams.test_plan import BusyEngine

QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Case(NamedTuple):
    """A stream, and the rows that a plain reader finds in it; None if only the stream itself knows their order."""

    stream: Stream
    rows: list[Any]


def tripled(n):
    return 3 * n


def is_kept(n):
    return n % 3 != 1


def some(n):
    return [n] * (n % 3)


STEPS = {
    "map": (lambda stream: stream.map(tripled), lambda rows: [tripled(n) for n in rows]),
    "filter": (lambda stream: stream.filter(is_kept), lambda rows: [n for n in rows if is_kept(n)]),
    "flat_map": (lambda stream: stream.flat_map(some), lambda rows: [m for n in rows for m in some(n)]),
}


@st.composite
def sources(draw):
    n, per_block = draw(st.integers(0, 45)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["blocks", "stride", "dispatch"]))
    if kind == "blocks":
        return Case(in_memory(n, per_block), list(range(n)))
    return Case(Stream.from_iterable(lambda: iter(range(n)), shard=kind, block_rows=per_block), list(range(n)))


@st.composite
def steps(draw, case):
    stream, rows = case
    for name in draw(st.lists(st.sampled_from([*STEPS, "take", "skip"]), max_size=3)):
        if name in STEPS:
            change, model = STEPS[name]
            stream, rows = change(stream), model(rows)
        else:
            n = draw(st.integers(0, 40))
            stream, rows = getattr(stream, name)(n), rows[:n] if name == "take" else rows[n:]
    times = draw(st.integers(1, 2))
    return Case(stream.repeat(times), rows * times) if times > 1 else Case(stream, rows)


@st.composite
def cases(draw):
    """Streams in their natural order."""
    return draw(steps(draw(sources())))


@st.composite
def shuffled_cases(draw):
    """Streams and mixes of streams, shuffled or not, whose order only they know."""
    if draw(st.booleans()):
        stream = draw(sources()).stream.shuffle(blocks=draw(st.integers(1, 3)))
    else:
        stop = draw(st.sampled_from(["first", "all", "longest"]))
        stream = mix([draw(cases()).stream, draw(cases()).stream], [1, draw(st.integers(1, 3))], stop=stop)
    stream = draw(steps(Case(stream, []))).stream
    return Case(stream, list(stream))


def packed(case, length):
    if length is None:
        return case
    tokens = [token for n in case.rows for token in some(n)]
    rows = [tokens[i : i + length] for i in range(0, len(tokens), length)]
    if case.stream.recipe.rounds != 1:
        return case
    return Case(case.stream.map(some).pack(length), rows)


def make(stream, size, how, random, **options):
    kind, workers = how
    engine = BusyEngine(random.choice, workers) if kind == "busy" else kind
    n_workers = 0 if kind == "busy" else workers
    return DataLoader(stream, size, collate_fn=list, engine=engine, num_workers=n_workers, **options)


hows = st.sampled_from([("threads", 0), ("threads", 2), ("busy", 1), ("busy", 3)])


def check(case, size, first, then, at, random):
    """The batches are those of the rows; a loader with other workers goes on after batch `at`."""
    with make(case.stream, size, first, random) as loader:
        seen = [(batch, json.dumps(loader.state_dict())) for batch in loader]
    assert [batch for batch, _ in seen] == [case.rows[i : i + size] for i in range(0, len(case.rows), size)]
    if at < len(seen) - 1:
        with make(case.stream, size, then, random) as resumed:
            resumed.load_state_dict(json.loads(seen[at][1]))
            assert list(resumed) == [batch for batch, _ in seen[at + 1 :]]


@QUICK
@given(
    case=cases(),
    length=st.none() | st.integers(1, 5),
    size=st.integers(1, 7),
    first=hows,
    then=hows,
    at=st.integers(0, 20),
    random=st.randoms(use_true_random=True),
)
def test_natural_order(case, length, size, first, then, at, random):
    check(packed(case, length), size, first, then, at, random)


@QUICK
@given(
    case=shuffled_cases(),
    size=st.integers(1, 7),
    first=hows,
    then=hows,
    at=st.integers(0, 20),
    random=st.randoms(use_true_random=True),
)
def test_shuffles_and_mixes(case, size, first, then, at, random):
    check(case, size, first, then, at, random)


@QUICK
@given(
    case=cases() | shuffled_cases(),
    size=st.integers(1, 5),
    how=hows,
    world=st.integers(1, 3),
    even=st.sampled_from(["drop", "pad", "repeat", "allow"]),
    random=st.randoms(use_true_random=True),
)
def test_ranks(case, size, how, world, even, random):
    parts = []
    for rank in range(world):
        with make(case.stream, size, how, random, shard=(rank, world), even=even) as loader:
            parts.append(list(loader))
    rows = Counter(row for part in parts for batch in part for row in batch)
    if even in ("pad", "repeat") and world > 1:
        assert set(rows) == set(case.rows)
        assert not Counter(case.rows) - rows
    else:
        assert not rows - Counter(case.rows)
    if even == "allow" or world == 1:
        assert rows == Counter(case.rows)
    else:
        assert len({len(part) for part in parts}) == 1
    if even == "repeat" and world > 1:
        assert {len(batch) for part in parts for batch in part} <= {size}

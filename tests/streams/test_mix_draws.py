"""Mixes that draw evenly, by tokens, or batch by batch; and weights that change after a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Audit, DataLoader, StateError, Stream
from headrace.streams.readers import mix
from tests.streams.memory import in_memory
from tests.streams.test_mix import labelled

ENGINES = [("processes", 0), ("threads", 2), ("processes", 2)]
DRAWS = ["random", "even", "tokens", "stratified", "batches"]


def names_of(batch):
    return Counter(row[0] for row in batch)


def documents(name, n, per_block=7):
    """Rows of a name, a number and some more, of different lengths."""
    rows = [(name, i, *range(i * 13 % (5 if name == "a" else 29))) for i in range(n)]
    blocks = [rows[i : i + per_block] for i in range(0, n, per_block)]
    return Stream.from_blocks(range(len(blocks)), lambda i: blocks[i])


def blend_as_megatron(weights, n):
    """Which data set gives each sample: always the one that lags furthest behind its share."""
    shares, given_rows, order = np.array(weights) / sum(weights), np.zeros(len(weights)), []
    for position in range(n):
        order.append(int(np.argmax(shares * max(position, 1) - given_rows)))
        given_rows[order[-1]] += 1
    return order


class TestEven:
    @pytest.mark.parametrize("weights", [[1, 1], [3, 1], [0.7, 0.2, 0.1], [5, 3, 1, 1], [100, 1]])
    def test_each_has_its_share_at_any_position_as_megatron_blends(self, weights):
        streams = [labelled(i, 3000, 100, known=True) for i in range(len(weights))]
        rows = list(islice(mix(streams, weights, draw="even"), 2000))
        theirs = blend_as_megatron(weights, 2000)
        for number, weight in enumerate(weights):
            ours = np.cumsum([row[0] == number for row in rows])
            share = np.arange(1, 2001) * weight / sum(weights)
            assert np.abs(ours - share).max() <= 1.01
            assert np.abs(ours - np.cumsum(np.array(theirs) == number)).max() <= 1
        for number in range(len(weights)):
            assert [i for name, i in rows if name == number] == list(range(Counter(r[0] for r in rows)[number]))

    def test_weights_may_change(self):
        streams = [labelled(i, 3000, 100) for i in range(2)]
        rows = [name for name, _ in islice(mix(streams, [(0, [1, 1]), (500, [1, 4])], draw="even"), 1500)]
        assert abs(sum(rows[:500]) - 250) <= 1
        assert abs(sum(rows[500:]) - 800) <= 1


class TestTokens:
    @settings(deadline=None, max_examples=40)
    @given(
        lengths=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=60), min_size=2, max_size=3),
        weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=3, max_size=3),
        per_block=st.integers(1, 20),
    )
    def test_the_share_of_tokens_is_kept_within_one_row(self, lengths, weights, per_block):
        def stream(name, sizes):
            rows = [[name] * size for size in sizes]
            blocks = [rows[i : i + per_block] for i in range(0, len(rows), per_block)]
            return Stream.from_blocks(range(len(blocks)), lambda i: blocks[i])

        weights = weights[: len(lengths)]
        mixed = mix([stream(i, sizes) for i, sizes in enumerate(lengths)], weights, draw="tokens", stop="first")
        tokens = [0] * len(lengths)
        longest = max(max(sizes) for sizes in lengths)
        for row in mixed:
            for name in row:
                tokens[name] += 1
            total = sum(tokens)
            for i, weight in enumerate(weights):
                assert abs(tokens[i] - total * weight / sum(weights)) <= len(lengths) * longest
        assert mixed.count() == len(list(mixed))

    def test_rows_may_be_dicts_or_be_measured(self):
        short = in_memory(400, 50).map(lambda n: {"ids": [0] * 10, "text": "a"})
        long = in_memory(400, 50).map(lambda n: {"ids": [1] * 40, "text": "a"})
        for options, expected in (({}, 4), ({"length": lambda row: len(row["text"])}, 1)):
            rows = list(islice(mix([short, long], draw="tokens", **options), 200))
            counts = Counter(row["ids"][0] for row in rows)
            assert abs(counts[0] / counts[1] - expected) < 0.2

    def test_what_is_measured_is_remembered(self):
        reads = []

        def read(block):
            reads.append(block)
            return [[block] * 5] * 10

        stream = Stream.from_blocks(range(4), read)
        loader = DataLoader(
            mix([stream, in_memory(40, 10).map(lambda n: [n])], draw="tokens", stop="all"), 8, collate_fn=list, seed=1
        )
        list(loader)
        first = len(reads)
        list(loader)
        assert len(reads) - first < first


class TestBatches:
    @pytest.mark.parametrize("weights", [[1, 1], [3, 1], [5, 2, 1]])
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_every_batch_has_exactly_its_shares(self, weights, engine, workers):
        streams = [labelled(i, 700 * weight, 50) for i, weight in enumerate(weights)]
        loader = DataLoader(
            mix(streams, weights, draw="stratified"),
            16,
            collate_fn=list,
            drop_last=True,
            engine=engine,
            num_workers=workers,
            seed=2,
        )
        with loader:
            batches = list(loader)
        assert len(batches) > 20
        for batch in batches[:-1]:
            assert names_of(batch) == {i: 16 * weight // sum(weights) for i, weight in enumerate(weights)}
        assert len({tuple(row[0] for row in batch) for batch in batches}) > len(batches) // 2  # in any order

    def test_shares_that_are_no_whole_numbers_are_rounded(self):
        streams = [labelled(i, 4000, 100, known=True) for i in range(3)]
        loader = DataLoader(mix(streams, [0.55, 0.3, 0.15], draw="stratified"), 10, collate_fn=list, seed=2)
        counts = [names_of(batch) for batch in islice(loader, 400)]
        for number, share in enumerate((5.5, 3, 1.5)):
            found = [count[number] for count in counts]
            assert set(found) <= {int(share), int(np.ceil(share))}
            assert abs(sum(found) - 400 * share) < 5

    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_whole_batches_of_one_stream(self, engine, workers):
        streams = [labelled(i, 3000, 70) for i in range(2)]
        loader = DataLoader(
            mix(streams, [1, 3], draw="batches"),
            12,
            collate_fn=list,
            drop_last=True,
            engine=engine,
            num_workers=workers,
            seed=2,
        )
        with loader:
            batches = list(loader)
        counts = [names_of(batch) for batch in batches[:-1]]
        assert all(len(count) == 1 for count in counts)
        share = sum(0 in count for count in counts) / len(counts)
        assert 0.15 < share < 0.35
        for number in range(2):
            assert [i for b in batches for name, i in b if name == number] == list(
                range(sum(name == number for b in batches for name, _ in b))
            )

    @pytest.mark.parametrize("draw", ["stratified", "batches"])
    @pytest.mark.parametrize("world", [2, 3])
    @pytest.mark.parametrize("n_rows", [200, 1500])
    def test_also_on_each_rank(self, draw, world, n_rows):
        """With few windows, ranks share each of them: batch by batch."""
        mixed = mix([labelled(i, n_rows, 60) for i in range(2)], [3, 1], draw=draw)
        seen = []
        for rank in range(world):
            loader = DataLoader(mixed, 8, shard=(rank, world), collate_fn=list, seed=3)
            batches = list(loader)
            seen += [row for batch in batches for row in batch]
            for batch in batches[:-1]:
                assert sorted(names_of(batch).values()) in ([[2, 6]] if draw == "stratified" else [[8]])
        assert len(set(seen)) == len(seen) > n_rows * 0.5

    @pytest.mark.parametrize("draw", ["stratified", "batches"])
    def test_an_audit_finds_every_row(self, draw):
        mixed = mix([labelled(i, 150, 40) for i in range(2)], draw=draw, stop="all")
        audits = []
        for rank in range(2):
            loader = DataLoader(mixed, 8, shard=(rank, 2), even="allow", collate_fn=list, seed=3)
            audits.append(loader.audit(full=True))
            list(loader)
        whole = Audit.merged(audits)
        whole.check()
        assert whole.proven == [0]

    def test_another_batch_size_is_another_mix(self):
        mixed = mix([labelled(i, 100, 20) for i in range(2)], draw="stratified")
        loader = DataLoader(mixed, 8, collate_fn=list)
        next(iter(loader))
        with pytest.raises(StateError, match="mix"):
            DataLoader(mixed, 4, collate_fn=list).load_state_dict(loader.state_dict())

    @pytest.mark.parametrize("draw", ["stratified", "batches"])
    def test_what_would_change_batches_is_refused(self, draw):
        mixed = mix([labelled(0, 10, 5), labelled(1, 10, 5)], draw=draw)
        for make in (
            lambda: mixed.shuffle(),
            lambda: mixed.pack(4),
            lambda: mixed.pack(4, fit="best"),
            lambda: mix([mixed]),
        ):
            with pytest.raises(ValueError, match="batches"):
                make()

    def test_weights_change_between_batches(self):
        streams = [labelled(i, 2000, 100) for i in range(2)]
        mixed = mix(streams, [(0, [1, 1]), (21, [3, 1])], draw="stratified")
        counts = [names_of(batch)[0] for batch in islice(DataLoader(mixed, 8, collate_fn=list), 10)]
        assert counts == [4, 4, 4, 6, 6, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("stop", ["all", "longest"])
@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_goes_on_at_any_batch_with_other_workers(draw, stop, engine, workers):
    def make(n=0, kind="processes"):
        parts = [
            documents("a", 60).shuffle(blocks=2),
            documents("b", 80).filter(lambda row: row[1] % 3),
            documents("c", 30),
        ]
        mixed = mix(parts, [2, 3, 1], draw=draw, stop=stop).map(lambda row: (*row[:2], headrace.rng().random()))
        return DataLoader(mixed, 5, collate_fn=list, seed=4, num_workers=n, engine=kind)

    alone = make()
    seen = [(batch, json.dumps(alone.state_dict())) for batch in alone]
    with make(workers, engine) as loader:
        assert list(loader) == [batch for batch, _ in seen]
    for at in (0, len(seen) // 2):
        with make(workers, engine) as resumed:
            resumed.load_state_dict(json.loads(seen[at][1]))
            assert list(resumed) == [batch for batch, _ in seen[at + 1 :]]
    if stop == "all":
        rows = Counter(row[:2] for batch, _ in seen for row in batch)
        numbers = {"a": range(60), "b": [i for i in range(80) if i % 3], "c": range(30)}
        assert rows == Counter((name, i) for name, some in numbers.items() for i in some)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(("n", "worlds"), [(60, (1, 2)), (60, (3, 1)), (200, (2, 3))])
@pytest.mark.parametrize("reweighed", [False, True])
def test_other_ranks_have_what_is_left(draw, worlds, reweighed, n):
    def make(rank, world, weights):
        mixed = mix([documents("a", n), documents("b", 2 * n).shuffle(blocks=2)], weights, draw=draw, stop="all")
        return DataLoader(mixed, 4, shard=(rank, world), even="allow", collate_fn=list, seed=4)

    seen, states = [], None
    weights = [1, 1]
    for life, world in enumerate((*worlds, worlds[0])):
        saved = []
        for rank in range(world):
            loader = make(rank, world, weights)
            if states is not None:
                loader.load_state_dict(states)
            batches = iter(loader)
            n_taken = 3 + rank if life < 2 else 10**6
            seen += [row[:2] for _, batch in zip(range(n_taken), batches, strict=False) for row in batch]
            saved.append(json.loads(json.dumps(loader.state_dict())))
        states = saved
        weights = [1, life + 2] if reweighed else weights
    assert Counter(seen) == Counter([("a", i) for i in range(n)] + [("b", i) for i in range(2 * n)])


class TestNewWeights:
    def make(self, weights, n=0, kind="processes", **options):
        mixed = mix([labelled("a", 4000, 40), labelled("b", 4000, 50)], weights, **options)
        return DataLoader(mixed, 10, collate_fn=list, seed=4, num_workers=n, engine=kind)

    def stop_after(self, loader, n_batches):
        with loader:
            rows = [row for batch in islice(loader, n_batches) for row in batch]
            return rows, json.loads(json.dumps(loader.state_dict()))

    @pytest.mark.parametrize("draw", DRAWS)
    @pytest.mark.parametrize(("engine", "workers"), ENGINES)
    def test_hold_from_a_checkpoint_on_and_nobody_loses_a_row(self, draw, engine, workers):
        rows, state = self.stop_after(self.make([1, 1], workers, engine, draw=draw), 30)
        for weights, share in (([9, 1], 0.9), ([1, 4], 0.2)):
            loader = self.make(weights, workers, engine, draw=draw)
            loader.load_state_dict(state)
            more, state = self.stop_after(loader, 60)
            drawn = Counter(name for name, _ in more[-300:])
            assert abs(drawn["a"] / 300 - share) < 0.1
            rows += more
        for name in "ab":
            numbers = [i for label, i in rows if label == name]
            assert numbers == list(range(len(numbers)))

    def test_a_resume_after_a_change_is_exact(self):
        _, state = self.stop_after(self.make([1, 1]), 30)
        loader = self.make([4, 1])
        loader.load_state_dict(state)
        batches = iter(loader)
        first = [next(batches) for _ in range(7)]
        saved, rest = json.loads(json.dumps(loader.state_dict())), list(batches)
        again = self.make([4, 1], 2, "threads")
        with again:
            again.load_state_dict(saved)
            assert list(again) == rest
        assert first
        assert len(rest) > 100

    @pytest.mark.parametrize(
        "after", [[(0, [1, 1]), (100, [2, 1])], lambda position: [2, 1]], ids=["pairs", "function"]
    )
    def test_other_kinds_of_weights(self, after):
        rows, state = self.stop_after(self.make([1, 1]), 30)
        loader = self.make(after)
        loader.load_state_dict(state)
        rows += self.stop_after(loader, 100)[0]
        for name in "ab":
            numbers = [i for label, i in rows if label == name]
            assert numbers == list(range(len(numbers)))

    def test_the_next_epoch_has_them_from_its_beginning(self):
        _, state = self.stop_after(self.make([1, 1]), 30)
        loader = self.make([9, 1])
        loader.load_state_dict(state)
        list(loader)
        fresh = self.make([9, 1])
        fresh.set_epoch(1)
        assert list(loader) == list(fresh)

    def test_at_the_beginning_of_an_epoch_nothing_is_left_of_the_old_ones(self):
        loader = self.make([9, 1])
        loader.load_state_dict(self.make([1, 1]).state_dict())
        assert list(loader) == list(self.make([9, 1]))

    def test_one_of_several_ranks_does_not_know(self):
        def make(weights, rank):
            mixed = mix([labelled("a", 400, 40), labelled("b", 400, 50)], weights)
            return DataLoader(mixed, 10, collate_fn=list, seed=4, shard=(rank, 2))

        states = []
        for rank in range(2):
            loader = make([1, 1], rank)
            next(iter(loader))
            states.append(loader.state_dict())
        with pytest.raises(StateError, match="Pass the states of all ranks"):
            make([2, 1], 0).load_state_dict(states[0])
        rows = []
        for rank in range(2):
            loader = make([2, 1], rank)
            loader.load_state_dict(states)
            rows += [row for batch in loader for row in batch]
        assert len(set(rows)) == len(rows)

    @pytest.mark.parametrize(
        "change",
        [lambda s: s.shuffle(blocks=2), lambda s: s.take(500), lambda s: s.repeat(2)],
        ids=["shuffle", "take", "repeat"],
    )
    def test_where_it_cannot_be_said_from_where_on(self, change):
        def make(weights):
            return DataLoader(
                change(mix([labelled("a", 400, 40), labelled("b", 400, 50)], weights)), 10, collate_fn=list
            )

        loader = make([1, 1])
        next(iter(loader))
        with pytest.raises(StateError, match="other weights"):
            make([2, 1]).load_state_dict(loader.state_dict())


def test_an_unknown_draw():
    with pytest.raises(ValueError, match="'random', 'even', 'tokens', 'stratified', 'batches'"):
        mix([in_memory(2, 1)], draw="odd")


def test_accumulated_counts_of_dealt_units():
    from headrace.streams.windows import Share

    for unit, step, n in [(1, 3, 10), (4, 2, 13), (4, 3, 12), (5, 2, 3), (3, 2, 0)]:
        shares = [Share(None, first, step, unit=unit) for first in range(step)]
        rows = [share.rows_at(np.arange(share.n_dealt(n))).tolist() for share in shares]
        assert sorted(row for some in rows for row in some) == list(range(n))
        assert list(accumulate(map(len, rows)))[-1] == n

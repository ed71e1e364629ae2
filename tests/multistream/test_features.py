"""What every loader has: collate_fn, bad sequences left out, audits, seeking, a chosen number of workers."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Audit, Dataset, StateError
from headrace.base.errors import AuditError, TooManyBadSamplesError, WorkerError
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import Case, cases, listed, plain, take, through_json
from tests.multistream.test_items import ITEMS, lists, sequences_of
from tests.needs import needs_torch
from tests.recorded.__main__ import SAVED, read
from tests.recorded.cases import STATES

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:on_error='skip' leaves out"),
]
QUICK = settings(deadline=None, max_examples=50)
ENGINES = [
    pytest.param({}, id="inline"),
    pytest.param({"num_workers": 2, "engine": "threads"}, id="threads"),
    pytest.param({"num_workers": 2}, id="processes"),
]
ASSIGNS = ("partition", "shuffle", "offset")


# collate_fn


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ITEMS)
def test_collate_fn_gets_the_item_of_each_position(kind, engine):
    sequences = sequences_of(kind, [8, 8])
    with MultiStreamDataLoader(sequences, 2, assign="partition", collate_fn=list, **engine) as loader:
        seen = list(islice(loader, 24))
    assert [lists(batch) for batch in seen] == [[lists(sequence[k % 8]) for sequence in sequences] for k in range(24)]
    assert all(type(batch) is list for batch in seen)


def test_collate_fn_gets_bytes_and_strings_unharmed():
    """Arrays of them would lose what stands at their end."""
    sequences = [[b"a\0", b"\0\0", b""], [b"b\0\0", b"c", b"\0"]]
    loader = MultiStreamDataLoader(sequences, 2, assign="partition", collate_fn=list)
    assert take(loader, 3) == [list(pair) for pair in zip(*sequences, strict=True)]
    loader = MultiStreamDataLoader([["a\0", "b"], ["c", "\0"]], 2, assign="partition", collate_fn=list)
    batches = take(loader, 2)
    assert batches == [["a\0", "c"], ["b", "\0"]]
    assert {type(item) for batch in batches for item in batch} == {str}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_collate_fn_gets_the_chunk_of_each_position(engine, batch_first):
    frames = [np.arange(n * 3, dtype=np.float32).reshape(n, 3) + 100 * n for n in (12, 8)]
    loader = MultiStreamDataLoader(
        frames, 2, assign="partition", seq_len=4, batch_first=batch_first, collate_fn=list, **engine
    )
    with loader:
        [first, second] = islice(loader, 2)
    assert [np.asarray(part).tolist() for part in first] == [sequence[:4].tolist() for sequence in frames]
    assert [np.asarray(part).tolist() for part in second] == [sequence[4:8].tolist() for sequence in frames]


@pytest.mark.parametrize("engine", ENGINES)
def test_collate_fn_makes_the_data_only(engine):
    case = Case(lengths=(5, 3, 4), assign="partition", cycle=False, targets=True, is_first=True, seq_len=2)
    batches = take(case.loader(collate_fn=lambda parts: [np.asarray(part).sum() for part in parts], **engine), 100)
    expected = case.expected(100)
    assert [batch["targets"] for batch in batches] == [batch["targets"] for batch in expected]
    assert [batch["mask"] for batch in batches] == [batch["mask"] for batch in expected]
    assert [batch["is_first"] for batch in batches] == [batch["is_first"] for batch in expected]
    sums = [np.sum(batch["data"], axis=0).tolist() for batch in expected]
    assert [[int(part) for part in batch["data"]] for batch in batches] == sums


@QUICK
@given(case=cases(), workers=st.integers(0, 3))
def test_collate_fn_sees_what_the_default_sees(case, workers):
    axis = 0 if case.seq_len is None or case.batch_first else 1
    loader = case.loader(
        collate_fn=lambda parts: np.stack([np.asarray(part) for part in parts], axis),
        output="numpy",
        num_workers=workers,
        engine="threads",
    )
    assert take(loader, 10) == case.expected(10)


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_of_a_collate_fn_are_left_as_they_are(engine):
    """As the DataLoader does, unless another output is asked for."""
    with Case().loader(collate_fn=np.array, **engine) as loader:
        assert type(next(iter(loader))) is np.ndarray
    with Case().loader(collate_fn=np.array, output="numpy", **engine) as loader:
        assert type(next(iter(loader))) is np.ndarray


@needs_torch
@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_of_a_collate_fn_become_tensors_if_asked_for(engine):
    import torch

    with Case().loader(collate_fn=np.array, output="torch", **engine) as loader:
        batch = next(iter(loader))
    assert type(batch) is torch.Tensor
    assert batch.tolist() == Case().expected(1)[0]
    values = torch.arange(6, dtype=torch.bfloat16)
    with MultiStreamDataLoader([values], 2, collate_fn=torch.stack, **engine) as loader:
        assert [batch.dtype for batch in islice(loader, 2)] == [torch.bfloat16] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_collate_fn_ends_the_epoch(engine):
    def fail(items):
        if 3 in [int(item) % 1000 for item in items]:
            raise ValueError("a three")
        return list(items)

    case = Case(lengths=(6,), batch_size=1, assign="partition")
    with case.loader(collate_fn=fail, **engine) as loader:
        batches, seen = iter(loader), []
        with pytest.raises(ValueError, match="a three"):
            seen.extend(batches)
        assert [[int(item) for item in batch] for batch in seen] == [[0], [1], [2]]
        assert loader.state_dict()["batches"] == 3
        assert list(batches) == []


# on_error="skip"


class Broken:
    """A sequence that raises at some item; any process can import it."""

    def __init__(self, items, at):
        self.items = items
        self.at = at

    def __iter__(self):
        for index, item in enumerate(self.items):
            if index == self.at:
                raise ValueError(f"item {item} is broken")
            yield item


def broken_loader(counts, broken, batch_size=3, **options):
    """Sequences some of which raise: a dict of them, and the first item that does."""
    sequences = [Broken(items, broken.get(number)) for number, items in enumerate(listed(counts))]
    return MultiStreamDataLoader(sequences, batch_size, on_error="skip", **options)


def cut_case(lengths, broken, batch_size=3, **options):
    """The same without what comes after."""
    left = tuple(broken.get(number, n) for number, n in enumerate(lengths))
    return Case(lengths=left, batch_size=batch_size, given="iterables", **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cycle", [True, False])
@pytest.mark.parametrize("assign", ["partition", "shuffle"])
@pytest.mark.parametrize("layout", [{}, {"seq_len": 3}, {"seq_len": 3, "targets": True, "is_first": True}], ids=str)
def test_the_rest_of_a_sequence_that_raises_is_left_out(assign, cycle, layout, engine):
    lengths, broken = (7, 5, 9, 4, 6), {1: 2, 2: 6, 4: 0}
    options = {"assign": assign, "cycle": cycle, **layout}
    case = cut_case(lengths, broken, **options)
    with broken_loader(lengths, broken, **options, **engine) as loader:
        assert [plain(batch) for batch in islice(loader, 25)] == case.expected(25)
        texts = {error.error for error in loader.errors}
    assert texts == {f"ValueError: item {item} is broken" for item in (1002, 2006, 4000)}
    if not cycle:
        times = 3 if assign == "shuffle" else 1
        assert len(loader.errors) == 3 * times


class BrokenByIndex(Dataset):
    """A sequence by index, one of whose items raises."""

    def __init__(self, items, at):
        self.items = items
        self.at = at

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if index == self.at:
            raise ValueError(f"item {self.items[index]} is broken")
        return self.items[index]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seq_len", [None, 3])
def test_the_rest_of_a_dataset_that_raises_is_left_out(seq_len, engine):
    options = {"assign": "partition", "cycle": False, "seq_len": seq_len, **engine}
    sequences = [BrokenByIndex(items, 5 if number == 1 else None) for number, items in enumerate(listed([9, 9]))]
    with MultiStreamDataLoader(sequences, 2, on_error="skip", **options) as loader:
        seen = [plain(batch) for batch in loader]
    given = [np.array(batch["data"])[np.array(batch["mask"])].ravel().tolist() for batch in seen]
    assert sorted(chain.from_iterable(given)) == sorted([*range(9), *range(1000, 1005)])
    [error] = loader.errors
    assert error.key == "sequence 1, from item 5 on"


@pytest.mark.parametrize("engine", ENGINES)
def test_errors_say_which_sequence_and_where(engine):
    with broken_loader((7, 5, 9), {1: 2}, assign="partition", cycle=False, **engine) as loader:
        list(loader)
    [error] = loader.errors
    assert error.key == "sequence 1, from item 2 on"
    assert "item 1002 is broken" in error.traceback
    assert 0 <= error.batch <= 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_that_raises_leaves_out_the_sequence(engine):
    def read_one(number):
        if number == 1:
            raise OSError("no such file")
        return listed([6, 6, 6, 6])[number]

    options = {"assign": "partition", "cycle": False, **engine}
    with MultiStreamDataLoader(range(4), 2, read=read_one, on_error="skip", **options) as loader:
        seen = [plain(batch) for batch in loader]
    case = Case(lengths=(6, 0, 6, 6), batch_size=2, assign="partition", cycle=False, given="generators")
    assert seen == case.expected(100)
    assert [(error.key, error.error) for error in loader.errors] == [("sequence 1", "OSError: no such file")]
    with (
        MultiStreamDataLoader(range(4), 2, read=read_one, **options) as loader,
        pytest.raises(OSError, match="no such file"),
    ):
        list(loader)


@pytest.mark.parametrize("engine", ENGINES)
def test_lengths_that_are_known_hold_no_more_if_sequences_break(engine):
    """An epoch has as many steps as it was to have; positions that lack items are empty at its end."""
    lengths = (6, 6, 6)
    with broken_loader(lengths, {1: 2}, assign="partition", cycle=False, lengths=lengths, **engine) as loader:
        seen = [plain(batch) for batch in loader]
        assert len(seen) == len(loader) == 6
    assert [batch["mask"] for batch in seen] == [[True] * 3] * 2 + [[True, False, True]] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_max_errors(engine):
    options = {"assign": "partition", "cycle": False, **engine}
    with broken_loader((7, 5, 9), {0: 2, 1: 2, 2: 2}, max_errors=3, **options) as loader:
        assert len(list(loader)) == 2
    with (
        broken_loader((7, 5, 9), {0: 2, 1: 2, 2: 2}, max_errors=2, **options) as loader,
        pytest.raises(TooManyBadSamplesError, match="max_errors=2"),
    ):
        list(loader)


@pytest.mark.parametrize("engine", ENGINES)
def test_quarantine(tmp_path, engine):
    path = tmp_path / "bad.jsonl"
    with broken_loader((7, 5, 9), {1: 2}, assign="partition", cycle=False, quarantine=path, **engine) as loader:
        list(loader)
        list(loader)
    [line] = path.read_text().splitlines()
    record = json.loads(line)
    assert "sequence 1, from item 2 on" in record["where"]
    assert record["error"] == "ValueError: item 1002 is broken"


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_but_errors(engine):
    with (
        broken_loader((3, 3, 3), {0: 0, 1: 0, 2: 0}, assign="partition", **engine) as loader,
        pytest.raises((TooManyBadSamplesError, ValueError, WorkerError), match=r"is broken|sequences are empty"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_it_resumes_after_what_was_left_out(engine):
    lengths, broken = (7, 5, 9, 4, 6), {1: 2, 2: 6, 4: 0}

    def make(**options):
        return broken_loader(lengths, broken, assign="partition", cycle=False, targets=True, **options)

    with make() as loader:
        seen = [(plain(batch), through_json(loader.state_dict())) for batch in loader]
    for at, (_, state) in enumerate(seen[:-1]):
        with make(**engine) as loader:
            loader.load_state_dict(state)
            assert [plain(batch) for batch in loader] == [batch for batch, _ in seen[at + 1 :]]


# audit()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seq_len", [None, 4])
@pytest.mark.parametrize("assign", ASSIGNS)
def test_an_audit_proves_that_every_item_comes_once(assign, seq_len, engine):
    case = Case(lengths=(6, 3, 9, 4, 0, 5), assign=assign, cycle=False, seq_len=seq_len)
    with case.loader(**engine) as loader:
        audit = loader.audit()
        for _ in range(2):
            list(loader)
    assert audit.proven == [0, 1]
    audit.check()
    n = 27 * (3 if assign == "shuffle" else 1)
    lines = [f"epoch {epoch}: {n} samples expected, {n} delivered, each exactly once." for epoch in range(2)]
    assert audit.report().splitlines() == lines


@QUICK
@given(case=cases(cycle=False, given="lists"), workers=st.integers(0, 2), full=st.booleans())
def test_audits_of_all_cases(case, workers, full):
    with case.loader(num_workers=workers, engine="threads") as loader:
        audit = loader.audit(full=full)
        list(loader)
    assert audit.proven == [0]


@pytest.mark.parametrize("engine", ENGINES[:2])
@pytest.mark.parametrize("assign", ASSIGNS)
def test_audits_of_ranks_are_merged(assign, engine):
    case = Case(lengths=(6, 3, 9, 4), batch_size=3, assign=assign, cycle=False)
    audits = []
    for rank in range(2):
        with case.loader(shard=(rank, 2), **engine) as loader:
            audits.append(loader.audit(full=True))
            list(loader)
    assert [audit.proven for audit in audits] == [[], []]
    merged = Audit.merged([json.loads(json.dumps(audit.state_dict())) for audit in audits])
    assert merged.proven == [0]
    twice = Audit.merged([audits[0], audits[0]])
    assert twice.proven == []


def test_audits_of_positions_of_unknown_length_claim_nothing():
    with Case(cycle=False, given="generators").loader() as loader:
        audit = loader.audit()
        list(loader)
    assert audit.proven == []
    audit.check()


def test_audits_of_endless_epochs_claim_nothing():
    with Case().loader() as loader:
        audit = loader.audit()
        list(islice(loader, 50))
    assert audit.proven == []
    audit.check()


@pytest.mark.parametrize("engine", ENGINES[:2])
@pytest.mark.parametrize("assign", ASSIGNS)
def test_audits_go_on_after_a_resume(assign, engine):
    case = Case(assign=assign, cycle=False)
    with case.loader(**engine) as loader:
        first = loader.audit()
        list(islice(loader, 4))
        state, account = through_json(loader.state_dict()), through_json(first.state_dict())
    with case.loader(**engine) as loader:
        audit = loader.audit()
        audit.load_state_dict(account)
        loader.load_state_dict(state)
        list(loader)
    assert audit.proven == [0]


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_audits_notice_what_was_left_out(engine):
    lengths = (6, 6, 6)
    with broken_loader(lengths, {1: 2}, assign="partition", cycle=False, lengths=lengths, **engine) as loader:
        audit = loader.audit()
        list(loader)
    assert audit.proven == []
    with pytest.raises(AuditError, match="4"):
        audit.check()


# seek()


@QUICK
@given(case=cases(), batch=st.integers(0, 14), workers=st.integers(0, 2))
def test_seek_is_skipping(case, batch, workers):
    loader = case.loader(num_workers=workers, engine="threads")
    loader.seek(batch)
    assert take(loader, 5) == case.expected(batch + 5)[batch:]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("given", ["arrays", "generators"])
def test_states_and_numbers_after_a_seek(given, engine):
    case = Case(given=given, seq_len=2)
    with case.loader(**engine) as loader:
        loader.seek(7)
        batches = [plain(batch) for batch in islice(loader, 4)]
        state, stats = through_json(loader.state_dict()), loader.stats()
    assert batches == case.expected(11)[7:]
    assert (state["batches"], state["course"]["step"]) == (11, 22)
    assert (stats["batches"], stats["samples"]) == (4, 4 * 3)
    loader = case.loader()
    loader.load_state_dict(state)
    assert take(loader, 3) == case.expected(14)[11:]


def test_a_seek_reads_nothing_that_comes_before_if_lengths_are_known():
    asked = []

    class Watched:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            asked.append(index)
            return range(self.n)[index]

    loader = MultiStreamDataLoader([Watched(500), Watched(700)], 2, lengths=[500, 700], read=lambda watched: watched)
    loader.seek(900)
    assert take(loader, 1) == take(MultiStreamDataLoader([range(500), range(700)], 2), 901)[900:]
    assert len(asked) < 50


@pytest.mark.parametrize("given", ["arrays", "generators"])
def test_a_seek_past_the_end(given):
    case = Case(cycle=False, given=given)
    loader = case.loader()
    loader.seek(1000)
    assert take(loader, 5) == []
    assert take(loader, 5) == case.expected(5, epoch=1)
    with pytest.raises(ValueError, match="batch"):
        loader.seek(-1)


def test_a_seek_is_of_the_next_epoch():
    case = Case()
    loader = case.loader()
    take(loader, 3)
    loader.seek(4)
    assert take(loader, 2) == case.expected(6, epoch=1)[4:]
    loader.set_epoch(5)
    loader.seek(4)
    assert take(loader, 2) == case.expected(6, epoch=5)[4:]


# num_workers="auto", and what is said


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("given", ["arrays", "generators"])
def test_workers_are_chosen(given, engine):
    case = Case(given=given)
    loader = case.loader(num_workers="auto", engine=engine)
    assert type(loader.num_workers) is int
    assert take(loader, 20) == case.expected(20)


def test_quick_sequences_need_no_workers():
    assert Case(lengths=(1000, 1000)).loader(num_workers="auto", engine="threads").num_workers == 0


def test_choosing_workers_leaves_no_trace(tmp_path):
    path = tmp_path / "bad.jsonl"
    lengths, broken = (7, 5, 9), {1: 2}
    loader = broken_loader(
        lengths, broken, assign="partition", cycle=False, num_workers="auto", engine="threads", quarantine=path
    )
    assert not path.exists()
    assert loader.errors == []
    with loader:
        assert [plain(batch) for batch in loader] == cut_case(
            lengths, broken, assign="partition", cycle=False
        ).expected(100)
    assert len(loader.errors) == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seq_len", [None, 3])
def test_batches_and_samples_are_those_of_the_loop(seq_len, engine):
    case = Case(lengths=(40, 50, 60), seq_len=seq_len)
    with case.loader(**engine) as loader:
        list(islice(loader, 120))
        stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (120, 360)
    assert sum(worker["batches"] for worker in stats["workers"]) == 120
    case = replace(case, cycle=False)
    with case.loader(**engine) as loader:
        n = len(list(loader))
        stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (n, 3 * n) == (len(loader), 3 * len(loader))


# States of earlier versions

FLAT = {name: saved for name, saved in read(SAVED).items() if name.startswith("lanes/")}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FLAT)
def test_flat_states_load(tmp_path, name, engine):
    state, make = FLAT[name]["state"], STATES[name].make
    assert "course" not in state
    with make(tmp_path, {}) as loader:
        whole = [plain(batch) for batch in islice(loader, 80)]
    with make(tmp_path, engine) as loader:
        loader.load_state_dict(state)
        saved = loader.state_dict()
        rest = [plain(batch) for batch in islice(loader, 80 - STATES[name].at)]
    assert rest == whole[STATES[name].at :]
    assert saved["batches"] == STATES[name].at
    assert saved["course"]["step"] == state["step"]


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": None}, {"epoch": True}, {"headrace": 99}, {"places": None}, {"marks": 3}, {"first": "a"}],
    ids=str,
)
def test_damaged_flat_states_are_refused(tmp_path, change):
    name = "lanes/shuffle"
    loader = STATES[name].make(tmp_path, {})
    with pytest.raises(StateError):
        loader.load_state_dict({**FLAT[name]["state"], **change})


def test_flat_states_of_another_epoch_and_of_its_edge(tmp_path):
    case = Case(cycle=False)
    loader = case.loader()
    list(loader)
    state = through_json(loader.state_dict())
    flat = {"headrace": 1, "epoch": 1, "step": 0, **state["course"]}
    flat.update(step=0, first=0, places=[[0, 0]] * 3, marks={})
    again = case.loader()
    again.load_state_dict(flat)
    assert take(again, 100) == case.expected(100, epoch=1)

"""Items of all kinds: a step is what the default collation makes of one item of each position."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import CollateError, Dataset, TensorDataset, default_collate, register_collate
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import plain, take
from tests.needs import needs_torch

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

QUICK = settings(deadline=None, max_examples=60)
Point = namedtuple("Point", "x y")


def vector(k):
    return np.arange(3, dtype=np.float32) + k


ITEMS = {
    "int": lambda k: k,
    "float": lambda k: k / 2,
    "bool": lambda k: k % 2 == 0,
    "big": lambda k: 2**40 + k,
    "numpy scalar": lambda k: np.float32(k),
    "vector": vector,
    "string": str,
    "bytes": lambda k: bytes([k]),
    "tuple": lambda k: (k, vector(k)),
    "tuple with a string": lambda k: (k, f"item {k}"),
    "named tuple": lambda k: Point(k, -k),
    "dict": lambda k: {"x": vector(k), "y": k},
    "dict with a string": lambda k: {"x": str(k), "y": k},
    "ordered": lambda k: OrderedDict(a=k, b=k * 2),
    "nested": lambda k: {"x": [k, (k, vector(k))]},
    "list": lambda k: [k, k + 1],
    "now and then a float": lambda k: k if k % 5 else float(k),
    "shapes that change": lambda k: np.zeros(1 + k % 4 // 2),
    "types that change": lambda k: np.zeros(2, np.float32 if k % 8 < 4 else np.float64),
}


def sequences_of(kind, lengths):
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    return [[ITEMS[kind](start + k) for k in range(n)] for start, n in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize("workers", [0, 2])
def test_steps_are_collated_by_default(kind, workers):
    sequences = sequences_of(kind, [8, 8])
    loader = MultiStreamDataLoader(sequences, 2, assign="partition", num_workers=workers)
    with loader:
        batches = list(islice(loader, 24))
    expected = [default_collate([sequence[k % 8] for sequence in sequences]) for k in range(24)]
    assert repr(batches) == repr(expected)


@QUICK
@given(kind=st.sampled_from(list(ITEMS)), workers=st.integers(1, 3), lengths=st.lists(st.integers(0, 9), min_size=1))
def test_workers_do_not_matter(kind, workers, lengths):
    lengths = [*lengths, *([1] * (3 - sum(map(bool, lengths))))]  # something for each position
    arguments = {"assign": "partition", "cycle": False, "is_first": True}
    sequences = sequences_of(kind, lengths)

    def run(**others):
        try:
            with MultiStreamDataLoader(sequences, 3, **arguments, **others) as loader:
                return [repr(batch) for batch in loader]
        except (CollateError, RuntimeError) as error:
            return type(error).__mro__[1]

    assert run(num_workers=workers, engine="threads") == run()


CHUNKED = [name for name in ITEMS if name not in ("tuple with a string", *list(ITEMS)[-3:])]


@pytest.mark.parametrize("kind", CHUNKED)
@pytest.mark.parametrize("batch_first", [False, True])
def test_chunks(kind, batch_first):
    sequences = sequences_of(kind, [8, 8])
    arguments = {"assign": "partition", "num_workers": 2, "engine": "threads"}
    steps = list(islice(MultiStreamDataLoader(sequences, 2, **arguments), 12))
    chunks = list(islice(MultiStreamDataLoader(sequences, 2, seq_len=4, batch_first=batch_first, **arguments), 3))
    for number, chunk in enumerate(chunks):
        parts = [pick(chunk, step, batch_first) for step in range(4)]
        assert repr(parts) == repr([lists(step) for step in steps[4 * number : 4 * number + 4]])


def pick(chunk, step, batch_first):
    """One step of a chunk, as lists."""
    if hasattr(chunk, "shape"):
        return np.asarray(chunk[:, step] if batch_first else chunk[step]).tolist()
    if isinstance(chunk, dict):
        return {name: pick(value, step, batch_first) for name, value in chunk.items()}
    if isinstance(chunk, Point):
        return [pick(value, step, batch_first) for value in chunk]
    if isinstance(chunk[0], list) and isinstance(chunk[0][0], (str, bytes)):
        return [row[step] for row in chunk] if batch_first else chunk[step]
    return [pick(value, step, batch_first) for value in chunk]


def lists(batch):
    if hasattr(batch, "shape"):
        return np.asarray(batch).tolist()
    if isinstance(batch, dict):
        return {name: lists(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)) and not isinstance(batch, str):
        return [lists(value) for value in batch]
    return batch


@pytest.mark.parametrize("kind", ["now and then a float", "shapes that change", "types that change"])
@pytest.mark.parametrize("workers", [0, 2])
def test_chunks_of_items_that_differ_are_refused(kind, workers):
    sequences = sequences_of(kind, [20, 20])
    loader = MultiStreamDataLoader(sequences, 2, seq_len=20, num_workers=workers, assign="partition")
    with loader, pytest.raises(CollateError, match="one type and shape"):
        next(iter(loader))


def test_parts_of_different_types():
    """The workers have each one type; the loader sees both."""
    sequences = [[1, 2, 3], [0.5, 1.5, 2.5]]
    loader = MultiStreamDataLoader(sequences, 2, assign="partition", num_workers=2, engine="threads", output="numpy")
    assert take(loader, 3) == [[1, 0.5], [2, 1.5], [3, 2.5]]
    loader = MultiStreamDataLoader(sequences, 2, assign="partition", num_workers=2, engine="threads", seq_len=2)
    with loader, pytest.raises(CollateError, match="one type and shape"):
        next(iter(loader))


def test_registered_types_are_collated_as_they_were_taught():
    register_collate(Fraction, lambda values, collator: collator([float(value) for value in values]))
    sequences = [[Fraction(k, 2) for k in range(4)], [Fraction(k, 4) for k in range(4)]]
    for workers in (0, 2):
        loader = MultiStreamDataLoader(sequences, 2, assign="partition", num_workers=workers)
        assert take(loader, 3) == [[0.0, 0.0], [0.5, 0.25], [1.0, 0.5]]


# Sequences


def test_columns():
    sequences = [{"x": np.eye(4)[:n], "y": list(range(n)), "z": ["ab"[k % 2] for k in range(n)]} for n in (3, 4)]
    loader = MultiStreamDataLoader(sequences, 2, assign="partition", num_workers=2, engine="threads")
    first, second = islice(loader, 2)
    assert [plain(value) for value in second.values()] == [np.eye(4)[[1, 1]].tolist(), [1, 1], ["b", "b"]]
    assert list(first) == ["x", "y", "z"]
    with pytest.raises(ValueError, match="one length"):
        MultiStreamDataLoader([{"x": [1, 2], "y": [1]}], 2)


def test_an_array_of_sequences():
    table = np.arange(12).reshape(3, 4)
    assert take(MultiStreamDataLoader(table, 3, assign="partition"), 5) == [*table.T.tolist(), table[:, 0].tolist()]


class Slices:
    """What h5py and zarr have: a shape, a type, and slices that are arrays."""

    shape = (6,)
    dtype = np.dtype(np.int16)

    def __len__(self):
        return 6

    def __getitem__(self, part):
        assert isinstance(part, slice)
        return np.arange(6, dtype=np.int16)[part]


def test_things_that_are_sliced_like_arrays():
    batches = list(islice(MultiStreamDataLoader(Slices(), 2, assign="offset", output="numpy"), 4))
    assert [batch.tolist() for batch in batches] == [[0, 3], [1, 4], [2, 5], [3, 0]]
    assert batches[0].dtype == np.int16


def test_datasets_as_sequences():
    dataset = TensorDataset(np.arange(5), np.arange(5.0))
    assert [plain(part) for part in take(MultiStreamDataLoader([dataset], 2), 1)[0]] == [[0, 0], [0.0, 0.0]]


class Growing(Dataset):
    """Has no length: it is read as an iterable, as Python does."""

    def __getitem__(self, index):
        if index > 2:
            raise IndexError
        return index

    def __iter__(self):
        return (self[k] for k in range(3))


def test_iterables_without_a_length():
    assert take(MultiStreamDataLoader([Growing()], 1), 4) == [[0], [1], [2], [0]]


@needs_torch
def test_tensors_of_types_that_numpy_lacks():
    import torch

    values = torch.arange(6, dtype=torch.bfloat16)
    for workers in (0, 2):
        with MultiStreamDataLoader([values, values * 2], 2, assign="partition", num_workers=workers) as loader:
            batches = list(islice(loader, 3))
        assert [batch.dtype for batch in batches] == [torch.bfloat16] * 3
        assert [batch.tolist() for batch in batches] == [[0, 0], [1, 2], [2, 4]]


def test_empty_sequences_are_passed_over():
    sequences = [[], [1, 2], [], [], [3]]
    loader = MultiStreamDataLoader(sequences, 1, assign="partition", is_first=True)
    assert take(loader, 4) == [{"data": [item], "is_first": [item != 2]} for item in (1, 2, 3, 1)]


@pytest.mark.parametrize("kind", ["now and then a float", "shapes that change", "tuple with a string", "bytes"])
def test_positions_that_have_ended_say_nothing(kind):
    sequences = sequences_of(kind, [12, 4])
    [*_, last] = MultiStreamDataLoader(sequences, 2, assign="partition", cycle=False)
    live = sequences[0][11]
    empty = {"bytes": b"", "tuple with a string": (0, ""), "shapes that change": np.zeros(2)}.get(kind, 0)
    assert repr(last.data) == repr(default_collate([live, empty]))
    assert plain(last.mask) == [True, False]

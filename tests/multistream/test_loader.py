"""Every batch is what one reader, item by item, would put side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.multistream.loader import MultiStreamDataLoader
from headrace.multistream.steps import StreamBatch
from tests.multistream.oracle import Case, cases, plain, take
from tests.needs import HAS_TORCH, needs_jax, needs_torch

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

QUICK = settings(deadline=None, max_examples=150)
WITH_THREADS = settings(deadline=None, max_examples=30)
N = 12


@QUICK
@given(case=cases())
def test_batches_are_those_of_one_reader(case):
    assert take(case.loader(), N) == case.expected(N)


@WITH_THREADS
@given(case=cases(), workers=st.integers(1, 7))
def test_workers_do_not_matter(case, workers):
    assert take(case.loader(engine="threads", num_workers=workers), N) == case.expected(N)


@pytest.mark.parametrize("assign", ["shuffle", "partition", "offset"])
@pytest.mark.parametrize("seq_len", [None, 4])
def test_m1_5_each_position_goes_on_where_it_stopped(assign, seq_len):
    """M1.5, M1.8: items of a sequence follow each other in one position, batch after batch, with any workers."""
    case = Case(lengths=(7, 5, 11, 6), batch_size=4, assign=assign, seq_len=seq_len, is_first=True)
    for workers in (0, 2):
        batches = take(case.loader(num_workers=workers, engine="threads"), 30)
        data, first = (np.array([batch[name] for batch in batches]).reshape(-1, 4) for name in ("data", "is_first"))
        ends = {1000 * k + n - 1 for k, n in enumerate(case.lengths)}
        for position in range(4):
            for step in range(1, len(data)):
                before, item = data[step - 1, position], data[step, position]
                goes_on = item == before + 1 or (assign == "offset" and before in ends and item % 1000 == 0)
                assert goes_on or first[step, position]


def test_m1_6_positions_do_not_read_the_same():
    """M1.6: offsets, groups, or an order of its own for each."""
    for assign in ("shuffle", "partition", "offset"):
        batches = take(Case(lengths=(9, 9, 9, 9, 9), batch_size=4, assign=assign).loader(), 9)
        assert all(len(set(batch)) == 4 for batch in batches)


def test_m1_6_shuffled_positions_read_all_sequences_in_their_own_orders():
    case = Case(lengths=(4,) * 6, batch_size=3)
    steps = np.array(take(case.loader(), 6 * 4 * 2)) // 1000
    orders = [tuple(steps[::4, position]) for position in range(3)]
    assert all(sorted(order[:6]) == sorted(order[6:]) == list(range(6)) for order in orders)
    assert len({order[:6] for order in orders} | {order[6:] for order in orders}) == 6


def test_epochs_have_other_orders_and_the_same_again():
    case = Case(lengths=(3,) * 20)
    loader = case.loader()
    epochs = [take(loader, 30) for _ in range(3)]
    assert epochs == [case.expected(30, epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert take(loader, 30) == epochs[1]
    assert take(Case(lengths=(3,) * 20, seed=1).loader(), 30) != epochs[0]


@QUICK
@given(case=cases(cycle=False, is_first=False, targets=False, seq_len=3, batch_first=False))
def test_without_cycle_nothing_is_lost(case):
    batches = take(case.loader(), 1000)
    seen = sorted(
        item
        for batch in batches
        for row, is_there in zip(batch["data"], batch["mask"], strict=True)
        for item, there in zip(row, is_there, strict=True)
        if there
    )
    everything = sorted(item for sequence in case.sequences for item in sequence)
    times = case.batch_size if case.assign == "shuffle" else 1
    assert seen == sorted(everything * times)


@QUICK
@given(case=cases(cycle=False))
def test_length(case):
    loader = case.loader()
    if loader._positions.shares is None:
        with pytest.raises(TypeError, match="lengths="):
            len(loader)
    else:
        assert len(loader) == len(case.expected(1000))


def test_an_endless_loader_has_no_length():
    with pytest.raises(TypeError, match="cycle=False"):
        len(Case().loader())


def test_what_a_batch_is():
    [batch] = islice(Case(batch_size=2).loader(output="numpy"), 1)
    assert type(batch) is np.ndarray
    [batch] = islice(Case(batch_size=2, is_first=True).loader(output="numpy"), 1)
    assert type(batch) is StreamBatch
    assert batch.targets is None
    assert batch.mask is None
    assert batch.is_first.dtype == bool


def test_batches_are_memory_of_their_own():
    batches = [batch for batch, _ in zip(Case(targets=True, seq_len=2).loader(output="numpy"), range(9), strict=False)]
    before = [plain(batch) for batch in batches]
    batches[3].data[...] = -1
    after = [plain(batch) for batch in batches]
    before[3]["data"] = [[-1] * 3] * 2
    assert after == before


@needs_torch
def test_tensors():
    import torch

    frames = [torch.arange(n * 4, dtype=torch.float32).reshape(n, 4) for n in (5, 3)]
    [batch] = islice(MultiStreamDataLoader(frames, 2, assign="partition", seq_len=2), 1)
    assert batch.is_contiguous()
    assert torch.equal(batch, torch.stack([frames[0][:2], frames[1][:2]], 1))
    batch.requires_grad_()  # a leaf of its own, not a view of others


@needs_torch
def test_device():
    [batch] = islice(Case().loader(device="cpu"), 1)
    assert batch.device.type == "cpu"


@needs_jax
def test_jax():
    import jax

    batches = list(islice(Case().loader(output="jax"), 5))
    assert all(isinstance(batch, jax.Array) for batch in batches)
    assert [batch.tolist() for batch in batches] == Case().expected(5)


def test_output_is_torch_if_it_is_there():
    [batch] = islice(Case().loader(), 1)
    assert type(batch).__module__ == ("torch" if HAS_TORCH else "numpy")


def test_repr():
    shown = repr(Case(seq_len=5).loader(num_workers=2, shard=(1, 3)))
    assert shown == (
        "MultiStreamDataLoader(<list of 4>, batch_size=3, seq_len=5, assign='shuffle', cycle=True, seed=0, "
        "num_workers=1, engine='processes', positions 1 to 1)"
    )


def test_two_iterations_at_once():
    case = Case()
    loader = case.loader()
    first, second = iter(loader), iter(loader)
    pairs = [(plain(a), plain(b)) for a, b in islice(zip(first, second, strict=False), N)]
    assert [a for a, _ in pairs] == case.expected(N)
    assert [b for _, b in pairs] == case.expected(N, epoch=1)


@pytest.mark.parametrize("cycle", [True, False])
@pytest.mark.parametrize("given", ["arrays", "generators"])
def test_more_positions_than_sequences(cycle, given):
    case = Case(lengths=(3, 2), batch_size=5, assign="partition", cycle=cycle, given=given)
    with pytest.raises(ValueError, match="leaves 3 of 5 positions without an item, as there are only 2 sequences"):
        case.loader(num_workers=2, engine="threads")
    for assign in ("shuffle", "offset"):
        fed = replace(case, assign=assign)
        assert take(fed.loader(num_workers=2, engine="threads"), 100) == fed.expected(100)

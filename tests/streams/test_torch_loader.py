"""torch's own DataLoader over a stream: every record comes once, whatever the number of its workers."""

from __future__ import annotations

import pytest

from headrace import read_text
from tests.needs import needs_torch

pytestmark = needs_torch


@pytest.fixture
def lines(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("".join(f"{name}{i}\n" for i in range(20)))
    return read_text(tmp_path, block_bytes=10)


def every_line(suffix=""):
    return sorted(f"{name}{i}{suffix}" for name in "abc" for i in range(20))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_record_comes_once(lines, workers):
    from torch.utils.data import DataLoader

    loader = DataLoader(lines.shuffle(blocks=2).map(lambda line: line + "!"), batch_size=4, num_workers=workers)
    assert sorted(line for batch in loader for line in batch) == every_line("!")


def test_without_workers_the_order_is_natural(lines):
    from torch.utils.data import DataLoader

    assert [line for batch in DataLoader(lines, batch_size=7) for line in batch] == list(lines)


def test_the_epoch_is_told_by_the_stream(lines):
    from torch.utils.data import DataLoader

    stream = lines.shuffle(blocks=2)
    orders = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        orders.append([line for batch in DataLoader(stream, batch_size=4, num_workers=2) for line in batch])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == every_line()


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_the_records(lines, workers, monkeypatch):
    from torch.utils.data import DataLoader

    seen = []
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        seen += [line for batch in DataLoader(lines, batch_size=4, num_workers=workers) for line in batch]
    assert sorted(seen) == every_line()


@pytest.mark.parametrize("start_method", [None, "fork", "spawn"])
def test_rows_that_accelerate_would_deal_out_again_are_refused(lines, start_method, monkeypatch):
    """Its class alone tells so, in a worker process that knows nothing else of it, too."""
    shards = pytest.importorskip("accelerate.data_loader", reason="needs accelerate")
    from torch.utils.data import DataLoader

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    dealt = shards.IterableDatasetShard(lines, batch_size=4, num_processes=2, process_index=1)
    workers = {} if start_method is None else {"num_workers": 1, "multiprocessing_context": start_method}
    with pytest.raises(RuntimeError, match="a part of its part"):
        list(DataLoader(dealt, batch_size=4, **workers))
    assert list(DataLoader(lines, batch_size=4, **workers))

"""Windows that cannot be read, bad rows, collations that raise: only what is bad is lost, and nothing hangs."""

from __future__ import annotations

import pytest

from headrace import DataLoader, TooManyBadSamplesError, read_jsonl
from tests.streams.memory import in_memory, outcomes

WORKERS = [0, 2]
skips = pytest.mark.filterwarnings("ignore:.*left out", "ignore:.*skip")


def refuse_4(rows):
    if 4 in rows:
        raise ValueError("4 is refused")
    return rows


@pytest.fixture
def bad_lines(tmp_path):
    """Twenty lines, of which every fourth is no JSON, about two in a window."""
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' if i % 4 else "{bad\n" for i in range(20)))
    return read_jsonl(path, block_bytes=20)


def skipping(stream, **options):
    return DataLoader(stream, batch_size=3, on_error="skip", collate_fn=list, engine="threads", **options)


@skips
@pytest.mark.parametrize("workers", WORKERS)
def test_a_window_that_fails_once_costs_at_most_its_own_rows(workers):
    with skipping(in_memory(20, 4, failures={1: 1}), num_workers=workers) as loader:
        batches = list(loader)
    rows = [row for batch in batches for row in batch]
    assert [len(batch) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    assert rows == sorted(set(rows))
    assert {*range(4), *range(8, 20)} <= set(rows)


@skips
@pytest.mark.parametrize("workers", WORKERS)
def test_a_window_that_cannot_be_read_is_listed_once(workers):
    with skipping(in_memory(20, 4, failures={1: 9}), num_workers=workers) as loader:
        rows = [row for batch in loader for row in batch]
    assert rows == [*range(4), *range(8, 20)]
    assert len(loader.errors) == 1


@skips
@pytest.mark.parametrize("per_block", [4, 40], ids=["a batch of two windows", "a batch within a window"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_collation_that_raises_costs_its_batch_only(workers, per_block):
    loader = DataLoader(
        in_memory(40, per_block), 3, on_error="skip", collate_fn=refuse_4, num_workers=workers, engine="threads"
    )
    with loader:
        rows = [row for batch in loader for row in batch]
    assert rows == [*range(3), *range(6, 40)]
    assert [error.error for error in loader.errors] == ["ValueError: 4 is refused"]


@pytest.mark.parametrize("workers", WORKERS)
def test_after_a_collation_that_raised_the_epoch_is_over(workers):
    loader = DataLoader(in_memory(40, 4), 3, collate_fn=refuse_4, num_workers=workers, engine="threads")
    seen = outcomes(loader)
    assert seen[-1] == "ValueError"
    assert seen[:-1] in ([], [[0, 1, 2]])


@skips
@pytest.mark.parametrize("workers", WORKERS)
def test_after_too_many_errors_the_epoch_is_over(bad_lines, workers):
    loader = DataLoader(bad_lines, 2, on_error="skip", max_errors=1, num_workers=workers, engine="threads")
    assert outcomes(loader)[-1] == TooManyBadSamplesError.__name__


@skips
def test_ranks_count_rows_without_bad_ones(bad_lines):
    shares = [list(DataLoader(bad_lines, 2, on_error="skip", shard=(rank, 2), collate_fn=list)) for rank in range(2)]
    rows = [row["a"] for share in shares for batch in share for row in batch]
    assert len(shares[0]) == len(shares[1]) > 0
    assert len(set(rows)) == len(rows)
    assert set(rows) <= {i for i in range(20) if i % 4}

"""What holds for every source: each row exactly once, from any block, from any row on, in any process."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterable
from multiprocessing import resource_tracker
from typing import Any

import numpy as np

from headrace.sources.source import Block, OnBad, Source

resource_tracker.ensure_running()  # before the first test: spawning starts it, and it stays


def rows_of(source: Source, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> list[Any]:
    return [row for chunk in source.read(block, first_row, on_bad) for row in chunk.rows()]


def _plain(value: Any) -> Any:
    """Rows that can be compared: arrays as lists."""
    if type(value) is dict:
        return {name: _plain(part) for name, part in value.items()}
    if type(value) is list:
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def all_rows(source: Source) -> list[Any]:
    return [row for block in source.blocks() for row in rows_of(source, block)]


def check_exactly_once(source: Source, expected: list[Any], first_rows: Iterable[int] = (0, 1, 7)) -> None:
    """All blocks together are `expected`; each alone, read from any row on by a copy of the source, is its part."""
    expected = _plain(expected)
    assert _plain(all_rows(source)) == expected
    travelled: Source = pickle.loads(pickle.dumps(source))
    assert list(travelled.blocks()) == list(source.blocks())
    reached = 0
    for block in reversed(list(source.blocks())):
        rows = _plain(rows_of(travelled, block))
        stop = len(expected) - reached
        reached += len(rows)
        assert rows == expected[len(expected) - reached : stop]
        assert block.rows in (None, len(rows))
        for first_row in {*first_rows, len(rows) // 2, len(rows)}:
            assert _plain(rows_of(travelled, block, first_row)) == rows[first_row:]
    assert reached == len(expected)


def _send_rows(source: Source, block: Block, pipe: Any) -> None:
    pipe.send(rows_of(source, block, 1))
    pipe.close()


def rows_in_process(source: Source, block: Block, start_method: str) -> list[Any]:
    """The rows of a block from the second on, as another process reads them with its copy of the source."""
    context = multiprocessing.get_context(start_method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_rows, args=(source, block, sender))
    with receiver:
        process.start()
        sender.close()
        rows: list[Any] = receiver.recv()
        process.join()
    process.close()
    return rows


def check_other_processes(source: Source) -> None:
    """A source that was used here works in forked and in spawned processes, and here again."""
    block = source.blocks()[0]
    chunks = source.read(block)
    next(chunks)  # leaves the source in the middle of things
    expected = _plain(rows_of(source, block)[1:])
    assert expected
    for start_method in ("fork", "spawn"):
        assert _plain(rows_in_process(source, block, start_method)) == expected
    assert _plain(rows_of(source, block, 1)) == expected
    chunks.close()

"""What the figures of all ranks say together: which rank holds up the others, on which node, and which worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from headrace.base.optional import loaded
from headrace.insight.report import text_table
from headrace.insight.verdict import as_count, as_percent, as_time

_SLOW = 1.5  # times as long as the others
_MATTERS_S = 1e-4
_MATTERS = 0.05  # of a step


def gather(stats: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of all ranks, on each of them; only these, if `torch.distributed` is not in use."""
    distributed = loaded("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return [stats]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, {**stats, "rank": distributed.get_rank(), "world": len(found)})
    return found


class RankReport:
    """What `loader.report(ranks=True)` gives, or what comes of `loader.stats()` of all ranks: prints as text.

    Ranks wait for each other in every step, so one that waits for its data makes all others wait for it. That one is
    named, with its node, and with the worker that needs longest for a batch.

    Args:
        stats: `loader.stats()` of each rank, gathered in any way.

    Attributes:
        stats: the same, sorted by rank.
        slow_rank: the rank that holds up the others; None if none does.
        slow_node: its node, if it is slow as a whole, or None. `slow_worker` is the number of its slow worker, or None.

    Examples:
        >>> from headrace import DataLoader
        >>> loaders = [DataLoader(range(40), shard=(rank, 2), seed=1) for rank in range(2)]
        >>> stats = [loader.stats() for loader in loaders for _ in loader][-2:]
        >>> len(RankReport(stats).stats)
        2
    """

    def __init__(self, stats: Iterable[Mapping[str, Any]]) -> None:
        self.stats = sorted(stats, key=lambda one: int(one["rank"]))
        slow = self._find_slow()
        self.slow_rank: int | None = None if slow is None else int(slow["rank"])
        self.slow_node = None if slow is None else self._find_node(slow)
        self.slow_worker = None if slow is None else _slow_worker(slow)

    def _find_slow(self) -> Mapping[str, Any] | None:
        if len(self.stats) < 2:
            return None
        slowest = max(self.stats, key=_wait_s)
        others = [_wait_s(one) for one in self.stats if one is not slowest]
        step_s = median(_wait_s(one) + one["batch_seconds"]["step"] for one in self.stats)
        gap_s = _wait_s(slowest) - median(others)
        is_slow = _wait_s(slowest) > _SLOW * median(others) and gap_s > max(_MATTERS_S, _MATTERS * step_s)
        return slowest if is_slow else None

    def _find_node(self, slow: Mapping[str, Any]) -> str | None:
        """The node of the slow rank, if there are others, and all of its ranks wait longer than all of theirs."""
        here = [_wait_s(one) for one in self.stats if one["node"] == slow["node"]]
        there = [_wait_s(one) for one in self.stats if one["node"] != slow["node"]]
        return str(slow["node"]) if there and min(here) > _SLOW * max(there) else None

    @property
    def verdict(self) -> str:
        """The paragraph alone."""
        if len(self.stats) < 2:
            return f"There is one rank only. {self.stats[0]['verdict']}" if self.stats else "There are no figures."
        slow = next((one for one in self.stats if one["rank"] == self.slow_rank), None)
        if slow is None:
            waits = [one["waited"] for one in self.stats]
            return (
                f"No rank holds up the others: the {len(waits)} ranks wait for data in {as_percent(min(waits))} to "
                f"{as_percent(max(waits))} of their time."
            )
        others = median(_wait_s(one) for one in self.stats if one is not slow)
        text = (
            f"Rank {slow['rank']} on node {slow['node']} holds up the others: it waits {as_time(_wait_s(slow))} for "
            f"each batch, they {as_time(others)}, and then for it."
        )
        if self.slow_node is not None:
            text += f" All ranks of node {self.slow_node} are slow: look at its disk, network and cores."
        if self.slow_worker is not None:
            worker = next(one for one in slow["workers"] if one["worker"] == self.slow_worker)
            text += f" Its worker {self.slow_worker} takes {as_time(_work_s(worker))} for a batch, its others less."
        return f"{text} Of rank {slow['rank']}: {slow['verdict']}"

    def _rows(self) -> Iterable[Sequence[str]]:
        yield "rank", "node", "samples/s", "waits", "wait per batch", "step", "slowest worker"
        for one in self.stats:
            workers = [worker for worker in one["workers"] if worker["batches"]]
            slowest = max(workers, key=_work_s, default=None)
            shown = "-" if slowest is None else f"{slowest['worker']} ({as_time(_work_s(slowest))} per batch)"
            yield (
                f"{one['rank']}{' *' if one['rank'] == self.slow_rank else ''}",
                one["node"],
                as_count(one["samples_per_second"]),
                as_percent(one["waited"]),
                as_time(_wait_s(one)),
                as_time(one["batch_seconds"]["step"]),
                shown,
            )

    def __str__(self) -> str:
        return f"{self.verdict}\n\n{text_table(self._rows())}" if self.stats else self.verdict

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from headrace.base.html import paragraph, table

        return paragraph(self.verdict) + (table(self._rows()) if self.stats else "")


def _wait_s(stats: Mapping[str, Any]) -> float:
    return float(stats["batch_seconds"]["wait"] + stats["batch_seconds"]["pin"])


def _work_s(worker: Mapping[str, Any]) -> float:
    seconds = worker["fetch_seconds"] + worker["collate_seconds"] + worker["pack_seconds"]
    return float(seconds / worker["batches"]) if worker["batches"] else 0.0


def _slow_worker(stats: Mapping[str, Any]) -> int | None:
    workers = [worker for worker in stats["workers"] if worker["batches"]]
    if len(workers) < 2:
        return None
    slowest = max(workers, key=_work_s)
    others = median(_work_s(worker) for worker in workers if worker is not slowest)
    return int(slowest["worker"]) if _work_s(slowest) > _SLOW * others else None

"""What is noted of workers on several nodes: where each is, how quick they are there, and how long batches travel."""

from __future__ import annotations

from dataclasses import dataclass, field

WORTH_NOTING = 2**20
"""Bytes of an answer whose time on the way is noted; smaller ones tell of the calls, not of the network."""


@dataclass
class NodeTotals:
    """What workers on one node did, in nanoseconds.

    Attributes:
        work_ns: that `tasks` took.
        carried_ns: that answers of `carried_bytes` together were on the way, and `copied_ns` that copying them took.
        queued_ns: that calls waited for an actor while it worked for others.
    """

    tasks: int = 0
    work_ns: int = 0
    carried: int = 0
    carried_bytes: int = 0
    carried_ns: int = 0
    copied_ns: int = 0
    queued_ns: int = 0

    @property
    def per_task_s(self) -> float:
        return self.work_ns / 1e9 / max(self.tasks, 1)

    @property
    def queued_s(self) -> float:
        """Per task."""
        return self.queued_ns / 1e9 / max(self.tasks, 1)


@dataclass
class NodeNotes:
    """Written by an engine, and read by reports.

    Attributes:
        places: the node of each worker, in words, by its number.
        nodes: what was done where, by the same words.
    """

    places: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, NodeTotals] = field(default_factory=dict)

    def of(self, node: str) -> NodeTotals:
        return self.nodes.setdefault(node, NodeTotals())

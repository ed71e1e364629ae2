"""What can be said of workers on several nodes: one that is slow, a slow network, a pool that others keep busy."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.node_notes import NodeNotes, NodeTotals

_FEWEST_TASKS = 8
_SLOW = 1.5  # times as long as on the other nodes
_MATTERS = 0.5  # of the time that a task takes


def describe_nodes(notes: NodeNotes) -> Iterator[str]:
    """Sentences for the verdict; none if all is as it should be."""
    nodes = {name: totals for name, totals in dict(notes.nodes).items() if totals.tasks >= _FEWEST_TASKS}
    yield from _on_slow_node(nodes)
    whole = NodeTotals(
        **{name: sum(getattr(totals, name) for totals in nodes.values()) for name in NodeTotals.__dataclass_fields__}
    )
    if whole.tasks:
        yield from _on_network(whole)
        yield from _on_pool(whole)


def _on_slow_node(nodes: dict[str, NodeTotals]) -> Iterator[str]:
    for name, totals in nodes.items():
        others = [other for other_name, other in nodes.items() if other_name != name]
        if not others:
            continue
        usual = sum(other.work_ns for other in others) / 1e9 / sum(other.tasks for other in others)
        if totals.per_task_s > _SLOW * usual:
            yield (
                f"Workers on node {name} are slow: a task takes {_time(totals.per_task_s)} there, and {_time(usual)} "
                "on the other nodes."
            )


def _on_network(whole: NodeTotals) -> Iterator[str]:
    if not whole.carried:
        return
    carried_s, copied_s = whole.carried_ns / 1e9 / whole.carried, whole.copied_ns / 1e9 / whole.carried
    if carried_s > _MATTERS * whole.per_task_s:
        n_bytes = whole.carried_bytes / whole.carried
        yield (
            f"Receiving {n_bytes / 1e6:.0f} MB takes {_time(carried_s)} at {n_bytes / 1e9 / max(carried_s, 1e-9):.1f} "
            f"GB/s; reading on the same machine would take {_time(copied_s)}."
        )


def _on_pool(whole: NodeTotals) -> Iterator[str]:
    if whole.queued_s > _MATTERS * whole.per_task_s and whole.queued_s > 5e-3:
        yield (
            f"The pool is full: a task takes {_time(whole.per_task_s)}, and waits {_time(whole.queued_s)} for an actor "
            "that works for other loaders. Give it more workers."
        )


def _time(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.0f} ms"
        if seconds >= 2e-3
        else f"{seconds * 1e3:.1f} ms"
    )

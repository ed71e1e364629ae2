"""What is said of workers on several nodes."""

from __future__ import annotations

from headrace.base.node_notes import NodeNotes, NodeTotals
from headrace.insight.nodes import describe_nodes

MS = 1_000_000


def said(**nodes):
    return list(describe_nodes(NodeNotes(nodes={name: NodeTotals(**totals) for name, totals in nodes.items()})))


def test_nothing_is_said_where_all_is_well():
    assert said(a={"tasks": 20, "work_ns": 200 * MS}, b={"tasks": 20, "work_ns": 220 * MS}) == []
    assert said() == []


def test_a_slow_node_is_named():
    (text,) = said(a={"tasks": 20, "work_ns": 200 * MS}, b={"tasks": 20, "work_ns": 800 * MS})
    assert text == "Workers on node b are slow: a task takes 40 ms there, and 10 ms on the other nodes."


def test_few_tasks_say_nothing_of_a_node():
    assert said(a={"tasks": 20, "work_ns": 200 * MS}, b={"tasks": 3, "work_ns": 800 * MS}) == []


def test_a_slow_network_is_told_with_its_rate():
    totals = {"tasks": 10, "work_ns": 100 * MS, "carried": 10, "carried_bytes": 380_000_000}
    (text,) = said(a={**totals, "carried_ns": 310 * MS, "copied_ns": 40 * MS})
    assert text == "Receiving 38 MB takes 31 ms at 1.2 GB/s; reading on the same machine would take 4 ms."


def test_a_pool_that_others_keep_busy_is_full():
    (text,) = said(a={"tasks": 10, "work_ns": 200 * MS, "queued_ns": 400 * MS})
    assert text.startswith("The pool is full: a task takes 20 ms, and waits 40 ms for an actor")

"""The examples of streams print what the documents that they follow promise."""

from __future__ import annotations

from tests.test_examples import THREE_BATCHES, run, section, vectors


def test_token_stream():
    """M1.3."""
    lines = run("token_stream.py")
    assert section(lines, "Batches of 5, eight of them:", 8) == [
        "['the', 'quick', 'brown', 'fox', 'jumps']",
        "['over', 'the', 'lazy', 'dog', 'and']",
        "['runs', 'into', 'the', 'deep', 'dark']",
        "['wood', 'the', 'quick', 'brown', 'fox']",
        "['jumps', 'over', 'the', 'lazy', 'dog']",
        "['and', 'runs', 'into', 'the', 'deep']",
        "['dark', 'wood', 'the', 'quick', 'brown']",
        "['fox', 'jumps', 'over', 'the', 'lazy']",
    ]
    assert lines[-1] == "Two workers give the same batches: True"


def test_tsv():
    """M3.1, M3.2, M4.2."""
    lines = run("tsv.py")
    assert section(lines, "In the order of the file:", 1) == [
        vectors("[0, 1, 2]")[0] + " ['text number 0', 'text number 1', 'text number 2'] " + vectors("[0, 1, 0]")[0]
    ]
    assert lines[3:] == [
        "Shuffled, every row once in each epoch: [True, True]",
        "Another order in each: True",
        "Gone on after 30 batches, with two workers and another batch size: True",
    ]


def test_sql_rows():
    """M2.6, for a database."""
    assert run("sql_rows.py") == [
        "The first batch: [21, 22, 23, 24] [21.0, 22.0, 23.0, 24.0]",
        "Rows, and how many of them are different: 5800 5800",
        "In order: True",
    ]


def test_any_iterable():
    """M3.5."""
    lines = run("any_iterable.py")
    batches = vectors(*THREE_BATCHES, "[12, 13, 14, 15]")
    assert section(lines, "Two workers, each with its own copy:", 8) == [batch for batch in batches for _ in range(2)]
    assert section(lines, "Two workers that share it:", 4) == batches
    assert lines[-1] == "True"

"""What notebooks show: the example runs in a real kernel, and everything in it shows itself, with all data escaped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    MultiStreamDataLoader,
    StackDataset,
    Stream,
    Subset,
    TensorDataset,
    mix,
    read_csv,
    read_sql,
    read_text,
)

EXAMPLE = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The HTML that each cell of the example shows, by its source."""
    pytest.importorskip("nbclient", reason="notebooks need nbclient")
    pytest.importorskip("ipykernel", reason="notebooks need a kernel")
    folder = tmp_path_factory.mktemp("notebook")
    shutil.copy(EXAMPLE, folder / "run.ipynb")
    command = [sys.executable, "-c", EXECUTE, str(folder / "run.ipynb"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    cells = json.loads((folder / "run.ipynb").read_text())["cells"]
    return {
        "".join(cell["source"]): [
            "".join(output["data"]["text/html"]) for output in cell["outputs"] if "text/html" in output.get("data", {})
        ]
        for cell in cells
        if cell["cell_type"] == "code"
    }


@pytest.mark.timeout(250)
def test_a_notebook_shows_loaders_reports_timelines_audits_tunings_and_inspections(shown):
    def html(start):
        [found] = [cells for source, cells in shown.items() if source.splitlines()[-1].startswith(start)]
        [one] = found
        return one

    assert "seed=1" in next(iter(shown.values()))[0]
    assert "<table" in html("loader.report()")
    assert 'srcdoc="&lt;!doctype html' in html("loader.timeline()")
    assert "✓ proven" in html("audit")
    assert "batch 3 of epoch 0" in html("loader.provenance")
    assert "DataLoader(dataset, batch_size=8" in html("headrace.tune")
    inspected = html("headrace.inspect")
    assert "&lt;b&gt;two&lt;/b&gt;" in inspected
    assert "<b>two</b>" not in inspected
    assert "read_csv(&#x27;rhyme.csv&#x27;)" in html("headrace.read_csv")


def test_progress_is_a_bar_in_a_notebook(shown):
    [bars] = [cells for source, cells in shown.items() if "loader.progress()" in source]
    assert len(bars) == 1  # that was updated in place
    assert "<progress" in bars[0]
    assert "25 of 25 batches" in bars[0]


class Named(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return index


def double(row):
    return row


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda: DataLoader(Named(), 4, seed=3, shuffle=True), "seed=3"),
        (lambda: DataLoader(Named(), 4, seed=3, shard=(0, 2)), "shard=(0, 2)"),
        (
            lambda: DataLoader(read_text("a.txt").pack(8), 4, seed=1),
            "(read_text('a.txt').pack(8), batch_size=4",
        ),
        (lambda: DataLoader(Named(), batch_sampler=BatchSampler(range(7), 2, False)), "batch_sampler=BatchSampler"),
        (lambda: MultiStreamDataLoader([range(5)] * 4, 2, seed=9, seq_len=3), "seq_len=3"),
        (lambda: TensorDataset(np.zeros((5, 2)), np.zeros(5)), "TensorDataset(ndarray[5, 2], ndarray[5])"),
        (lambda: Subset(Named(), [1, 2]), "Subset(<Named of 7>, 2 indices)"),
        (
            lambda: ConcatDataset([Named(), Subset(Named(), [0])]),
            "ConcatDataset([<Named of 7>, Subset(<Named",
        ),
        (lambda: StackDataset(a=Named(), b=Named()), "StackDataset(a=<Named of 7>, b=<Named of 7>)"),
        (lambda: read_text(["a", "b", "c"], words=True), "read_text(['a', … 3 paths], words=True)"),
        (
            lambda: read_csv("x.csv").shuffle(1000).map(double).skip(2).take(5).repeat().as_columns(),
            "read_csv('x.csv').shuffle(1000).map(double).skip(2).take(5).repeat().as_columns()",
        ),
        (lambda: read_text("x").map(lambda row: row).filter(bool), "read_text('x').map(…).filter(bool)"),
        (lambda: mix([read_text("x"), read_text("y")], [1, 1]), "mix([read_text('x'), read_text('y')])"),
        (lambda: Stream.from_blocks([1], lambda n: [n]), "Stream(OwnSource)"),
    ],
)
def test_a_line_tells_what_matters(made, line):
    assert line in repr(made())


def test_no_secret_is_in_a_line(tmp_path):
    import sqlite3

    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
    connection.close()
    query, parameters = "SELECT * FROM people WHERE name = ?", ("topsecret",)
    stream = read_sql(str(tmp_path / "x.db"), query, parameters=parameters, key="id")
    loader = DataLoader(stream, batch_size=2)
    for text in (repr(stream), repr(loader), stream._repr_html_(), loader._repr_html_()):
        assert "SELECT * FROM people" in text
        assert "topsecret" not in text
    signed = read_text("https://me:hush@host/data.txt?signature=abc")
    assert repr(signed) == "read_text('https://host/data.txt')"


def test_users_classes_cannot_break_out_of_html():
    odd = type("<script>alert(1)</script>", (Named,), {})
    loader = DataLoader(odd(), 2, output="numpy")
    list(loader)
    for shown in (loader._repr_html_(), loader.report()._repr_html_(), loader.provenance(0, epoch=0)._repr_html_()):
        assert "<script>" not in shown
    assert headrace.Audit()._repr_html_().startswith("<p")

"""Sources of text in other processes: forked and spawned, local and on a web server."""

from __future__ import annotations

import pytest

from headrace.base.optional import is_installed
from headrace.sources.csv_rows import CsvSource
from headrace.sources.text import JsonLinesSource, TextSource
from tests.sources.exactly_once import check_other_processes
from tests.sources.servers import web_server

__all__ = ["web_server"]  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")  # Python warns of threads, which the children do not use
if is_installed("pyarrow"):
    import pyarrow.csv

    pyarrow.csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))  # opens descriptors that stay, so before the first test

ROWS = b"1\n2\n3\n"


@pytest.mark.parametrize("kind", [TextSource, JsonLinesSource, CsvSource])
def test_a_local_file(tmp_path, kind):
    (tmp_path / "data").write_bytes(ROWS)
    check_other_processes(kind(tmp_path))


@pytest.fixture(scope="module")
def url(web_server):
    """A file on a web server, once read here, so that fsspec's thread and client are running."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    source = TextSource(web_server.put("/data.txt", ROWS))
    assert list(source.read(source.blocks()[0]))
    return web_server.url + "/data.txt"


def test_a_file_on_a_web_server(url):
    check_other_processes(TextSource(url))

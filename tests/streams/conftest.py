"""What libraries open once and keep is opened before the first test, which is not to answer for it."""

from __future__ import annotations

from headrace.base.optional import is_installed

if is_installed("pyarrow"):
    import pyarrow.csv

    pyarrow.csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
from headrace.base.freed_memory import keep_freed_memory

def make_rows():
    return [bytes(i) for i in range(2048, 4096)]

if sys.argv[1] == "keep":
    keep_freed_memory()
make_rows()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    make_rows()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(argument):
    """How many pages the system hands out for the rows of ten rounds, each freed before the next."""
    run = subprocess.run([sys.executable, "-c", ROUNDS, argument], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is so quick to give memory back")
def test_rows_are_made_in_memory_that_was_freed():
    assert new_pages("keep") * 10 < new_pages("leave")

"""What the fork server of `multiprocessing` imports before it forks: all that a worker needs.

The server is started with SIGINT blocked, as Ctrl-C may come while it is still importing. What it forks is not only
workers of ours, so its children hear SIGINT again; that came before, they have inherited to ignore.
"""

from __future__ import annotations

import os

import headrace.engines.process_worker  # noqa: F401
from headrace.base.interrupts import unblock_interrupts

os.register_at_fork(after_in_child=unblock_interrupts)

"""`torch.compile`: the training loop may be compiled; what loads its batches is left alone."""

from __future__ import annotations

import functools
from types import ModuleType

from headrace.base.after_import import after_import
from headrace.base.optional import loaded


@functools.cache
def keep_out_compiler() -> None:
    """Let Dynamo skip this package, as it skips torch's own loader: it cannot trace processes and shared memory."""
    after_import("torch._dynamo.trace_rules", _skip_headrace)


def _skip_headrace(trace_rules: ModuleType) -> None:
    trace_rules.add("headrace")


def stop_compiling() -> None:
    """Called in a process that was forked in the middle of a compiled function: nothing is traced here."""
    eval_frame = loaded("torch._dynamo.eval_frame")
    if eval_frame is not None:
        eval_frame.set_eval_frame(None)

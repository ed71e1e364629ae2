"""Ranges in the traces of torch's profiler, only while it records."""

from __future__ import annotations

from typing import Any

from torch.autograd import _profiler_enabled
from torch.profiler import record_function

# TensorBoard's profiler counts ranges of this form as time spent in the data loader, as it does torch's own.
_NAME = "enumerate(DataLoader)#headrace.__next__"


def is_recording() -> bool:
    """Whether a profiler records, in this thread."""
    return bool(_profiler_enabled())


def record() -> Any:
    """A range around what it takes to get a batch."""
    return record_function(_NAME)

"""Page-locked memory for batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.base.errors import warn_user
from headrace.base.optional import is_installed


def pin_function(pin_memory_device: str) -> Callable[[Any], Any] | None:
    """What moves a batch into page-locked memory; None, with a warning as torch's, if there is no accelerator."""
    if not is_installed("torch"):
        warn_user("'pin_memory' argument is set as true but torch is not installed, then pinned memory won't be used.")
        return None
    from headrace.frameworks.torch_tensors import can_pin, pin

    return pin if can_pin(pin_memory_device) else None

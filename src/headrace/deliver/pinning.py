"""Page-locked memory for batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from headrace.base.optional import is_installed


def pin_function(pin_memory_device: str) -> Callable[[Any], Any] | None:
    """What moves a batch into page-locked memory; None, with a warning as torch's, if there is no accelerator."""
    if not is_installed("torch"):
        warnings.warn(
            "'pin_memory' argument is set as true but torch is not installed, then pinned memory won't be used.",
            stacklevel=3,
        )
        return None
    from headrace.frameworks.torch_tensors import can_pin, pin

    return pin if can_pin(pin_memory_device) else None

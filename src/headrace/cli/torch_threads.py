"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.base.optional import import_extra

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "This command")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: the others would take turns with the loader's workers, spinning while they wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

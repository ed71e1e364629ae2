"""Type variables with a default, which Python itself has from 3.13 on only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Batch_co = TypeVar("Batch_co", covariant=True, default=Any)
    Row = TypeVar("Row", default=Any)
else:
    from typing import TypeVar

    Batch_co = TypeVar("Batch_co", covariant=True)
    Row = TypeVar("Row")

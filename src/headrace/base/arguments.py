"""What users pass, looked at before it is used."""

from __future__ import annotations

from typing import Any


def check_count(name: str, value: Any, least: int) -> None:
    """Raise a TypeError if a number is not an int, a ValueError if it is too small."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r:.200}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")

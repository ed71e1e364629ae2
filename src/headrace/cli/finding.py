"""What `headrace doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is."""

    FINE = "fine"
    NOTE = "note"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        fix: what to do about it; none is needed where all is fine.
    """

    area: str
    what: str
    level: Level = Level.FINE
    fix: str = ""

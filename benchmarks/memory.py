"""How much memory a process has taken."""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_mb() -> float:
    """The most that this process has taken since its program began."""
    if _STATUS.exists():  # what `getrusage` tells on Linux is handed down by the process that started this one
        peak = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

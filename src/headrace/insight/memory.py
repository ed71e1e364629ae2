"""How much memory a process has, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"^(Rss|Pss):\s+(\d+) kB$", re.MULTILINE)


def memory_of(pid: int) -> dict[str, int | None]:
    """The bytes of a process: `rss` that are in memory, and `pss`, in which shared ones count in part.

    None where the system does not tell, or the process has ended.
    """
    try:
        found = _LINE.findall(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        found = []
    sizes = {name.lower(): 1024 * int(kilobytes) for name, kilobytes in found}
    return {"rss": sizes.get("rss"), "pss": sizes.get("pss")}

"""What this process may use of the machine: its cores and its memory, as the system and its containers limit them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_V1 = 2**60  # what version 1 of control groups says for "no limit" is larger


@dataclass(frozen=True)
class Machine:
    """The limits of this process.

    Attributes:
        affinity: cores that it may run on.
        cpu_limit: cores' worth of time that its container gives it; None if it is not limited.
        memory_limit: bytes that its container may use; None if it is not limited.
        memory_free: bytes that can still be used, by the system's and the container's account.
        ranks: processes of the same training on this machine, which share all of that.
    """

    affinity: int
    cpu_limit: float | None
    memory_limit: int | None
    memory_free: int | None
    ranks: int = 1

    @property
    def cores(self) -> int:
        """Cores that this rank can keep busy; at least one."""
        cores = self.affinity if self.cpu_limit is None else min(self.affinity, math.ceil(self.cpu_limit))
        return max(1, cores // self.ranks)


def this_machine(root: Path = Path("/")) -> Machine:
    """Read the limits; those that the system does not report are None."""
    groups = list(_groups(root))
    limits = [limit for group in groups if (limit := _number(group, "memory.max", "memory.limit_in_bytes"))]
    memory_limit = min(limits, default=None)
    return Machine(
        affinity=_affinity(),
        cpu_limit=min((cores for group in groups if (cores := _cpu_limit(group))), default=None),
        memory_limit=memory_limit,
        memory_free=_memory_free(root, groups, memory_limit),
        ranks=_ranks(),
    )


def _affinity() -> int:
    get_affinity = getattr(os, "sched_getaffinity", None)
    return len(get_affinity(0)) if get_affinity is not None else os.cpu_count() or 1


def _ranks() -> int:
    """As torchrun and similar launchers set them."""
    size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(size)) if size.isdecimal() else 1


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups that this process is in, of both versions, up to the root."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(",") if controllers else [""]:
            if name in ("", "cpu", "memory"):
                top = root / "sys/fs/cgroup" / name
                folder = top / path.strip("/")
                yield from (group for group in (folder, *folder.parents) if group.is_relative_to(top))


def _cpu_limit(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _memory_free(root: Path, groups: list[Path], limit: int | None) -> int | None:
    lines = _text(root / "proc/meminfo").splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    used = [n for group in groups if (n := _number(group, "memory.current", "memory.usage_in_bytes")) is not None]
    if limit is not None and used:
        free.append(max(0, limit - used[0]))
    return min(free, default=None)


def _number(group: Path, *names: str) -> int | None:
    """The first of the files that holds a number which is a limit."""
    texts = (_text(group / name) for name in names)
    return next((int(text) for text in texts if text.isdecimal() and int(text) < _UNLIMITED_V1), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

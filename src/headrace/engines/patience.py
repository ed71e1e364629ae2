"""How long workers are waited for: when they are to end, and before it is told that they are stuck."""

from __future__ import annotations

import sys

_STALL_S = 60.0
_GRACE_S = 5.0
_GRACE_INTERRUPTED_S = 0.2


def stall_s() -> float:
    """Seconds without any batch after which a loop that set no `timeout` is warned."""
    return _STALL_S


def grace_s() -> float:
    """Seconds that a worker gets to finish the sample it is at; hardly any after Ctrl-C."""
    last: object = getattr(sys, "last_type", None)
    is_interrupted = sys.exc_info()[0] is KeyboardInterrupt or last is KeyboardInterrupt
    return _GRACE_INTERRUPTED_S if is_interrupted else _GRACE_S

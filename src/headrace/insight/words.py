"""Numbers as people read them."""

from __future__ import annotations

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def as_row(worker: int, workers: int) -> str:
    """Who loads: a worker, or the loop itself.

    Examples:
        >>> as_row(1, 2), as_row(0, 0)
        ('worker 1', 'loading')
    """
    return f"worker {worker}" if workers else "loading"


def as_time(seconds: float) -> str:
    """Three digits at most, with a unit.

    Examples:
        >>> as_time(0.00812), as_time(12.3456), as_time(0)
        ('8.12 ms', '12.3 s', '0 s')
    """
    return _with_unit(seconds, _TIMES, "0 s")


def as_bytes(n_bytes: float) -> str:
    """The same for a size.

    Examples:
        >>> as_bytes(38_535_168)
        '38.5 MB'
    """
    return _with_unit(n_bytes, _SIZES, "0 B")


def as_percent(share: float) -> str:
    """A share, in whole percents unless it is less than one.

    Examples:
        >>> as_percent(0.414), as_percent(0.0042)
        ('41 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0095 or not share else f"{100 * share:.1g} %"


def as_count(n: float) -> str:
    """A number, whole unless it is small.

    Examples:
        >>> as_count(1234567), as_count(0.5)
        ('1,234,567', '0.5')
    """
    return f"{n:,.0f}" if n >= 10 or n == int(n) else f"{n:.2g}"


def as_workers(n: int) -> str:
    return "1 worker" if n == 1 else f"{n:,} workers"


def as_batches(n: float) -> str:
    return "1 batch" if n == 1 else f"{as_count(n)} batches"


def _with_unit(value: float, units: tuple[tuple[float, str], ...], nothing: str) -> str:
    for size, unit in units:
        if value >= size:
            shown = value / size
            return f"{shown:.0f} {unit}" if shown >= 99.95 else f"{shown:.3g} {unit}"
    return nothing

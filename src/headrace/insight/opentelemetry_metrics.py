"""Figures of all loaders as OpenTelemetry instruments. Without an SDK, the API does nothing with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.insight.live import LiveLoader, busy_seconds, labels_of, live_loaders, totals_now
from headrace.insight.recorder import Totals

_S = 1e-9
_INSTRUMENTS: dict[str, tuple[str, str, Callable[[Totals], float]]] = {
    "headrace.batches": ("{batch}", "Batches that the loop received.", lambda totals: totals.batches),
    "headrace.samples": ("{sample}", "Samples in these batches.", lambda totals: totals.samples),
    "headrace.loop.time": ("s", "Time of the epochs, as the loop saw it.", lambda totals: totals.elapsed_ns * _S),
    "headrace.loop.wait": ("s", "Time that the loop waited for batches.", lambda totals: totals.waited_ns * _S),
}
_made: list[Any] = []


def make_instruments() -> None:
    """Make the instruments, once in a process. They are observed by whatever SDK the program sets up."""
    if _made:
        return
    from opentelemetry import metrics

    meter = metrics.get_meter("headrace")
    for name, (unit, text, read) in _INSTRUMENTS.items():
        _made.append(
            meter.create_observable_counter(name, callbacks=[_callback(metrics, read)], unit=unit, description=text)
        )
    _made.append(
        meter.create_observable_counter(
            "headrace.worker.busy",
            callbacks=[_worker_callback(metrics)],
            unit="s",
            description="Time that each worker has worked.",
        )
    )
    _made.append(
        meter.create_observable_counter(
            "headrace.worker.restarts",
            callbacks=[_restart_callback(metrics)],
            unit="{worker}",
            description="Workers that were replaced.",
        )
    )


def _observations(metrics: Any, read: Callable[[LiveLoader], Iterator[tuple[float, dict[str, str]]]]) -> Any:
    def observe(options: Any) -> Iterator[Any]:
        for loader in live_loaders():
            for value, more in read(loader):
                yield metrics.Observation(value, {**labels_of(loader), **more})

    return observe


def _callback(metrics: Any, read: Callable[[Totals], float]) -> Any:
    return _observations(metrics, lambda loader: iter([(read(totals_now(loader.recorder)), {})]))


def _worker_callback(metrics: Any) -> Any:
    def read(loader: LiveLoader) -> Iterator[tuple[float, dict[str, str]]]:
        for worker, seconds in busy_seconds(totals_now(loader.recorder)).items():
            yield seconds, {"worker": str(worker)}

    return _observations(metrics, read)


def _restart_callback(metrics: Any) -> Any:
    return _observations(metrics, lambda loader: iter([(loader.recorder.restarts, {})]))

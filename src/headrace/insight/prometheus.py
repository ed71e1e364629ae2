"""An endpoint that Prometheus scrapes: figures of all loaders of this process, in its text format."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headrace.insight.live import LiveLoader, busy_seconds, labels_of, live_loaders, totals_now

_S = 1e-9
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP = {
    "headrace_batches_total": "Batches that the loop received.",
    "headrace_samples_total": "Samples in these batches.",
    "headrace_loop_seconds_total": "Time of the epochs, as the loop saw it.",
    "headrace_wait_seconds_total": "Time that the loop waited for batches.",
    "headrace_worker_busy_seconds_total": "Time that each worker has worked.",
    "headrace_worker_restarts_total": "Workers that were replaced.",
}


def prometheus_text() -> str:
    """The figures of all loaders of this process."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for loader in live_loaders():
        for name, labels, value in _samples(loader):
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            samples[name].append(f"{name}{{{shown}}} {value!r}")
    lines = []
    for name, found in samples.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} counter", *found]
    return "\n".join(lines) + "\n"


def _samples(loader: LiveLoader) -> Iterator[tuple[str, dict[str, str], float]]:
    totals, labels = totals_now(loader.recorder), labels_of(loader)
    yield "headrace_batches_total", labels, totals.batches
    yield "headrace_samples_total", labels, totals.samples
    yield "headrace_loop_seconds_total", labels, totals.elapsed_ns * _S
    yield "headrace_wait_seconds_total", labels, totals.waited_ns * _S
    yield "headrace_worker_restarts_total", labels, loader.recorder.restarts
    for worker, seconds in busy_seconds(totals).items():
        yield "headrace_worker_busy_seconds_total", {**labels, "worker": str(worker)}, seconds


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        body = prometheus_text().encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (so it is called in the base class)
        """Scrapes are not worth a line on stderr."""


class MetricsServer:
    """What `serve_metrics` gives: an endpoint that runs until it is closed, or the process ends.

    Attributes:
        url: where the figures are.
    """

    def __init__(self, port: int, host: str) -> None:
        self._server = ThreadingHTTPServer((host, port), _Handler)
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace metrics", daemon=True)
        self._thread.start()
        _open.add(self)

    @property
    def port(self) -> int:
        """Where it listens; the system chooses it for port 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """End it; may be called again."""
        if self in _open:
            _open.discard(self)
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def leave(self) -> None:
        """Close what a forked process got from this one: else it would keep the port."""
        self._server.socket.close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


_open: weakref.WeakSet[MetricsServer] = weakref.WeakSet()


def _leave_all() -> None:
    for server in list(_open):
        server.leave()
    _open.clear()


os.register_at_fork(after_in_child=_leave_all)


def serve_metrics(port: int = 9464, *, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the figures of all loaders of this process over HTTP, for Prometheus: `/metrics`, in a thread.

    Counters of batches, samples, the loop's time and its waiting, each worker's busy time and replacements, with the
    labels `loader`, `rank`, `kind` and `worker`. The share of time that training waits is
    `rate(headrace_wait_seconds_total[5m]) / rate(headrace_loop_seconds_total[5m])`.

    Args:
        port: 0 to let the system choose. With several ranks on a machine, give each its own.
        host: the address to listen on; "0.0.0.0" for all of the machine's.

    Raises:
        OSError: the port is in use, or may not be used.

    Examples:
        >>> with serve_metrics(0) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """
    return MetricsServer(port, host)

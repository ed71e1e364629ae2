"""What `compare_commits.py` asks of a commit besides the benchmarks; each probe in a fresh interpreter.

Usage: python tools/commit_probes.py PROBE FOLDER [--quick]

FOLDER keeps the data, which is written once. Prints JSON: a list of rows, each [name, value, unit].
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

Row = tuple[str, float, str]


def imports(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Importing the package, and the loader after it; NumPy is there already."""
    import numpy  # noqa: F401

    begun = time.perf_counter()
    import headrace

    imported = time.perf_counter()
    headrace.DataLoader  # noqa: B018 (imported when it is asked for)
    yield "import headrace", 1e3 * (imported - begun), "ms"
    yield "import headrace and its DataLoader", 1e3 * (time.perf_counter() - begun), "ms"


def first_batches(folder: Path, *, quick: bool) -> Iterator[Row]:
    """From `iter(loader)` to the first batch; the median of some."""
    for name, make in _loaders(folder, quick).items():
        for workers in (0, 2):
            times = []
            for _ in range(3 if quick else 9):
                with make(workers) as loader:
                    times.append(_seconds_to_first(loader))
            yield f"{name}, {workers} workers", 1e3 * statistics.median(times), "ms"


def peak_memory(folder: Path, *, quick: bool) -> Iterator[Row]:
    """The most that the process (RSS) and its workers (PSS) take together in the course of an epoch."""
    name, workers = _argument().rsplit("/", 1)
    with _loaders(folder, quick)[name](int(workers)) as loader:
        yield f"{name}, {workers} workers", _peak_mb(loader), "MB"


def slow_steps(folder: Path, *, quick: bool) -> Iterator[Row]:
    """First batches of streams whose rows take 1 ms each."""
    from headrace import DataLoader, read_jsonl, read_text

    n = 1500 if quick else 6000
    lines = _written(folder / f"slow-{n}.txt", lambda: b"".join(b"line %d\n" % i for i in range(n)))
    for workers in (0, 2):
        with DataLoader(read_text(lines).map(_slow), batch_size=8, num_workers=workers, output="numpy") as loader:
            yield f"{n} lines, {workers} workers", 1e3 * _seconds_to_first(loader), "ms"
    parts = [
        _written(folder / f"slow-{n}-{i}.jsonl.gz", lambda: gzip.compress(b'{"a": 1}\n' * (n // 6))) for i in range(6)
    ]
    with DataLoader(read_jsonl(parts).map(_slow), batch_size=8, num_workers=2, output="numpy") as loader:
        begun = time.perf_counter()
        batches = iter(loader)
        next(batches)
        yield "six .jsonl.gz, 2 workers, first batch", 1e3 * (time.perf_counter() - begun), "ms"
        for _ in batches:
            pass
        yield "six .jsonl.gz, 2 workers, last batch", 1e3 * (time.perf_counter() - begun), "ms"


def gzip_memory(folder: Path, *, quick: bool) -> Iterator[Row]:
    """What a compressed file of so many MB of text takes: the time to its first row, and memory for all of it."""
    from headrace import DataLoader, read_jsonl, read_text

    suffix, mb = _argument().split("/")
    size = int(mb) << 20
    path = _written(folder / f"rows-{mb}{suffix}", lambda: _compressed(size))
    read = read_jsonl if suffix == ".jsonl.gz" else read_text
    begun = time.perf_counter()
    rows = iter(DataLoader(read(path), batch_size=None, output="numpy"))
    next(rows)
    yield f"{suffix} of {mb} MB, first row", 1e3 * (time.perf_counter() - begun), "ms"
    for _ in rows:
        pass
    yield f"{suffix} of {mb} MB, peak", _status_mb("self", "VmHWM"), "MB"


def multi_stream_rates(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Batches of sequences side by side, in a steady state."""
    import numpy as np

    from headrace import MultiStreamDataLoader

    generator = np.random.default_rng(0)
    frames = [generator.random((n, 80), dtype=np.float32) for n in generator.integers(200, 2000, 100)]
    tokens = [generator.integers(0, 50_000, n).tolist() for n in generator.integers(200, 2000, 100)]
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "frames": (frames, {}),
        "tokens": (tokens, {}),
        "tokens in chunks of 32": (tokens, {"seq_len": 32}),
        "tokens with targets": (tokens, {"targets": True, "is_first": True, "assign": "partition"}),
    }
    for name, (sequences, options) in kinds.items():
        for workers in (0, 1, 2):
            with MultiStreamDataLoader(sequences, 64, num_workers=workers, output="numpy", **options) as loader:
                yield f"{name}, {workers} workers", _rate(loader, 0.3 if quick else 1.5), "batches/s"


PROBES: dict[str, Callable[..., Iterator[Row]]] = {
    probe.__name__: probe
    for probe in (imports, first_batches, peak_memory, slow_steps, gzip_memory, multi_stream_rates)
}
LOADERS = ("by key", "by key, seeded", "iterable", "text", "text, map", "multi-stream")


def arguments_of(probe: str, *, quick: bool) -> list[str]:
    """What a probe is run with, once each: memory is of a process that did nothing else."""
    match probe:
        case "peak_memory":
            return [f"{name}/{workers}" for name in LOADERS for workers in (0, 2)]
        case "gzip_memory":
            return [f"{suffix}/{mb}" for suffix in (".jsonl.gz", ".txt.gz") for mb in ((1, 20) if quick else (10, 200))]
        case _:
            return [""]


def _loaders(folder: Path, quick: bool) -> dict[str, Callable[[int], Any]]:
    """Makes a loader of each kind, given the number of workers."""
    import numpy as np

    from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, read_text

    n = 20_000 if quick else 100_000

    class Rows:
        def __getitem__(self, index: int) -> Any:
            return np.full(16, index, np.float32), index

        def __len__(self) -> int:
            return n

    class Numbers(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(range(n))

    lines = _written(folder / f"lines-{n}.txt", lambda: _lines(n * 80))
    sequences = [np.arange(1000 + 7 * i) for i in range(n // 500)]
    common: dict[str, Any] = {"batch_size": 64, "output": "numpy"}
    return {
        "by key": lambda workers: DataLoader(Rows(), shuffle=True, num_workers=workers, **common),
        "by key, seeded": lambda workers: DataLoader(Rows(), shuffle=True, seed=1, num_workers=workers, **common),
        "iterable": lambda workers: DataLoader(Numbers(), num_workers=workers, **common),
        "text": lambda workers: DataLoader(read_text(lines), num_workers=workers, **common),
        "text, map": lambda workers: DataLoader(read_text(lines).shuffle().map(len), num_workers=workers, **common),
        "multi-stream": lambda workers: MultiStreamDataLoader(
            sequences, assign="shuffle", cycle=False, num_workers=workers, **common
        ),
    }


def _argument() -> str:
    return sys.argv[3]


def _slow(row: Any) -> int:
    time.sleep(0.001)
    return 1


def _seconds_to_first(loader: Iterable[Any]) -> float:
    begun = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - begun


def _rate(loader: Iterable[Any], seconds: float) -> float:
    batches = iter(loader)
    for _ in islice(batches, 200):
        pass
    n, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        for _ in islice(batches, 50):
            n += 1
    return n / elapsed


def _peak_mb(loader: Iterable[Any]) -> float:
    peak, looked_at = 0.0, 0.0
    for _ in loader:
        if time.perf_counter() - looked_at > 0.02:
            peak = max(peak, _status_mb("self", "VmRSS") + sum(map(_pss_mb, _children())))
            looked_at = time.perf_counter()
    return peak


def _children() -> list[str]:
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def _status_mb(pid: str, field: str) -> float:
    return _kilobytes(Path(f"/proc/{pid}/status"), field) / 2**10


def _pss_mb(pid: str) -> float:
    try:
        return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss") / 2**10
    except OSError:  # it has just ended
        return 0.0


def _kilobytes(path: Path, field: str) -> int:
    return int(next(line for line in path.read_text().splitlines() if line.startswith(f"{field}:")).split()[1])


def _written(path: Path, make: Callable[[], bytes]) -> Path:
    if not path.exists():
        path.write_bytes(make())
    return path


def _lines(n_bytes: int) -> bytes:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    lines = "".join(" ".join(rng.choices(words, k=12)) + "\n" for _ in range(10_000)).encode()
    whole = lines * (n_bytes // len(lines) + 1)
    return whole[: whole.rindex(b"\n", 0, n_bytes) + 1]


def _compressed(n_bytes: int) -> bytes:
    """JSON lines; as text they are lines, too."""
    rows = b"".join(b'{"text": "%s"}\n' % line for line in _lines(1 << 20).splitlines())
    return gzip.compress(rows * (n_bytes // len(rows) + 1), 1)


if __name__ == "__main__":
    print(json.dumps(list(PROBES[sys.argv[1]](Path(sys.argv[2]), quick="--quick" in sys.argv))))

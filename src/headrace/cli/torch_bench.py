"""`headrace bench`: headrace against torch on this machine, over typical datasets, interleaved, by the wall clock."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from headrace.base.optional import is_installed
from headrace.cli.output import advance, fail, out, plot_ratios, progress_bar, text_bars
from headrace.loader import DataLoader


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Half a minute instead of some minutes, and rougher.")] = False,
    plot: Annotated[Path, typer.Option(metavar="FILE", help="Where the plot goes.")] = Path("headrace-bench.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, and draw no plot.")] = False,
) -> None:
    """Measure headrace against torch on this machine: a table, and a plot.

    The same dataset, arguments and samples for both, one after the other in each of several rounds; rates are
    medians. The plot is a picture if matplotlib is installed, else bars of text.

    Example: `headrace bench --quick`
    """
    if not is_installed("torch"):
        fail("there is nothing to compare with: torch is not installed. Run: pip install 'headrace[torch]'")
    if not plot.resolve().parent.is_dir():
        fail(f"--plot needs a folder that exists, got {plot}.")
    results = _measure(quick)
    if as_json:
        out.print_json(json.dumps([vars(result) for result in results]))
        return
    _print_table(results)
    labels = [f"{result.workload}, {result.workers} workers" for result in results]
    ratios = [result.ratio for result in results]
    if is_installed("matplotlib"):
        plot_ratios(labels, ratios, plot)
        out.print(f"The plot is in {plot}.", highlight=False)
    else:
        out.print(text_bars(labels, ratios), highlight=False)


def _measure(quick: bool) -> list[Result]:
    with progress_bar() as progress:
        task = progress.add_task("", total=1.0)
        advance(progress, task, "Importing torch", 0)

        def tell(what: str, share: float) -> None:
            advance(progress, task, what, share)

        with one_thread():
            return list(measure(QUICK if quick else THOROUGH, tell))


def _print_table(results: list[Result]) -> None:
    table = Table("", "workers", "torch", "headrace", "x", title="Samples per second", header_style="bold")
    for result in results:
        table.add_row(
            result.workload,
            str(result.workers),
            f"{result.torch:,.0f}",
            f"{result.headrace:,.0f}",
            f"[{'green' if result.ratio >= 1 else 'red'}]{result.ratio:.2f}[/]",
        )
    out.print(table)


_WARM_BATCHES = 4
_WORKERS = (0, 2)


@dataclass(frozen=True)
class Effort:
    """How much is measured: the number of rounds, and how long each contestant runs in one."""

    rounds: int
    seconds: float


QUICK = Effort(3, 0.1)
THOROUGH = Effort(7, 1.2)


@dataclass(frozen=True)
class Result:
    """Medians of one workload, in samples per second.

    Attributes:
        ratio: the median over rounds of headrace's rate by torch's: a noisy neighbour slows both sides of a round.
    """

    workload: str
    workers: int
    torch: float
    headrace: float
    ratio: float


def measure(effort: Effort, tell: Callable[[str, float], None]) -> Iterator[Result]:
    """One result after the other.

    Args:
        tell: is called with what is measured next, and how much has been, from 0 to 1.
    """
    plan = [(workload, workers) for workload in workloads() for workers in _WORKERS]
    for i, (workload, workers) in enumerate(plan):
        tell(f"{workload.name}, {workers} workers", i / len(plan))
        yield _compare(workload, workers, effort)


def _compare(workload: Workload, workers: int, effort: Effort) -> Result:
    import torch

    dataset = workload.make()
    options: dict[str, Any] = {
        "batch_size": workload.batch_size,
        "shuffle": workload.shuffle,
        "num_workers": workers,
    }
    theirs, ours = torch.utils.data.DataLoader(dataset, **options), DataLoader(dataset, **options)
    rounds = [
        (_rate(theirs, workload, effort.seconds), _rate(ours, workload, effort.seconds)) for _ in range(effort.rounds)
    ]
    their_rates, our_rates = zip(*rounds, strict=True)
    ratio = statistics.median(b / a for a, b in rounds)
    return Result(workload.name, workers, statistics.median(their_rates), statistics.median(our_rates), ratio)


def _rate(loader: Any, workload: Workload, seconds: float) -> float:
    """Samples per second, after the workers have started. Datasets are long enough for any stretch."""
    batches = iter(loader)
    for _ in range(_WARM_BATCHES):
        next(batches)
    n, started = 0, perf_counter()
    while (elapsed := perf_counter() - started) < seconds:
        if next(batches, None) is None:
            batches = iter(loader)
        n += 1
    return n * workload.batch_size / elapsed


_ENDLESS = 2**20
_SEED = 0


@dataclass(frozen=True)
class Workload:
    """One dataset, and how it is cut into batches."""

    name: str
    make: Callable[[], Any]
    batch_size: int
    shuffle: bool = False


class Made:
    """An endless dataset, whose samples are made by a function of their number."""

    def __init__(self, make_sample: Callable[[int], Any]) -> None:
        self._make_sample = make_sample

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, index: int) -> Any:
        return self._make_sample(index)


def workloads() -> Iterator[Workload]:
    """All that can be run here."""
    yield Workload("arrays in memory, shuffled", _arrays, 256, shuffle=True)
    yield Workload("images, 3x224x224 float32", _images, 32)
    yield Workload("dicts of 20 small arrays", _fields, 64)
    yield Workload("lines of text", _lines, 256)
    if is_installed("PIL"):
        yield Workload("JPEGs, decoded by Pillow", _photographs, 32)


def _arrays() -> Any:
    import torch

    return torch.utils.data.TensorDataset(torch.rand(2**18, 16), torch.arange(2**18))


def _images() -> Any:
    image = np.random.default_rng(_SEED).random((3, 224, 224), dtype=np.float32)
    return Made(lambda index: image.copy())


def _fields() -> Any:
    rows = np.random.default_rng(_SEED).random((20, 8), dtype=np.float32)
    return Made(lambda index: {f"field {i}": row.copy() for i, row in enumerate(rows)})


def _lines() -> Any:
    return Made(lambda index: f"{index}: the quick brown fox jumps over the lazy dog, and does it again and again")


def _photographs() -> Any:
    from PIL import Image

    noise = np.random.default_rng(_SEED).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((256, 256)).save(file, "JPEG")
    packed = file.getvalue()

    def decode(index: int) -> Any:
        return np.array(Image.open(io.BytesIO(packed)).convert("RGB").resize((224, 224)))

    return Made(decode)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: the others would take turns with the loader's workers, spinning while they wait."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

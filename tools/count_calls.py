"""Counts calls in the loop's process, by `sys.setprofile`: per batch in a steady state, and up to the first batch.

Usage: python tools/count_calls.py [--src DIR] [--trees] [--only NAME …]

Calls are of Python functions (each step of a generator counts) and of C functions. A hop is a distinct function of
headrace that runs until `iter(loader)` returns (column "iter"), or until the first batch is there ("first"; without
workers that includes making it). Depth is how many of them are nested; `--trees` shows who calls whom. Streams have
small blocks, so that what each block costs counts, too. With workers, calls vary a little with how many batches lie
ready.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM_BATCHES = 300
BATCHES = 4000
WORKERS = (0, 2)
N_ROWS = 250_000


@dataclass
class Hop:
    """A function of headrace, and those that it called."""

    name: str
    calls: int = 0
    below: dict[str, Hop] = field(default_factory=dict)

    def lines(self, depth: int = 0) -> Iterator[str]:
        for hop in self.below.values():
            yield f"{'  ' * depth}{hop.name}{f'  x {hop.calls}' if hop.calls > 1 else ''}"
            yield from hop.lines(depth + 1)

    def names(self) -> Iterator[str]:
        for hop in self.below.values():
            yield hop.name
            yield from hop.names()

    def depth(self) -> int:
        return 1 + max((hop.depth() for hop in self.below.values()), default=-1)


def hops_of(begin: Callable[[], Any], package: Path) -> tuple[Hop, Any]:
    """The functions of headrace that run in a call, as a tree; others between them are left out."""
    root = Hop("")
    path: list[Hop | None] = []  # of each frame: its hop, if it is headrace's

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            name = _name_of(frame, package)
            hop = None
            if name is not None:
                above = next((one for one in reversed(path) if one is not None), root)
                hop = above.below.setdefault(name, Hop(name))
                hop.calls += 1
            path.append(hop)
        elif event == "return" and path:
            path.pop()

    sys.setprofile(profile)
    try:
        begun = begin()
    finally:
        sys.setprofile(None)
    return root, begun


def _name_of(frame: Any, package: Path) -> str | None:
    code = frame.f_code
    file = Path(code.co_filename)
    if not file.is_relative_to(package) or code.co_name == "<module>":
        return None
    module = ".".join(file.relative_to(package).with_suffix("").parts)
    return f"{module}.{getattr(code, 'co_qualname', code.co_name)}"


def calls_per_batch(batches: Iterator[Any]) -> tuple[float, float, Counter[str]]:
    """Calls of Python and of C functions per batch, and who is called most."""
    for _ in islice(batches, WARM_BATCHES):
        pass
    counts: Counter[str] = Counter()
    names: Counter[str] = Counter()

    def profile(frame: Any, event: str, argument: Any) -> None:
        counts[event] += 1
        if event == "call":
            code = frame.f_code
            names[f"{Path(code.co_filename).stem}.{getattr(code, 'co_qualname', code.co_name)}"] += 1

    n = 0
    sys.setprofile(profile)
    try:
        for _ in islice(batches, BATCHES):
            n += 1
    finally:
        sys.setprofile(None)
    if n < BATCHES:
        raise SystemExit(f"The epoch must have {WARM_BATCHES + BATCHES} batches at least, and was over.")
    return counts["call"] / n, counts["c_call"] / n, names


def kinds(folder: Path) -> dict[str, Callable[[int], Any]]:
    """Makes a loader of each kind, given the number of workers."""
    import numpy as np

    from headrace import (
        DataLoader,
        IterableDataset,
        MultiStreamDataLoader,
        Stream,
        get_worker_info,
        read_parquet,
        read_text,
    )

    class Rows:
        def __getitem__(self, index: int) -> Any:
            return index

        def __len__(self) -> int:
            return N_ROWS

    class Numbers(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            return iter(range(N_ROWS) if worker is None else range(worker.id, N_ROWS, worker.num_workers))

    text = folder / "lines.txt"
    text.write_bytes(b"".join(b"line number %d of a text\n" % i for i in range(N_ROWS)))
    sequences = [np.arange(900 + i) for i in range(100)]
    tokens = [sequence.tolist() for sequence in sequences]
    common: dict[str, Any] = {"batch_size": 8, "output": "numpy"}

    def loader(dataset: Any, **options: Any) -> Callable[[int], Any]:
        return lambda workers: DataLoader(dataset, num_workers=workers, **common, **options)

    def lanes(given: Any, **options: Any) -> Callable[[int], Any]:
        return lambda workers: MultiStreamDataLoader(given, num_workers=workers, **common, **options)

    found = {
        "by key, torch's order": loader(Rows(), shuffle=True),
        "by key, seeded": loader(Rows(), shuffle=True, seed=1),
        "user's iterable": loader(Numbers()),
        "stream, lines of text": loader(read_text(text, block_bytes=1 << 16)),
        "stream, lines of text, shuffled": loader(read_text(text, block_bytes=1 << 16).shuffle(), seed=1),
        "stream, rows with a map": loader(read_text(text, block_bytes=1 << 16).map(len)),
        "stream, blocks": loader(Stream.from_blocks(range(0, N_ROWS, 1000), lambda start: range(start, start + 1000))),
        "multi-stream, steps": lanes(sequences),
        "multi-stream, tokens in chunks": lanes(tokens, seq_len=16),
        "multi-stream, partition with targets": lanes(tokens, assign="partition", targets=True),
    }
    if find_spec("pyarrow") is not None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = folder / "rows.parquet"
        pq.write_table(pa.table({"a": np.arange(N_ROWS), "b": np.arange(N_ROWS) / 2}), table, row_group_size=4000)
        found["stream, columns of Parquet"] = loader(read_parquet(table, rows="columns", block_bytes=1 << 16))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the folder that headrace is imported from")
    parser.add_argument("--trees", action="store_true", help="show who calls whom, and the most frequent calls")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="kinds of loaders whose name has one of these in it")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.src.resolve()))
    import headrace

    package = Path(headrace.__file__).parent
    if package.parent != arguments.src.resolve():
        raise SystemExit(f"headrace must be imported from {arguments.src}, got {package.parent}.")
    header = (
        f"{'loader':38}{'workers':>8}{'Python/batch':>14}{'C/batch':>9}{'iter':>6}{'first':>7}{'depth':>7}{'calls':>7}"
    )
    details: list[str] = []
    print(header)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in kinds(Path(folder)).items():
            if arguments.only and not any(part in name for part in arguments.only):
                continue
            for workers in WORKERS:
                with make(workers) as warm:  # imports what is imported late
                    next(iter(warm))
                with make(workers) as loader:
                    begun, batches = hops_of(lambda loader=loader: iter(loader), package)
                    tree, _ = hops_of(lambda batches=batches: next(batches), package)
                    python, c, names = calls_per_batch(batches)
                    del batches
                n_iter, n_first = len(set(begun.names())), len({*begun.names(), *tree.names()})
                depth, n_calls = max(begun.depth(), tree.depth()), _calls(begun) + _calls(tree)
                print(
                    f"{name:38}{workers:>8}{python:>14.2f}{c:>9.2f}{n_iter:>6}{n_first:>7}{depth:>7}{n_calls:>7}",
                    flush=True,
                )
                details += ["", f"{name}, {workers} workers: iter(loader)", *begun.lines(1)]
                details += ["", f"{name}, {workers} workers: the first next", *tree.lines(1)]
                most = names.most_common(12)
                details += [
                    "  most calls per batch:",
                    *(f"    {n / BATCHES:8.3f}  {one}" for one, n in most),
                ]
    if arguments.trees:
        print(*details, sep="\n")


def _calls(hop: Hop) -> int:
    return sum(below.calls + _calls(below) for below in hop.below.values())


if __name__ == "__main__":
    main()

"""Mutates small files of every format and reads them: rows, a clear error or a counted skip, and nothing else.

`python -m tools.chaos.files --seconds 60` prints counts for each reader, and how to repeat each failure. A file is
judged in a forked process, with others of the same reader, so that a crash or a hang of a library is attributed to it.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import random
import select
import shutil
import signal
import sqlite3
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.base.errors import InternalError, TooManyBadSamplesError
from headrace.base.optional import is_installed

_PER_PROCESS = 200
_PATIENCE_S = 20.0  # for one file; a hang, if it takes longer
_MOST_SHOWN = 5
_COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
if is_installed("zstandard"):
    import zstandard

    _COMPRESSIONS[".zst"] = zstandard.compress


@dataclass(frozen=True)
class Format:
    """Files that one reader reads.

    Attributes:
        suffix: of their names.
        make: the content of a valid one, as large as drawn.
        read: the stream of its rows.
        compressions: the suffixes that may follow.
    """

    suffix: str
    make: Callable[[random.Random], bytes]
    read: Callable[[Any, random.Random], Any]
    compressions: tuple[str, ...] = ()


def _block_bytes(draw: random.Random) -> int:
    return draw.choice([64, 500, 1 << 20])


def _words(draw: random.Random) -> str:
    return " ".join(
        draw.choice(["one", "zwölf", "", '"', "3.5", "-7", "\U0001f600", "null"]) for _ in range(draw.randint(0, 5))
    )


def _text(draw: random.Random) -> bytes:
    return "\n".join(_words(draw) for _ in range(draw.randint(0, 60))).encode()


def _csv(draw: random.Random) -> bytes:
    fields = ['"a,b"', '"x\ny"', '"say ""hi"""', "plain", "", "7", "2.5", "ä"]
    rows = [f"{i},{draw.random()},{draw.choice(fields)}" for i in range(draw.randint(1, 60))]
    return "\n".join(["id,value,text", *rows]).encode()


def _jsonl(draw: random.Random) -> bytes:
    rows = [{"id": i, "text": _words(draw), "list": [1, None, {"a": 2.5}]} for i in range(draw.randint(1, 40))]
    return "\n".join(map(json.dumps, rows)).encode()


def _table(draw: random.Random) -> Any:
    import pyarrow as pa

    n = draw.randint(1, 80)
    columns = {
        "id": pa.array(range(n)),
        "value": pa.array([draw.random() if draw.random() < 0.9 else None for _ in range(n)]),
        "text": pa.array([_words(draw) for _ in range(n)]),
        "binary": pa.array([draw.randbytes(draw.randint(0, 9)) for _ in range(n)]),
        "list": pa.array([[1.5] * draw.randint(0, 3) for _ in range(n)]),
        "fixed": pa.array([[1, 2]] * n, pa.list_(pa.int16(), 2)),
        "dictionary": pa.array([draw.choice("abc") for _ in range(n)]).dictionary_encode(),
        "bool": pa.array([draw.random() < 0.5 for _ in range(n)]),
        "when": pa.array([draw.randint(0, 1 << 40) for _ in range(n)], pa.timestamp("us")),
        "nested": pa.array([{"a": 1, "b": "x"}] * n),
        "map": pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int8())),
        "null": pa.nulls(n),
    }
    chosen = draw.sample(sorted(columns), draw.randint(1, len(columns)))
    return pa.table({name: columns[name] for name in chosen})


def _parquet(draw: random.Random) -> bytes:
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    compression = draw.choice(["none", "snappy", "zstd", "gzip"])
    pq.write_table(_table(draw), sink, row_group_size=draw.choice([7, 50]), compression=compression)
    return sink.getvalue()


def _arrow(draw: random.Random) -> bytes:
    from pyarrow import ipc

    table, sink = _table(draw), io.BytesIO()
    new = draw.choice([ipc.new_file, ipc.new_stream])
    with new(sink, table.schema, options=ipc.IpcWriteOptions(compression=draw.choice([None, "lz4", "zstd"]))) as writer:
        for batch in table.to_batches(max_chunksize=draw.choice([5, 40])):
            writer.write_batch(batch)
    return sink.getvalue()


def _tar(draw: random.Random) -> bytes:
    sink, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(6).reshape(2, 3))
    tar_format = draw.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=sink, mode="w", format=tar_format) as archive:
        for i in range(draw.randint(1, 12)):
            name = f"{'long/' * draw.choice([0, 0, 30])}sample-{i}"
            for extension, content in (
                ("txt", b"text"),
                ("cls", b"3"),
                ("json", b'{"a": 1}'),
                ("npy", array.getvalue()),
            ):
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def _sqlite(draw: random.Random) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.db")
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE data (id INTEGER PRIMARY KEY, value REAL, text TEXT)")
            rows = [(i, draw.random(), _words(draw)) for i in range(draw.randint(1, 200))]
            connection.executemany("INSERT INTO data VALUES (?, ?, ?)", rows)
        connection.close()
        return Path(path).read_bytes()


def _read_text(path: Any, draw: random.Random) -> Any:
    return headrace.read_text(
        path,
        words=draw.random() < 0.2,
        block_bytes=_block_bytes(draw),
        stretch_bytes=draw.choice([100, 1 << 20]),
        encoding=draw.choice(["utf-8", "utf-8", "latin-1", "utf-16", "utf-7"]),
    )


def _read_csv(path: Any, draw: random.Random) -> Any:
    options = {"newlines_in_values": draw.random() < 0.8, "header": draw.random() < 0.9}
    sizes = {"block_bytes": _block_bytes(draw), "max_record_bytes": draw.choice([100, 1 << 20])}
    return headrace.read_csv(path, rows=_rows(draw), stretch_bytes=draw.choice([100, 1 << 20]), **options, **sizes)


def _rows(draw: random.Random) -> Any:
    return draw.choice(["dicts", "columns"])


_ALL = tuple(_COMPRESSIONS)
_QUERY = "SELECT * FROM data"
FORMATS = {
    "text": Format(".txt", _text, _read_text, _ALL),
    "csv": Format(".csv", _csv, _read_csv, _ALL),
    "jsonl": Format(
        ".jsonl",
        _jsonl,
        lambda path, draw: headrace.read_jsonl(
            path, block_bytes=_block_bytes(draw), stretch_bytes=draw.choice([100, 1 << 20])
        ),
        _ALL,
    ),
    "parquet": Format(
        ".parquet",
        _parquet,
        lambda path, draw: headrace.read_parquet(path, rows=_rows(draw), block_bytes=_block_bytes(draw)),
    ),
    "arrow": Format(
        ".arrow",
        _arrow,
        lambda path, draw: headrace.read_arrow(path, rows=_rows(draw), block_bytes=_block_bytes(draw)),
        (".gz", ".zst"),
    ),
    "tar": Format(".tar", _tar, lambda path, draw: headrace.read_tar(path, block_bytes=_block_bytes(draw)), _ALL),
    "sql": Format(
        ".db",
        _sqlite,
        lambda path, draw: headrace.read_sql(path, _QUERY, draw.choice(["id", None]), rows=_rows(draw), block_rows=50),
    ),
}


def mutate(content: bytes, draw: random.Random) -> bytes:
    """The content with a few changes."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        draw.choice(_MUTATIONS)(changed, draw)
    return bytes(changed)


def _span(content: bytearray, draw: random.Random, longest: int = 64) -> slice:
    start = draw.randrange(len(content) + 1)
    return slice(start, start + draw.randint(1, longest))


def _flip_bits(content: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice([1, 1, 3, 20]) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def _set_bytes(content: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice([1, 4]) if content else 0):
        content[draw.randrange(len(content))] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, ord('"'), ord("\n")])


def _cut_end(content: bytearray, draw: random.Random) -> None:
    del content[draw.randrange(len(content) + 1) :]


def _cut_out(content: bytearray, draw: random.Random) -> None:
    del content[_span(content, draw, 300)]


def _double(content: bytearray, draw: random.Random) -> None:
    span = _span(content, draw, 300)
    content[span.start : span.start] = content[span]


def _insert(content: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(content) + 1)
    content[place:place] = draw.randbytes(draw.randint(1, 64))


def _overwrite(content: bytearray, draw: random.Random) -> None:
    span = _span(content, draw)
    content[span] = draw.randbytes(len(content[span]))


def _swap(content: bytearray, draw: random.Random) -> None:
    one, other = sorted((draw.randrange(len(content) + 1), draw.randrange(len(content) + 1)))
    n = min(64, other - one, len(content) - other)
    first, second = content[one : one + n], content[other : other + n]
    content[one : one + n], content[other : other + n] = second, first


_MUTATIONS = (_flip_bits, _flip_bits, _set_bytes, _cut_end, _cut_out, _double, _insert, _overwrite, _swap)


def write_case(name: str, seed: int, folder: str) -> tuple[str, random.Random]:
    """A mutated file, and the generator of whatever else is drawn for it."""
    draw, form = random.Random(f"{name} {seed}"), FORMATS[name]
    content, suffix = form.make(draw), form.suffix
    compression = draw.choice([*form.compressions, *[""] * max(len(form.compressions), 1)])
    if compression and draw.random() < 0.3:  # what is damaged is the content
        content = _COMPRESSIONS[compression](mutate(content, draw))
    else:
        content = mutate(_COMPRESSIONS[compression](content) if compression else content, draw)
    path = os.path.join(folder, f"mutated{suffix}{compression}")
    Path(path).write_bytes(content)
    return path, draw


def judge(name: str, seed: int, folder: str) -> str:
    """Read a mutated file: "read", "refused", "skipped", or what is wrong."""
    path, draw = write_case(name, seed, folder)
    if name != "sql" and draw.random() < 0.2:
        return judge_beside(name, seed, path, draw)
    on_error, cuts = draw.choice(["raise", "skip"]), draw.random() < 0.1
    workers = 2 if draw.random() < 0.002 else 0
    try:
        stream = FORMATS[name].read(path, draw)
        if draw.random() < 0.2:
            stream = stream.shuffle()
        options: dict[str, Any] = {"on_error": on_error, "output": "numpy", "num_workers": workers}
        with headrace.DataLoader(stream, batch_size=7, collate_fn=_keep, **options) as loader:
            for n, _ in enumerate(loader):
                if cuts and n == 1:
                    os.truncate(path, os.path.getsize(path) // 2)
            return "skipped" if loader.errors else "read"
    except TooManyBadSamplesError:
        return "skipped"  # all there was
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        if isinstance(error, (InternalError, *_BARE)):
            return _wrong(error, "a bare error")
        return "refused" if _names(error, path) else _wrong(error, "the file is not named")


_BARE = (AttributeError, KeyError, IndexError, TypeError, AssertionError, RecursionError, MemoryError)


def judge_beside(name: str, seed: int, path: str, draw: random.Random) -> str:
    """Read a mutated file behind the one that it was made of, of which nothing may be lost under `on_error="skip"`."""
    form, options = FORMATS[name], draw.getstate()
    good = os.path.join(os.path.dirname(path), f"good{form.suffix}")
    Path(good).write_bytes(form.make(random.Random(f"{name} {seed}")))
    try:
        expected = _skipping(form.read(good, draw))
    except Exception:  # noqa: BLE001 (such as the wrong encoding: there is nothing to lose)
        return "refused"
    draw.setstate(options)
    try:
        found = _skipping(form.read([good, path], draw))
    except ValueError as error:  # the two have other columns, or names
        return "refused" if _names(error, path) else _wrong(error, "a damaged file costs another")
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        return _wrong(error, "a damaged file costs another")
    return "skipped" if found[: len(expected)] == expected else "a damaged file costs another"


def _skipping(stream: Any) -> list[str]:
    with headrace.DataLoader(stream, batch_size=None, on_error="skip", output="numpy") as loader:
        return [repr(row) for row in loader]


def _keep(rows: Any) -> Any:
    return rows


def _names(error: BaseException, path: str) -> bool:
    notes = " ".join(getattr(error, "__notes__", []))
    said = f"{error} {notes}"
    return os.path.basename(path) in said or _QUERY in said


def _wrong(error: BaseException, what: str) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what}: {type(error).__name__} at {os.path.basename(last.filename)}:{last.lineno}: {error!s:.120}"


def run(name: str, first: int, count: int, deadline: float) -> Iterator[tuple[int, str]]:
    """The verdict on each of some files."""
    seed, end = first, first + count
    while seed < end and time.monotonic() < deadline:
        for seed_done, verdict in _run_forked(name, range(seed, min(seed + _PER_PROCESS, end)), deadline):
            seed = seed_done + 1
            yield seed_done, verdict


def _run_forked(name: str, seeds: Sequence[int], deadline: float) -> Iterator[tuple[int, str]]:
    """The verdicts of a process of its own; it ends with the first file that it does not survive."""
    receiver, sender = os.pipe()
    folder = tempfile.mkdtemp(prefix="headrace-files-")
    child = os.fork()
    if child == 0:
        os.close(receiver)
        _judge_all(name, seeds, folder, sender, deadline)
    os.close(sender)
    try:
        yield from _receive(child, receiver, seeds)
    finally:
        os.close(receiver)
        shutil.rmtree(folder, ignore_errors=True)


def _judge_all(name: str, seeds: Sequence[int], folder: str, sender: int, deadline: float) -> None:
    try:
        warnings.simplefilter("ignore")
        with os.fdopen(sender, "w", buffering=1) as answers:
            for seed in seeds:
                if time.monotonic() > deadline:
                    break
                answers.write(json.dumps([seed, judge(name, seed, folder)]) + "\n")
    finally:
        os._exit(0)


def _receive(child: int, receiver: int, seeds: Sequence[int]) -> Iterator[tuple[int, str]]:
    reached, received = seeds[0], b""
    while True:
        ready, _, _ = select.select([receiver], [], [], _PATIENCE_S)
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            yield reached, "a hang"
            return
        piece = os.read(receiver, 1 << 16)
        if not piece:
            break
        *lines, received = (received + piece).split(b"\n")
        for line in lines:
            seed, verdict = json.loads(line)
            reached = seed + 1
            yield seed, verdict
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        yield reached, f"a crash: {signal.Signals(os.WTERMSIG(status)).name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run as the command line says; 1 if anything went wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos.files", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="number of the first file (default 0)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run, over all readers")
    parser.add_argument("--reader", choices=FORMATS, action="append", help="one reader, or several; default all")
    parser.add_argument("--count", type=int, default=20_000, help="files for each reader at most")
    options = parser.parse_args(argv)
    readers = options.reader or [
        name for name in FORMATS if name not in ("parquet", "arrow") or is_installed("pyarrow")
    ]
    is_right = True
    for name in readers:
        share = options.seconds / len(readers)
        is_right = _report(name, options.seed, options.count, time.monotonic() + share) and is_right
        sys.stdout.flush()
    return 0 if is_right else 1


def _report(name: str, first: int, count: int, deadline: float) -> bool:
    verdicts: Counter[str] = Counter()
    wrong: dict[str, int] = {}
    for seed, verdict in run(name, first, count, deadline):
        is_right = verdict in ("read", "refused", "skipped")
        verdicts[verdict if is_right else "wrong"] += 1
        if not is_right:
            wrong.setdefault(verdict, seed)
    print(f"{name}: {verdicts.total():,} files: {', '.join(f'{n:,} {verdict}' for verdict, n in verdicts.items())}")
    for verdict, seed in list(wrong.items())[:_MOST_SHOWN]:
        print(f"  {verdict}\n    python -m tools.chaos.files --reader {name} --seed {seed} --count 1")
    return not wrong


if __name__ == "__main__":
    raise SystemExit(main())

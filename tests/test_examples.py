"""Every example runs by itself, with and without torch, and prints what the documents it follows promise."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_JAX = importlib.util.find_spec("jax") is not None
MAX_LINES = 80


def run(name: str) -> list[str]:
    """The lines that an example prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", EXAMPLES / name],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def vectors(*rows: str) -> list[str]:
    """Integer vectors, written as torch prints them, as the installed output prints them."""
    if HAS_TORCH:
        return [re.sub(r"\[.*?\]", r"tensor(\g<0>)", row) for row in rows]
    return [row.replace(",", "").replace("tensor(", "").replace(")", "") for row in rows]


def section(lines: list[str], start: str, length: int) -> list[str]:
    """The lines after the one that says `start`."""
    at = lines.index(start) + 1
    return lines[at : at + length]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_is_short_and_explained(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) < MAX_LINES
    assert source.startswith('"""')


def test_every_example_is_tested() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'run("{path.name}")' not in tests] == []


THREE_BATCHES = ("[0, 1, 2, 3]", "[4, 5, 6, 7]", "[ 8,  9, 10, 11]")


def test_map_and_iterable() -> None:
    """M1.1, M1.2, M4.1."""
    lines = run("map_and_iterable.py")
    assert section(lines, "Map style:", 3) == vectors(*THREE_BATCHES)
    assert section(lines, "Iterable:", 3) == vectors(*THREE_BATCHES)


def test_endless_chain() -> None:
    """M1.4."""
    assert run("endless_chain.py") == vectors(
        "[12, 13, 14, 15]",
        "[16, 17, 27, 28]",
        "[29, 31, 32, 33]",
        "[34, 35, 36, 37]",
        "[38, 39, 40, 41]",
        "[42, 43, 12, 13]",
        "[14, 15, 16, 17]",
        "[27, 28, 29, 31]",
    )


def test_plain_dataset() -> None:
    """M2.1."""
    assert run("plain_dataset.py") == ["1", "2", "[1, 2, 3, 4, 5]", "2", "3", "4", "5", "6"]


def test_callback() -> None:
    """M2.5."""
    assert run("callback.py") == [line for i in range(1, 6) for line in (f"{i} 입니다.", f"{i}")]


def test_worker_info() -> None:
    """M3.3, in the main process; and what the information is good for in workers."""
    lines = run("worker_info.py")
    expected = vectors(*(f"{row} [-1, -1, -1, -1]" for row in (*THREE_BATCHES, "[12, 13, 14, 15]")))
    assert section(lines, "MyMapDataset, no workers:", 4) == expected
    assert section(lines, "MyIterableDataset, no workers:", 4) == expected
    logs = section(lines, "Two workers, each with a log of its own:", 2)
    assert logs == ["  worker-0.log: ['0', '1', '4', '5']", "  worker-1.log: ['2', '3', '6', '7']"]
    changed = section(lines, "Two workers that changed their copies of the dataset:", 2)
    assert changed == [
        "  ('a from worker 0 of 2', 'b from worker 0 of 2')",
        "  ('c from worker 1 of 2', 'd from worker 1 of 2')",
    ]


def test_workers() -> None:
    """M2.2, M3.4, M4.7, M5.4."""
    lines = run("workers.py")
    batches = (*THREE_BATCHES, "[12, 13, 14, 15]")
    expected = vectors(*(f"{batch} [{', '.join([str(i % 2)] * 4)}]" for i, batch in enumerate(batches)))
    assert section(lines, "Two workers, processes:", 4) == expected
    assert section(lines, "Two workers, threads:", 4) == expected
    assert lines[-2] == "Persistent workers are the same in each epoch: True"
    assert re.fullmatch(r"Ten batches .*: [\d.]+ s without workers, [\d.]+ s with two", lines[-1])


def test_iterable_workers() -> None:
    """M3.5, M3.6."""
    lines = run("iterable_workers.py")
    batches = (*THREE_BATCHES, "[12, 13, 14, 15]")
    twice = vectors(*(batch for batch in batches for _ in range(2)))
    assert section(lines, "Every worker iterates over its own copy:", 8) == twice
    [warning] = [line for line in lines if line.startswith("Warning: ")]
    assert "Workers 0 and 1 return the same batches" in warning
    assert section(lines, "Cut by a worker_init_fn:", 4) == vectors(*(batches[i] for i in (0, 2, 1, 3)))
    assert lines[-2:] == [f"17 samples, {name}: each comes once: True" for name in ("cut", "shared out")]


def test_survive_failures() -> None:
    """M4.6."""
    lines = run("survive_failures.py")
    assert "  ValueError: picture 5 is broken" in lines
    assert "  worker, batch and sample are named: True" in lines
    skipped = section(lines, 'on_error="skip" leaves the sample out:', 5)
    assert skipped[:3] == vectors("[0, 1, 2, 3]", "[4, 6, 7]", "[ 8,  9, 10, 11]")
    assert skipped[3] == (
        "  Warning: on_error='skip' leaves out what raises, here sample 5 in batch 1: ValueError: picture 5 is broken"
    )
    assert skipped[4] == "  sample 5 of batch 1, in worker 1: ValueError: picture 5 is broken"
    assert section(lines, 'on_worker_death="restart" does the work again:', 3) == vectors(*THREE_BATCHES)
    assert lines[-1] == "  a worker was killed: True"


def test_shared_list() -> None:
    lines = run("shared_list.py")
    assert "Sum over all samples: 19999900000 expected: 19999900000" in lines
    needs = {match[1]: int(match[2]) for line in lines if (match := re.match(r"(\w+): .* needs (-?\d+) MB", line))}
    if sys.platform == "linux":
        assert needs["SharedList"] < 5 < needs["list"]
    [warning] = [line for line in lines if line.startswith("  Warning: ")]
    assert "SharedList" in warning


def test_padding() -> None:
    """M4.4, M5.5."""
    lines = run("padding.py")
    assert lines[0] == "Samples: (3, 2), (5, 2), (2, 2)"
    [error] = section(lines, "Without a collate_fn:", 1)
    assert error.startswith("  CollateError: ")
    assert all(part in error for part in ("(3, 2)", "(5, 2)", "(2, 2)", "pad_collate"))
    padded = section(lines, "With pad_collate(sort=True), longest first:", 2)
    assert padded == ["  shape: (3, 5, 2)", "  lengths: [5, 3, 2]"]
    assert lines[-2:] == ["  shape: (2, 5, 2) lengths: [3, 5]", "  shape: (2, 2, 2) lengths: [2, 1]"]


def test_no_batching() -> None:
    """M4.5."""
    lines = run("no_batching.py")
    array = "tensor" if HAS_TORCH else "array"
    samples = section(lines, "Arrays are converted, everything else stays as it is:", 4)
    assert samples == [f"{{'x': {i}, 'square': {array}([{i * i}])}}" for i in range(4)]
    assert section(lines, "A collate_fn per sample, in the order of a sampler:", 2) == ["30", "10"]


def test_samplers() -> None:
    """M4.3, M5.2, M5.6."""
    lines = run("samplers.py")
    in_order = [f"  Epoch {epoch}: [0, 1] [2, 3] [4, 5] [6, 7] [8, 9]" for epoch in (1, 2)]
    assert section(lines, "shuffle=False: always the same order", 2) == in_order
    assert section(lines, "SequentialSampler", 2) == in_order
    for title in ("shuffle=True: another order each epoch", "RandomSampler"):
        epochs = [[int(i) for i in re.findall(r"\d+", line)[1:]] for line in section(lines, title, 2)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert "Samples per class: [8 2]" in lines
    check_balance(lines)


def check_balance(lines: list[str]) -> None:
    """The 8:2 classes come out near 50:50."""
    [shares] = [re.findall(r"(\d+)%", line) for line in lines if line.startswith("Over 1000 epochs")]
    assert len(shares) == 2
    assert all(46 <= int(share) <= 54 for share in shares)


def test_bucket_batches() -> None:
    """M5.7."""
    lines = run("bucket_batches.py")
    at_random, by_length, by_tokens = (int(match[1]) for line in lines if (match := re.search(r"(\d+)% padding", line)))
    assert at_random > 60
    assert max(by_length, by_tokens) < 10
    [largest] = [int(match[1]) for line in lines if (match := re.match(r"At most 1000 .* largest of (\d+) ", line))]
    assert 900 < largest <= 1000
    assert lines[-2:] == ["  state: {'seed': 0, 'epoch': 0, 'batch': 70}", "  every sentence came once: True"]


def test_class_batches() -> None:
    """M5.7."""
    lines = run("class_batches.py")
    assert lines[0] == "66 pictures, 6 batches"
    assert all(len(set(re.findall(r"person (\d+)", line))) == 4 for line in lines[1:7])
    assert lines[7].endswith(": True")
    assert lines[-2:] == ["  person 5 comes: False", "  a picture comes twice in a batch: False"]


def test_pack_sequences() -> None:
    lines = run("pack_sequences.py")
    cut = section(lines, "Cut where a row is full:", 6)
    assert (
        cut[0]
        == "  tokens: [11, 12, 13, 14, 15, 21, 22, 31] [32, 33, 34, 35, 36, 37, 41, 42] [43, 0, 0, 0, 0, 0, 0, 0]"
    )
    assert cut[4] == "  cu_seqlens: [0, 5, 7, 8, 14, 16, 17, 24]"
    assert lines.count("  unpacked, they are the documents: True") == 2
    [error] = [line for line in lines if line.startswith("  CollateError: ")]
    assert "drop_others=True" in error


def test_resume() -> None:
    """M4.2, for datasets by key."""
    lines = run("resume.py")
    first, second = (json.loads(numbers) for numbers in re.findall(r"\[.*?\]", lines[0]))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    steps = section(lines, "Stopped after two steps of the first epoch:", 2)
    assert steps == [f"  step {first[0]} {first[1]}", f"  step {first[2]} {first[3]}"]
    assert "Gone on, with two workers: " + " ".join(map(str, first[4:])) in lines
    assert sum(line.endswith(": True") for line in lines) == 4
    assert lines[-2] == f"Larger batches go on with the same sample: {first[4:8]} {first[8:]}"
    assert lines[-1] == f"Straight to batch 2: {second[8:]}"


def test_ranks() -> None:
    lines = run("ranks.py")
    sizes = {
        name: rest.split() for name, _, rest in (line.partition(": ") for line in lines) if name.startswith("even")
    }
    assert sizes == {
        "even='drop'": ["10+10+5"] * 4,
        "even='pad'": ["10+10+6"] * 4,
        "even='repeat'": ["10+10+10"] * 4,
        "even='allow'": ["10+10+6"] * 3 + ["10+10+5"],
    }
    assert sum("each exactly once over 4 ranks" in line for line in lines) == 4
    assert sum("each exactly once over 2 ranks" in line for line in lines) == 2
    assert "Every sample came once: True" in lines
    assert lines[-1].endswith("103 samples expected, 103 delivered, each exactly once over 3 ranks.")


def test_read_text() -> None:
    lines = run("read_text.py")
    assert lines[2].startswith("epoch: 2 windows of 8 blocks; shuffled")
    assert len(lines[4].removeprefix("The first batch: ").split(", ")) == 8
    assert lines[5:] == ["Lines: 100", "Two workers give the same batches: True", "Gone on after five batches: True"]


def test_arguments() -> None:
    """M5.1, M5.3."""
    lines = run("arguments.py")
    errors = [line for line in lines if line.startswith("  ValueError: ")]
    assert len(errors) == 11
    assert sum("mutually exclusive" in error for error in errors) == 6
    assert lines[-2:] == ["drop_last=False: 3 batches of [4, 4, 2]", "drop_last=True: 2 batches of [4, 4]"]


def test_numpy_and_jax() -> None:
    lines = run("numpy_and_jax.py")
    for output, installed, array in (("torch", HAS_TORCH, "Tensor"), ("numpy", True, "ndarray"), ("jax", HAS_JAX, "")):
        first = section(lines, f'output="{output}":', 1)[0]
        if installed:
            assert first.startswith(f"  tokens: {array}")
            assert "shape (4, 4)" in first
        else:
            assert f"pip install 'headrace[{output}]'" in first


def test_demo() -> None:
    """M1.1, M1.2, M5.5, M5.6, as `make demo` shows them."""
    lines = run("demo.py")
    assert section(lines, "Iterable:", 3) == vectors(*THREE_BATCHES)
    assert "  shape: (3, 5, 2)" in lines
    check_balance(lines)
    assert lines[0].startswith("torch is not installed") != HAS_TORCH


def test_multi_stream() -> None:
    lines = run("multi_stream.py")
    assert lines[1:5] == [
        "  position 0: 40 41 42 43 31 32 33 34 35 36 37 38",
        "  position 1: 31 32 33 34 35 36 37 38 39 12 13 14",
        "  position 2: 27 28 29 40 41 42 43 12 13 14 15 16",
        "  position 3: 12 13 14 15 16 17 31 32 33 34 35 36",
    ]
    assert "1 workers, the same batches: True" in lines
    assert "2 workers, the same batches: True" in lines
    assert lines[-2].startswith("  MyIterableDataset, parts of [2, 2]: [")
    assert lines[-1].startswith("  MultiStreamDataset, parts of [2, 2]: [")


def test_multi_stream_files() -> None:
    lines = run("multi_stream_files.py")
    assert section(lines, "(b) Files in groups:", 2) == [
        "   the tide comes in the tide goes out",
        "   rain on the roof rain on the road",
    ]
    assert lines[-1] == "Stopped after 5 steps, gone on with two workers, the same: True"


def test_timings() -> None:
    lines = run("timings.py")
    assert lines[0].startswith("0 workers, 17 batches, bottleneck: ")
    assert lines[1].startswith("  The model waited ")
    assert [line for line in lines if line.startswith("2 workers, 17 batches, bottleneck: ")]


def test_token_stream() -> None:
    """M1.3."""
    lines = run("token_stream.py")
    assert section(lines, "Batches of 5, eight of them:", 8) == [
        "['the', 'quick', 'brown', 'fox', 'jumps']",
        "['over', 'the', 'lazy', 'dog', 'and']",
        "['runs', 'into', 'the', 'deep', 'dark']",
        "['wood', 'the', 'quick', 'brown', 'fox']",
        "['jumps', 'over', 'the', 'lazy', 'dog']",
        "['and', 'runs', 'into', 'the', 'deep']",
        "['dark', 'wood', 'the', 'quick', 'brown']",
        "['fox', 'jumps', 'over', 'the', 'lazy']",
    ]
    assert lines[-1] == "Two workers give the same batches: True"


def test_tsv() -> None:
    """M3.1, M3.2, M4.2."""
    lines = run("tsv.py")
    assert section(lines, "In the order of the file:", 1) == [
        vectors("[0, 1, 2]")[0] + " ['text number 0', 'text number 1', 'text number 2'] " + vectors("[0, 1, 0]")[0]
    ]
    assert lines[3:] == [
        "Shuffled, every row once in each epoch: [True, True]",
        "Another order in each: True",
        "Gone on after 30 batches, with two workers and another batch size: True",
    ]


def test_sql_rows() -> None:
    """M2.6, for a database."""
    assert run("sql_rows.py") == [
        "The first batch: [21, 22, 23, 24] [21.0, 22.0, 23.0, 24.0]",
        "Rows, and how many of them are different: 5800 5800",
        "In order: True",
    ]


def test_live_feed() -> None:
    assert run("live_feed.py") == [
        "Crashed: the machine is gone. The checkpoint has 240 rows.",
        "Every row once, in order: True",
        "Learnt: [2.0, -1.0, 0.5]",
    ]


def test_any_iterable() -> None:
    """M3.5."""
    lines = run("any_iterable.py")
    batches = vectors(*THREE_BATCHES, "[12, 13, 14, 15]")
    assert section(lines, "Two workers, each with its own copy:", 8) == [batch for batch in batches for _ in range(2)]
    assert section(lines, "Two workers that share it:", 4) == batches
    assert lines[-1] == "True"


def test_mix_streams() -> None:
    assert run("mix_streams.py")[2:] == ["Different novels: 3000", "Gone on with two workers: True"]


def test_language_model() -> None:
    lines = run("language_model.py")
    assert lines[0].startswith("A batch: {'tokens': (")
    assert lines[2] == "Resumed with two workers: True"

"""What a type checker makes of a user's script."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mypy")

SCRIPT = """
from collections.abc import Iterator
from headrace import ConcatDataset, DataLoader, Dataset, IterableDataset, Stream, StreamBatch, Subset
from headrace import WeightedRandomSampler, class_weights, read_csv, read_text

class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

class Letters(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        return iter("ab")

numbers: DataLoader[int] = DataLoader(Numbers(), batch_size=2)
inferred = DataLoader(Subset(ConcatDataset([Numbers()]), [0]))
reveal_type(inferred)
reveal_type(DataLoader(Letters()))
reveal_type(DataLoader([1.5]))
WeightedRandomSampler(class_weights([0, 1]), 2)

def joined(samples: list[int]) -> dict[str, str]:
    return {"text": str(samples)}

for batch in DataLoader(Numbers(), collate_fn=joined):
    reveal_type(batch)
typed: DataLoader[int, dict[str, str]] = DataLoader(Numbers(), collate_fn=joined)
pairs: DataLoader[int, tuple[int, str]] = DataLoader(Numbers())
for x, y in pairs:
    reveal_type(y)
for words in read_text("a.txt").map(str.split).filter(bool):
    reveal_type(words)
reveal_type(read_csv("a.csv").map(len))
reveal_type(Stream.from_iterable([1, 2]).flat_map(lambda n: [str(n)]))
reveal_type(StreamBatch(1).targets)
any_stream: Stream = read_text("a.txt")
DataLoader(Numbers(), output="nunpy")
"""


def test_samples_types_are_inferred_and_a_misspelt_output_is_found(tmp_path):
    script, config = tmp_path / "script.py", tmp_path / "mypy.ini"
    script.write_text(SCRIPT)
    config.write_text("[mypy]\nstrict = true\n[mypy-jax.*,pyarrow.*,torch.*]\nfollow_imports = skip\n")  # half a minute
    command = [sys.executable, "-m", "mypy", "--config-file", config, f"--cache-dir={tmp_path / 'cache'}", script]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout.splitlines()
    assert [line.partition("Revealed type is ")[2] for line in lines if "Revealed" in line] == [
        '"headrace.loader.DataLoader[int, Any]"',
        '"headrace.loader.DataLoader[str, Any]"',
        '"headrace.loader.DataLoader[float, Any]"',
        '"dict[str, str]"',
        '"str"',
        '"list[str]"',
        '"headrace.streams.stream.Stream[int]"',
        '"headrace.streams.stream.Stream[str]"',
        '"Any"',
    ]
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 1
    assert "nunpy" in errors[0]

"""How fast do batches of 32 x 1,024 tokens and targets come from files, next to nanoGPT's loop and Megatron's dataset?

100,000,000 tokens of 16 bits, as nanoGPT writes them, and the same as Megatron's indexed files, with documents of some
600 tokens. nanoGPT's loop maps the file anew for each batch, and stacks 64 slices of it, in the training process; it
has no workers. Megatron's dataset finds a sample by its shuffle, sample and document indexes, joins parts of documents
and copies tokens and labels; torch's loader collates them. The limit: NumPy converts as many tokens to 64 bits, twice.
One intra-operation thread of torch.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target
from benchmarks.steady import loader_rate, own_rate, stretch_of
from benchmarks.timing import interleave, median_ratio, spread, torch_threads
from headrace import DataLoader, TokenDataset, read_tokens
from tests.sources.token_writing import write_index

BATCH, LENGTH = 32, 1024
PER_BATCH = BATCH * LENGTH
NANO, LIMIT = "nanoGPT's loop", "limit: astype, twice"
STREAM, SHUFFLED, BY_NUMBER = "read_tokens", "read_tokens, shuffled", "TokenDataset, shuffled"


class MegatronSamples(torch_data.Dataset[dict[str, Any]]):
    """Samples as Megatron's GPTDataset makes them: of documents in random order, cut every `LENGTH` tokens."""

    def __init__(self, path: Path, lengths: np.ndarray) -> None:
        random = np.random.default_rng(0)
        self.buffer = memoryview(np.memmap(path, mode="r", order="C"))
        self.lengths = lengths
        self.places = (np.cumsum(lengths) - lengths) * 2
        self.documents = random.permutation(len(lengths))
        ends = np.cumsum(lengths[self.documents])
        starts = np.arange((int(ends[-1]) - 1) // LENGTH + 1) * LENGTH
        owners = np.searchsorted(ends, starts, side="right")
        self.samples = np.stack([owners, starts - (ends[owners] - lengths[self.documents[owners]])], axis=1)
        self.shuffle = random.permutation(len(self.samples) - 1)
        self.loss_mask, self.positions = torch.ones(LENGTH), torch.arange(LENGTH)

    def __len__(self) -> int:
        return len(self.shuffle)

    def get(self, document: int, offset: int, length: int) -> np.ndarray:
        place = int(self.places[document]) + 2 * offset
        return np.frombuffer(self.buffer, np.uint16, count=length, offset=place)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self.shuffle[index]
        (first, start), (last, stop) = self.samples[number].tolist(), self.samples[number + 1].tolist()
        parts = []
        for place in range(first, last + 1):
            document = int(self.documents[place])
            begin = start if place == first else 0
            end = stop + 1 if place == last else int(self.lengths[document])
            parts.append(self.get(document, begin, end - begin))
        text = torch.from_numpy(np.concatenate(parts).astype(np.int64)).long()
        return {
            "tokens": text[:-1].contiguous(),
            "labels": text[1:].contiguous(),
            "loss_mask": self.loss_mask,
            "position_ids": self.positions,
        }


def nano_batch(path: Path) -> Callable[[], object]:
    def get_batch() -> object:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - LENGTH, (BATCH,))
        x = torch.stack([torch.from_numpy((data[i : i + LENGTH]).astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + LENGTH]).astype(np.int64)) for i in ix])
        return x, y

    return get_batch


def run(settings: Settings) -> Report:
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        return _run(Path(folder), settings)


def _run(folder: Path, settings: Settings) -> Report:
    random, stretch = np.random.default_rng(0), stretch_of(settings)
    n = 20_000_000 if settings.quick else 100_000_000
    lengths = random.lognormal(6, 0.8, n // 400).astype(np.int64) + 1
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), n))]
    tokens = random.integers(0, 50_000, int(lengths.sum())).astype(np.uint16)
    path = folder / "train.bin"
    tokens.tofile(path)
    write_index(folder / "train.idx", lengths, np.arange(len(lengths) + 1), "uint16")
    some = tokens[: PER_BATCH + 1]

    def ours(name: str, workers: int) -> Any:
        if name == BY_NUMBER:
            loader: Any = DataLoader(
                TokenDataset(path, LENGTH, stride=64), BATCH, shuffle=True, seed=1, num_workers=workers
            )
        else:
            stream = read_tokens(folder / "train", LENGTH)
            stream = stream.shuffle().repeat() if name == SHUFFLED else stream.repeat()
            loader = DataLoader(stream, BATCH, seed=1, num_workers=workers)
        return loader_rate(loader, PER_BATCH, stretch, epoch=n // 64 // BATCH if name == BY_NUMBER else 2**30)

    def theirs(workers: int) -> Any:
        samples = MegatronSamples(path, lengths)
        loader = torch_data.DataLoader(samples, BATCH, num_workers=workers, drop_last=True)
        return loader_rate(loader, PER_BATCH, stretch, epoch=len(samples) // BATCH)

    contestants = {
        LIMIT: own_rate(lambda: (some[:-1].astype(np.int64), some[1:].astype(np.int64)), PER_BATCH, stretch),
        NANO: own_rate(nano_batch(path), PER_BATCH, stretch),
    }
    for workers in (0, 2):
        contestants[f"Megatron's in torch, {workers}"] = theirs(workers)
        for name in (STREAM, SHUFFLED, BY_NUMBER):
            contestants[f"{name}, {workers}"] = ours(name, workers)
    figures = interleave(contestants, settings.repeats)
    rows = [
        {
            "contestant, workers": name,
            "tokens/s": statistics.median(own),
            "spread": spread(own),
            "x nanoGPT": median_ratio(own, figures[NANO]),
            "x Megatron's, 0": median_ratio(own, figures["Megatron's in torch, 0"]),
            "x Megatron's, 2": median_ratio(own, figures["Megatron's in torch, 2"]),
            "x limit": median_ratio(own, figures[LIMIT]),
        }
        for name, own in figures.items()
    ]
    targets = [
        Target("shuffled, 0 workers, against nanoGPT's loop", 5, median_ratio(figures[f"{SHUFFLED}, 0"], figures[NANO]))
    ]
    for workers, bar in ((0, 5), (2, 20)):
        ratio = median_ratio(figures[f"{SHUFFLED}, {workers}"], figures[f"Megatron's in torch, {workers}"])
        targets.append(Target(f"shuffled, {workers} workers, against Megatron's in torch", bar, ratio))
    return Report(rows, targets)

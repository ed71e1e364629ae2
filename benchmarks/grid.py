"""The grid of `configurations.py`: each case builds the same loader from torch's or from headrace's parts."""

from __future__ import annotations

import mmap
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from benchmarks.small_samples import PlainDataset

BATCH_SIZES = (None, 1, 32, 256)
Sequences = Any
"""`torch.utils.data` or `headrace`."""


@dataclass(frozen=True)
class Case:
    """A dataset, and the options of its loader, made from a library's own classes."""

    name: str
    make_dataset: Callable[[Sequences], Any]
    make_options: Callable[[Sequences, Any], dict[str, Any]] = lambda library, dataset: {}
    batch_sizes: Sequence[int | None] = BATCH_SIZES
    shuffles: Sequence[bool] = (False,)

    def loader(self, library: Sequences, batch_size: int | None, shuffle: bool) -> Any:
        dataset = self.make_dataset(library)
        options = self.make_options(library, dataset)
        if "batch_sampler" not in options:
            options["batch_size"] = batch_size
        if shuffle:
            options["shuffle"] = True
        return library.DataLoader(dataset, **options)


Point = namedtuple("Point", ["x", "y"])
N = 512
N_LARGE = 32
_rng = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray:
    return _rng.random(shape, dtype=np.float32)


def _bytes(*shape: int) -> np.ndarray:
    return _rng.integers(256, size=shape, dtype=np.uint8)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


SMALL_SAMPLES: dict[str, Callable[[int], Any]] = {
    "int": int,
    "bool": lambda i: i % 2 == 0,
    "float": float,
    "NumPy complex64": np.complex64,
    "NumPy float32": np.float32,
    "NumPy int64": np.int64,
    "int or float": lambda i: i if i % 2 else float(i),
    "str": str,
    "bytes": lambda i: b"%d" % i,
    "list of 8 ints": lambda i: list(range(8)),
    "list of 8 floats": lambda i: [float(k) for k in range(8)],
    "tuple of 8 ints": lambda i: tuple(range(8)),
    "list of str": lambda i: ["a", "b", "c"],
    "array 0-d": lambda i: np.array(i),
    "array 1": lambda i: _floats(1),
    "array 16": lambda i: _floats(16),
    "array 16, float16": lambda i: _floats(16).astype(np.float16),
    "array 16, bool": lambda i: _floats(16) > 0.5,
    "array 4x4x4x4": lambda i: _floats(4, 4, 4, 4),
    "array 16, every second": lambda i: _floats(32)[::2],
    "array 16, of float32 or float64": lambda i: _floats(16).astype(np.float64 if i % 2 else np.float32),
    "array 1024": lambda i: _floats(1024),
    "tensor 0-d": torch.tensor,
    "tensor 1": lambda i: torch.rand(1),
    "tensor 16": lambda i: torch.rand(16),
    "tensor 16, int64": lambda i: torch.arange(16),
    "tensor 16, bfloat16": lambda i: torch.rand(16).bfloat16(),
    "tensor 16, requires_grad": lambda i: torch.rand(16, requires_grad=True),
    "tensor 16, every second": lambda i: torch.rand(32)[::2],
    "tensor 1024": lambda i: torch.rand(1024),
    "(array 16, int)": lambda i: (_floats(16), i),
    "(array 16, str)": lambda i: (_floats(16), str(i)),
    "(tensor 16, int)": lambda i: (torch.rand(16), i),
    "(tensor 16, tensor 0-d)": lambda i: (torch.rand(16), torch.tensor(i)),
    "[array 16, array 16]": lambda i: [_floats(16), _floats(16)],
    "Point(array 16, int)": lambda i: Point(_floats(16), i),
    "dict of 5 arrays": lambda i: {name: _floats(8) for name in "abcde"},
    "dict of 5 tensors": lambda i: {name: torch.rand(8) for name in "abcde"},
    "dict of 5 numbers": lambda i: {name: float(i) for name in "abcde"},
    "OrderedDict(array, int)": lambda i: OrderedDict(x=_floats(16), y=i),
    "defaultdict(array, int)": lambda i: defaultdict(list, x=_floats(16), y=i),
    "nested": lambda i: {"image": (_floats(8), {"size": [i, i], "name": "x"}), "box": Point(_floats(4), float(i))},
}

LARGE_SAMPLES: dict[str, Callable[[int], Any]] = {
    "array 3x224x224": lambda i: _floats(3, 224, 224),
    "array 3x224x224, uint8": lambda i: _bytes(3, 224, 224),
    "array 224x224x3, uint8": lambda i: _bytes(224, 224, 3),
    "array 3x224x224, channels last": lambda i: _floats(224, 224, 3).transpose(2, 0, 1),
    "array 3x224x224, uint8, channels last": lambda i: _bytes(224, 224, 3).transpose(2, 0, 1),
    "array 3x112x224, every second row": lambda i: _floats(3, 224, 224)[:, ::2],
    "array 3x224x224, uint8, read only": lambda i: _read_only(_bytes(3, 224, 224)),
    "array 3x224x224, in mapped memory": lambda i: np.frombuffer(mmap.mmap(-1, 4 * 3 * 224 * 224), np.float32).reshape(
        3, 224, 224
    ),
    "array 3x64x64": lambda i: _floats(3, 64, 64),
    "array 8x3x64x64, channels last": lambda i: _floats(8, 64, 64, 3).transpose(0, 3, 1, 2),
    "tensor 3x224x224": lambda i: torch.rand(3, 224, 224),
    "tensor 3x224x224, uint8": lambda i: torch.randint(256, (3, 224, 224), dtype=torch.uint8),
    "tensor 3x224x224, channels last": lambda i: torch.rand(224, 224, 3).permute(2, 0, 1),
    "tensor 8x3x64x64, channels last": lambda i: torch.rand(8, 3, 64, 64).contiguous(memory_format=torch.channels_last),
    "(array 3x224x224, int)": lambda i: (_floats(3, 224, 224), i),
}


def _plain(make_sample: Callable[[int], Any], n: int) -> Callable[[Sequences], Any]:
    made: list[Any] = []

    def make(library: Sequences) -> Any:
        if not made:
            made.append(PlainDataset([make_sample(i) for i in range(n)]))
        return made[0]

    return make


class Listed(PlainDataset):
    """A Hugging Face style dataset: many samples in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = self.samples
        return [samples[i] for i in indices]


class UserDataset(torch_data.Dataset[Any]):
    """What users derive from torch's class."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


class UserStream(torch_data.IterableDataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from self.samples


def _stream(library: Sequences, samples: list[Any]) -> Any:
    class Stream(library.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            yield from samples

    return Stream()


X = torch.rand(1024, 16)
Y = torch.arange(1024)
PAIRS = [(x, int(y)) for x, y in zip(X.numpy()[:N], Y[:N], strict=True)]
INTS = list(range(1024))
EVERY_SECOND = list(range(0, 1024, 2))

DATASETS: dict[str, Callable[[Sequences], Any]] = {
    "list of ints": lambda library: INTS,
    "range": lambda library: range(1024),
    "array": lambda library: X.numpy(),
    "tensor": lambda library: X,
    "TensorDataset": lambda library: library.TensorDataset(X, Y),
    "TensorDataset of torch": lambda library: torch_data.TensorDataset(X, Y),
    "TensorDataset of bfloat16": lambda library: library.TensorDataset(X.bfloat16(), Y),
    "TensorDataset of images": lambda library: library.TensorDataset(torch.rand(64, 3, 64, 64), Y[:64]),
    "TensorDataset, channels last": lambda library: library.TensorDataset(
        torch.rand(64, 3, 64, 64).contiguous(memory_format=torch.channels_last), Y[:64]
    ),
    "TensorDataset, requires_grad": lambda library: library.TensorDataset(X.clone().requires_grad_(), Y),
    "Subset of TensorDataset": lambda library: library.Subset(library.TensorDataset(X, Y), EVERY_SECOND),
    "Subset of plain": lambda library: library.Subset(PlainDataset(PAIRS), range(0, N, 2)),
    "random_split of torch": lambda library: torch_data.random_split(PlainDataset(PAIRS), [N // 2, N // 2])[0],  # type: ignore[arg-type]
    "Subset of Subset": lambda library: library.Subset(library.Subset(PlainDataset(PAIRS), range(N)), range(N // 2)),
    "ConcatDataset of plain": lambda library: library.ConcatDataset([PlainDataset(PAIRS)] * 3),
    "ConcatDataset of 50": lambda library: library.ConcatDataset([PlainDataset(PAIRS[:20])] * 50),
    "ConcatDataset of TensorDataset": lambda library: library.ConcatDataset([library.TensorDataset(X, Y)] * 3),
    "StackDataset of plain": lambda library: library.StackDataset(PlainDataset(PAIRS), INTS[:N]),
    "StackDataset, named": lambda library: library.StackDataset(x=PlainDataset(PAIRS), y=INTS[:N]),
    "StackDataset of TensorDataset": lambda library: library.StackDataset(
        library.TensorDataset(X), library.TensorDataset(Y)
    ),
    "__getitems__": lambda library: Listed(PAIRS),
    "user's torch Dataset": lambda library: UserDataset(PAIRS),
    "user's torch Dataset of ints": lambda library: UserDataset(INTS),
    "3 samples": lambda library: UserDataset(PAIRS[:3]),
    "TensorDataset of 3": lambda library: library.TensorDataset(X[:3], Y[:3]),
    "list of 1 int": lambda library: [0],
}

STREAMS: dict[str, Callable[[Sequences], Any]] = {
    "IterableDataset": lambda library: _stream(library, PAIRS),
    "IterableDataset of ints": lambda library: _stream(library, INTS),
    "IterableDataset of str": lambda library: _stream(library, list(map(str, INTS))),
    "IterableDataset of images": lambda library: _stream(library, list(_floats(32, 3, 224, 224))),
    "user's torch IterableDataset": lambda library: UserStream(PAIRS),
    "ChainDataset": lambda library: library.ChainDataset([_stream(library, PAIRS)] * 3),
    "IterableDataset of 3": lambda library: _stream(library, PAIRS[:3]),
}


class OwnSampler(torch_data.Sampler[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n - 1, -1, -1))

    def __len__(self) -> int:
        return self.n


SAMPLERS: dict[str, Callable[[Sequences, Any], Any]] = {
    "RandomSampler, replacement": lambda library, data: library.RandomSampler(data, replacement=True),
    "RandomSampler, num_samples": lambda library, data: library.RandomSampler(data, num_samples=3 * len(data)),
    "RandomSampler, generator": lambda library, data: library.RandomSampler(data, generator=torch.Generator()),
    "WeightedRandomSampler": lambda library, data: library.WeightedRandomSampler(
        [1 + i % 7 for i in range(len(data))], len(data)
    ),
    "WeightedRandomSampler, no replacement": lambda library, data: library.WeightedRandomSampler(
        [1 + i % 7 for i in range(len(data))], len(data) // 2, replacement=False
    ),
    "SubsetRandomSampler": lambda library, data: library.SubsetRandomSampler(list(range(0, len(data), 2))),
    "DistributedSampler": lambda library, data: torch_or_own(library, "DistributedSampler")(
        data, num_replicas=2, rank=0
    ),
    "DistributedSampler, in order": lambda library, data: torch_or_own(library, "DistributedSampler")(
        data, num_replicas=2, rank=1, shuffle=False
    ),
    "torch's RandomSampler": lambda library, data: torch_data.RandomSampler(data),
    "range": lambda library, data: range(len(data)),
    "user's Sampler": lambda library, data: OwnSampler(len(data)),
}


def torch_or_own(library: Sequences, name: str) -> Any:
    return getattr(library, name, None) or getattr(torch_data.distributed, name)


BATCH_SAMPLERS: dict[str, Callable[[Sequences, Any], Any]] = {
    "list of lists": lambda library, data: [list(range(i, i + 32)) for i in range(0, len(data) - 32, 32)],
    "BatchSampler": lambda library, data: library.BatchSampler(library.RandomSampler(data), 32, True),
    "BatchSampler of torch": lambda library, data: torch_data.BatchSampler(torch_data.RandomSampler(data), 32, False),
}

COLLATES: dict[str, Callable[[Any], Any]] = {
    "unchanged": lambda batch: batch,
    "torch's default_collate": torch_data.default_collate,
    "stack by hand": lambda batch: (
        torch.from_numpy(np.stack([x for x, _ in batch])),
        torch.tensor([y for _, y in batch]),
    ),
}

SAMPLED: dict[str, Callable[[Sequences], Any]] = {
    "list of ints": lambda library: INTS,
    "TensorDataset": lambda library: library.TensorDataset(X, Y),
    "plain": lambda library: PlainDataset(PAIRS),
}

CASES: tuple[Case, ...] = (
    *(Case(f"sample {name}", _plain(sample, N)) for name, sample in SMALL_SAMPLES.items()),
    *(
        Case(f"sample {name}", _plain(sample, N_LARGE), batch_sizes=(None, 1, 8, 32))
        for name, sample in LARGE_SAMPLES.items()
    ),
    *(Case(f"dataset {name}", make, shuffles=(False, True)) for name, make in DATASETS.items()),
    *(Case(f"stream {name}", make) for name, make in STREAMS.items()),
    *(
        Case(f"sampler {name}, {data}", make, lambda library, dataset, of=sampler: {"sampler": of(library, dataset)})
        for data, make in SAMPLED.items()
        for name, sampler in SAMPLERS.items()
    ),
    *(
        Case(
            f"batch_sampler {name}, {data}",
            make,
            lambda library, dataset, of=sampler: {"batch_sampler": of(library, dataset)},
            batch_sizes=(32,),
        )
        for data, make in SAMPLED.items()
        for name, sampler in BATCH_SAMPLERS.items()
    ),
    *(
        Case(
            f"collate {name}",
            lambda library: PlainDataset(PAIRS),
            lambda library, dataset, of=collate: {"collate_fn": of},
            batch_sizes=(1, 32, 256),
        )
        for name, collate in COLLATES.items()
    ),
    Case(
        "drop_last, TensorDataset", lambda library: library.TensorDataset(X, Y), lambda *_: {"drop_last": True}, (32,)
    ),
    Case("drop_last, plain", lambda library: PlainDataset(PAIRS), lambda *_: {"drop_last": True}, (32,)),
)

"""headrace's classes are torch's too, whichever is imported first, and without importing torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

IMPORTS = {
    "headrace first": "import headrace, torch.utils.data as torch_data",
    "torch first": "import torch.utils.data as torch_data, headrace",
    "torch.utils.data.dataset first": "from torch.utils.data.dataset import Dataset; import torch.utils.data as "
    "torch_data, headrace",
    "headrace between": "import torch, headrace, torch.utils.data as torch_data",
}

CLASSES = """
class Map(headrace.Dataset):
    def __getitem__(self, index):
        info = headrace.get_worker_info()
        return index, -1 if info is None else info.id

    def __len__(self):
        return 4

class Stream(headrace.IterableDataset):
    def __iter__(self):
        info = headrace.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, 6, step))

class TorchMap(torch_data.Dataset):
    def __getitem__(self, index):
        return index + 10, -1

    def __len__(self):
        return 2

class TorchStream(torch_data.IterableDataset):
    def __iter__(self):
        return iter([10, 11])
"""


def run(code: str, imports: str = IMPORTS["headrace first"]) -> None:
    """Run code in a fresh interpreter, where warnings are errors."""
    script = "\n".join([imports, CLASSES, textwrap.dedent(code)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_headrace_alone_imports_no_torch() -> None:
    code = "import sys, headrace; headrace.Dataset(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS.keys())
def test_isinstance_and_loading(imports: str) -> None:
    run(
        """
        assert isinstance(Map(), torch_data.Dataset) and not isinstance(Map(), torch_data.IterableDataset)
        assert isinstance(Stream(), torch_data.IterableDataset) and isinstance(Stream(), torch_data.Dataset)
        assert isinstance(headrace.ChainDataset([]), torch_data.IterableDataset)
        assert isinstance(headrace.RandomSampler([1]), torch_data.Sampler)
        for name in ("TensorDataset", "StackDataset", "ConcatDataset", "Subset"):
            assert issubclass(getattr(headrace, name), torch_data.Dataset), name
        assert not isinstance(TorchMap(), headrace.Dataset)
        for library in (headrace, torch_data):
            assert [b[0].tolist() for b in library.DataLoader(Map(), 3)] == [[0, 1, 2], [3]]
            assert [b.tolist() for b in library.DataLoader(Stream(), 4)] == [[0, 1, 2, 3], [4, 5]]
            assert [b[0].tolist() for b in library.DataLoader(TorchMap(), 3)] == [[10, 11]]
            assert [b.tolist() for b in library.DataLoader(TorchStream(), 4)] == [[10, 11]]
        """,
        imports,
    )


@pytest.mark.parametrize("imports", [IMPORTS["headrace first"], IMPORTS["torch first"]], ids=["headrace", "torch"])
def test_torch_workers(imports: str) -> None:
    run(
        """
        import torch
        load = lambda data: list(torch_data.DataLoader(data, 2, num_workers=2))
        assert [[part.tolist() for part in batch] for batch in load(Map())] == [[[0, 1], [0, 0]], [[2, 3], [1, 1]]]
        assert sorted(b for batch in load(Stream()) for b in batch.tolist()) == list(range(6))
        rows = torch.arange(4)
        parts = headrace.TensorDataset(rows), headrace.Subset(headrace.TensorDataset(rows), [0, 1, 2, 3])
        for data in (*parts, headrace.ConcatDataset([parts[0]])):
            assert torch.cat([batch[0] for batch in load(data)]).tolist() == [0, 1, 2, 3]
        stacked = load(headrace.StackDataset(a=rows, b=Map()))
        assert stacked[1]["b"][1].tolist() == [1, 1]
        sampler = headrace.RandomSampler(rows, generator=torch.Generator().manual_seed(0))
        loader = torch_data.DataLoader(rows, 2, sampler=sampler, num_workers=2)
        assert sorted(torch.cat(list(loader)).tolist()) == [0, 1, 2, 3]
        """,
        imports,
    )


def test_worker_info_in_torch_workers() -> None:
    run(
        """
        import torch
        class Asking(headrace.Dataset):
            def __getitem__(self, index):
                ours, theirs = headrace.get_worker_info(), torch_data.get_worker_info()
                for name in theirs.__dataclass_fields__:
                    assert getattr(ours, name) is getattr(theirs, name), name
                assert ours.dataset is theirs.dataset is self and ours.seed == torch.initial_seed()
                return ours.id
            def __len__(self):
                return 2
        assert headrace.get_worker_info() is None
        assert [b.item() for b in torch_data.DataLoader(Asking(), num_workers=2)] == [0, 1]
        """
    )


@pytest.mark.parametrize("imports", [IMPORTS["headrace first"], IMPORTS["torch first"]], ids=["headrace", "torch"])
def test_mixtures(imports: str) -> None:
    run(
        """
        for library in (headrace, torch_data):
            joined = library.ConcatDataset([Map(), TorchMap()])
            assert [joined[i][0] for i in range(6)] == [0, 1, 2, 3, 10, 11]
            assert list(library.ChainDataset([Stream(), TorchStream()])) == [0, 1, 2, 3, 4, 5, 10, 11]
            for bad in (Stream(), TorchStream()):
                try:
                    library.ConcatDataset([bad])
                except AssertionError:
                    continue
                raise SystemExit("an iterable dataset was concatenated")
            for good in (Map(), TorchMap()):
                try:
                    list(library.ChainDataset([good]))
                except AssertionError:
                    continue
                raise SystemExit("a map dataset was chained")
        assert isinstance(Map() + TorchMap(), headrace.ConcatDataset)
        assert isinstance(TorchMap() + Map(), torch_data.ConcatDataset)
        assert list(Stream() + TorchStream()) == [0, 1, 2, 3, 4, 5, 10, 11]
        assert list(TorchStream() + Stream()) == [10, 11, 0, 1, 2, 3, 4, 5]
        """,
        imports,
    )


def test_instances_and_subclasses_from_before_torch() -> None:
    run(
        """
        import torch.utils.data as torch_data
        assert isinstance(early, torch_data.IterableDataset) and issubclass(Early, torch_data.IterableDataset)
        assert [b.item() for b in torch_data.DataLoader(early)] == [1, 2]
        assert [b.item() for b in headrace.DataLoader(early)] == [1, 2]
        """,
        """
import headrace
class Early(headrace.IterableDataset[int]):
    def __iter__(self):
        return iter([1, 2])
early = Early()
import torch.utils.data as torch_data
""",
    )


@pytest.mark.parametrize("order", ["headrace, torch.utils.data", "torch.utils.data, headrace"])
def test_pickles_cross_the_import_of_torch(order: str) -> None:
    run(
        f"""
        import copy, pickle, subprocess, sys
        import numpy as np
        data = headrace.Subset(headrace.TensorDataset(np.arange(3)), [2, 0])
        assert copy.deepcopy(data)[0] == (2,) and copy.copy(data)[1] == (0,)
        child = "import sys, pickle, {order}; print(pickle.load(sys.stdin.buffer)[0][0])"
        done = subprocess.run([sys.executable, "-c", child], input=pickle.dumps(data), capture_output=True)
        assert done.stdout == b"2\\n", done.stderr
        """
    )


def test_both_bases_at_once() -> None:
    run(
        """
        class Both(headrace.Dataset, torch_data.Dataset):
            def __getitem__(self, index):
                return index
            def __len__(self):
                return 2
        class BothStreams(headrace.IterableDataset, torch_data.IterableDataset):
            def __iter__(self):
                return iter([0, 1])
        for data in (Both(), BothStreams()):
            assert [b.item() for b in headrace.DataLoader(data)] == [0, 1]
        """
    )

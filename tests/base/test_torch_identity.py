"""headrace's classes are torch's too, whichever is imported first, and the import machinery is left alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.needs import needs_torch

CHECK = """
Dataset, IterableDataset, Sampler = headrace.Dataset, headrace.IterableDataset, headrace.Sampler
data = torch.utils.data
assert issubclass(Dataset, data.Dataset) and not issubclass(Dataset, data.IterableDataset)
assert issubclass(IterableDataset, data.IterableDataset) and issubclass(headrace.ChainDataset, data.IterableDataset)
assert issubclass(Sampler, data.Sampler) and isinstance(headrace.RandomSampler(range(3)), data.Sampler)
assert isinstance(headrace.TensorDataset(torch.arange(3)), data.Dataset)
assert list(data.DataLoader(Early(), batch_size=None)) == [1, 2]
"""

EARLY = """
class Early(headrace.IterableDataset):
    def __iter__(self):
        return iter([1, 2])

early = Early()
"""


def run(script: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


@needs_torch
def test_torch_after_headrace_leaves_the_import_machinery_as_it_was():
    run(f"""
import sys
before = list(sys.meta_path)
import headrace
assert "torch" not in sys.modules
{EARLY}
import torch
assert sys.meta_path == before, sys.meta_path
assert "exec_module" not in vars(torch.utils.data.dataset.__spec__.loader)
assert isinstance(early, torch.utils.data.IterableDataset)
{CHECK}
""")


@needs_torch
def test_torch_before_headrace():
    run(f"""
import sys, torch
before = list(sys.meta_path)
import headrace
assert sys.meta_path == before
{EARLY}
{CHECK}
""")


def test_a_failed_import_is_watched_again(tmp_path):
    (tmp_path / "fragile.py").write_text(
        "import os, typing\n"
        "if 'FAIL' in os.environ: raise ImportError\n"
        "class Base(typing.Generic[typing.TypeVar('T')]): pass\n"
    )
    run(f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
from headrace.base.torch_identity import Adoptable, adopt
class Mine(Adoptable): pass
adopt(Mine, "fragile", "Base")
os.environ["FAIL"] = "1"
try:
    import fragile
except ImportError:
    pass
else:
    raise AssertionError
del os.environ["FAIL"]
import fragile
assert issubclass(Mine, fragile.Base)
""")


def test_a_class_of_another_layout_is_registered_if_it_can_be(tmp_path):
    (tmp_path / "abstract.py").write_text(
        "from abc import ABC\nclass Slotted(ABC):\n    __slots__ = ('x',)\nclass Plain:\n    __slots__ = ('x',)\n"
    )
    run(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from headrace.base.torch_identity import Adoptable, adopt
class First(Adoptable): pass
class Second(Adoptable): pass
adopt(First, "abstract", "Slotted")
adopt(Second, "abstract", "Plain")
import abstract
assert issubclass(First, abstract.Slotted)
assert not issubclass(Second, abstract.Plain)
""")


@pytest.mark.parametrize("name", ["Dataset", "IterableDataset", "Sampler"])
def test_subclasses_need_no_base_constructor(name):
    import headrace

    class Own(getattr(headrace, name)):
        def __init__(self):
            self.value = 1

    assert Own().value == 1

"""headrace's classes are torch's too, whichever is imported first; fast methods respect what subclasses override."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.base.user_classes import stands_in
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
from headrace.base.user_classes import Adoptable, adopt
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
from headrace.base.user_classes import Adoptable, adopt
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


class Both:
    def plain(self): ...
    def fast(self): ...


class PlainOnly:
    def plain(self): ...


class FastLater(PlainOnly):
    def fast(self): ...


class PlainAgain(Both):
    def plain(self): ...


class BothAgain(PlainAgain):
    def fast(self): ...


def test_fast_stands_in_for_the_plain_method_of_its_own_class_or_of_a_base():
    assert stands_in(Both, "fast", "plain")
    assert stands_in(FastLater, "fast", "plain")
    assert stands_in(BothAgain, "fast", "plain")


def test_a_subclass_that_overrides_the_plain_method_alone_rules_the_fast_one_out():
    assert not stands_in(PlainAgain, "fast", "plain")


def test_without_a_fast_method_there_is_nothing_to_stand_in():
    assert not stands_in(PlainOnly, "fast", "plain")


def test_every_plain_method_counts_and_missing_ones_do_not():
    assert not stands_in(PlainAgain, "fast", "missing", "plain")
    assert stands_in(Both, "fast", "missing", "plain")

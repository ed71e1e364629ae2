"""Which containers forked workers would copy, and what the warning says."""

from __future__ import annotations

import sys
import time
import warnings
from collections import OrderedDict, deque

import numpy as np
import pytest

from headrace import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from headrace.data import memory_hint
from headrace.data.memory_hint import huge_python_container, warn_of_huge_containers
from headrace.data.shared_list import SharedList
from tests.needs import needs_torch

N = 120_000


class Images(Dataset):
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        raise AssertionError("the search must not call it")

    __getitem__ = __len__


class Sample:
    def __init__(self, i):
        self.name, self.box = f"{i:0500d}", (i, i + 1)


class SlottedSample:
    __slots__ = ("name",)

    def __init__(self, i):
        self.name = f"{i:0600d}"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(memory_hint, "_told", set())


@pytest.fixture(scope="module")
def names():
    return [f"{i:0600d}" for i in range(N)]


@pytest.fixture(scope="module")
def samples(names):
    return [{"name": name, "place": (i, i + 1)} for i, name in enumerate(names)]


def texts_of(*datasets, num_workers=2):
    """The warnings that these datasets bring, one after the other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for dataset in datasets:
            warn_of_huge_containers(dataset, num_workers)
    assert all(warning.category is UserWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def found_in(dataset):
    found = huge_python_container(dataset)
    return None if found is None else (found.owner, found.attribute)


class TestFinds:
    @pytest.mark.parametrize(
        "make",
        [
            lambda names: names,
            tuple,
            set,
            frozenset,
            dict.fromkeys,
            lambda names: OrderedDict((i, [name]) for i, name in enumerate(names)),
            lambda names: [(name, 1) for name in names],
            lambda names: [Sample(i) for i in range(N)],
            lambda names: [SlottedSample(i) for i in range(N)],
            lambda names: [[float(i + k) for k in range(30)] for i in range(N)],
            lambda names: [float(i) for i in range(3_000_000)],
        ],
    )
    def test_containers_of_objects(self, names, make):
        container = make(names)
        found = huge_python_container(Images(root="/data", items=container))
        assert found is not None
        assert (found.owner, found.attribute, found.count) == (Images, "items", len(container))
        assert isinstance(container, found.kind)

    def test_the_estimate_is_near(self, samples):
        each = 232 + 649 + 56 + 2 * 28  # the dict, the name, the tuple and its numbers; the keys are shared
        assert huge_python_container(samples).nbytes == pytest.approx(N * each, rel=0.2)

    def test_the_dataset_itself(self, names):
        assert found_in(names) == (None, "")

    def test_through_combinations(self, names):
        images = Images(items=names)
        assert found_in(Subset(images, [0, 1])) == (Images, "items")
        assert found_in(Subset(names, [0, 1])) == (Subset, "dataset")
        assert found_in(ConcatDataset([names, names])) == (ConcatDataset, "datasets[0]")
        assert found_in(StackDataset(name=names, number=range(N))) == (StackDataset, "datasets['name']")
        assert found_in(Images(wrapped=images)) == (Images, "items")
        assert found_in(Subset(Subset(images, [0]), [0])) == (Images, "items")

    @needs_torch
    def test_through_torchs_combinations(self, names):
        from torch.utils import data

        class TorchImages(data.Dataset):
            def __init__(self):
                self.items = names

        assert found_in(data.Subset(TorchImages(), [0])) == (TorchImages, "items")
        assert found_in(Images(wrapped=TorchImages())) == (TorchImages, "items")


class TestPassesOver:
    @pytest.mark.parametrize(
        "make",
        [
            lambda names: names[:99_999],
            lambda names: [str(i) for i in range(N)],
            lambda names: [i % 10 for i in range(10_000_000)],
            lambda names: ["the same text, " * 100] * N,
            lambda names: [("cat", None)] * N,
            lambda names: np.zeros((N, 200)),
            lambda names: [np.zeros(200) for _ in range(N)],
            lambda names: SharedList(names),
            lambda names: range(10**9),
            lambda names: deque(range(3)),
            lambda names: None,
        ],
    )
    def test_what_does_not_grow(self, names, make):
        assert found_in(Images(items=make(names))) is None

    def test_a_long_text_counts_for_the_page_that_is_written(self, monkeypatch):
        monkeypatch.setattr(memory_hint, "LEAST_ITEMS", 1000)
        monkeypatch.setattr(memory_hint, "LEAST_BYTES", 1000)
        assert huge_python_container([f"{i:020000d}" for i in range(1000)]).nbytes == 1000 * 4096

    def test_datasets_without_attributes_or_with_cycles(self):
        images = Images()
        images.dataset = images
        for dataset in (images, 5, None, [], TensorDataset(np.zeros(3)), SharedList([1])):
            assert found_in(dataset) is None

    def test_methods_of_a_list_that_was_subclassed_are_not_called(self):
        class Fetched(list):
            def __getitem__(self, index):
                raise AssertionError

            __len__ = __iter__ = __getitem__

        assert found_in(Images(items=Fetched([1, 2, 3]))) is None


class TestTime:
    def best_ms(self, dataset):
        def once():
            start = time.perf_counter()
            huge_python_container(dataset)
            return 1e3 * (time.perf_counter() - start)

        return min(once() for _ in range(20))

    def test_a_huge_list(self, samples):
        assert self.best_ms(Images(items=samples)) < 1

    def test_many_datasets(self):
        assert self.best_ms(ConcatDataset([list(range(10)) for _ in range(10_000)])) < 1

    def test_items_that_are_long_themselves(self):
        long = list(range(1_000, 100_000))
        assert self.best_ms(Images(items=[long] * N)) < 1


class TestWarning:
    def test_says_what_will_happen_and_the_cure(self, names):
        (text,) = texts_of(Images(paths=names), num_workers=4)
        size = f"{N * sys.getsizeof(names[0]) / 1e6:.0f} MB"
        assert text == (
            f"Images.paths is a list of 120,000 Python objects, about {size}. Reading a Python object writes its "
            f"reference count, so each forked worker copies it page by page as it reads: up to 4 x {size} more memory. "
            "To share one copy among all workers, write `self.paths = headrace.SharedList(self.paths)`."
        )

    def test_for_a_list_that_is_the_dataset(self, names):
        (text,) = texts_of(names)
        assert text.startswith("The dataset is a list of 120,000 Python objects")
        assert text.endswith("write `dataset = headrace.SharedList(dataset)`.")

    def test_for_a_dict(self, names):
        (text,) = texts_of(Images(a=dict.fromkeys(names)))
        assert text.endswith("`self.a = headrace.SharedList(self.a.values())` and look its items up by position.")

    def test_once_for_each_class_and_attribute(self, names):
        texts = texts_of(Images(a=names, b=names), Images(a=names), Images(b=names, c=names))
        assert [text.split()[0] for text in texts] == ["Images.a", "Images.b", "Images.c"]

    def test_points_at_the_users_line(self, names):
        inside = {"__name__": "headrace.engine", "warn": warn_of_huge_containers}
        exec("def start(dataset):\n    warn(dataset, 2)\ndef iterate(dataset):\n    start(dataset)", inside)
        with pytest.warns(UserWarning, match="The dataset is a list") as caught:
            inside["iterate"](names)
        assert caught[0].filename == __file__

    def test_not_without_workers(self, names):
        assert texts_of(Images(a=names), num_workers=0) == []

    def test_the_cure_cures(self, names):
        images = Images(items=names)
        images.items = SharedList(images.items)
        assert texts_of(images) == []

"""A list in shared memory that reads like a list, and the warning where a dataset needs one."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import sys
import threading
import time
import tracemalloc
import warnings
from array import array
from collections import Counter, OrderedDict, deque

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset
from headrace.data import shared_list
from headrace.data.shared_list import SharedList, huge_python_container, warn_of_huge_containers
from tests.needs import as_lists, needs_torch

START_METHODS = [name for name in ("fork", "forkserver", "spawn") if name in multiprocessing.get_all_start_methods()]
forks = pytest.mark.filterwarnings("ignore:.*fork")  # Python and JAX warn of threads, which the children do not use

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
nested = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.frozensets(leaves),
    max_leaves=20,
)


class Picture:
    def __init__(self, path):
        self.path = path

    def __eq__(self, other):
        return isinstance(other, Picture) and self.path == other.path

    __hash__ = None


class LosesItsKey:
    def __reduce__(self):
        return dict.__getitem__, ({}, "key")


class RaisesIndexError:
    def __reduce__(self):
        return list.__getitem__, ([], 0)


@pytest.fixture(scope="module")
def helpers_running():
    """Starts what multiprocessing starts once and keeps, so that it does not count as left behind by a test."""
    for method in START_METHODS:
        process = multiprocessing.get_context(method).Process(target=int)
        process.start()
        process.join()
        process.close()


def memory_of(shared):
    status = os.fstat(shared._descriptor)
    return status.st_dev, status.st_ino


class TestLikeAList:
    @given(st.lists(nested))
    def test_gives_back_what_was_packed(self, items):
        shared = SharedList(items)
        assert len(shared) == len(items)
        assert list(shared) == items
        assert shared[:] == items
        assert [shared[i] for i in range(len(items))] == items
        assert shared.__getitems__(range(len(items))) == items
        assert list(reversed(shared)) == items[::-1]
        assert list(pickle.loads(pickle.dumps(shared))) == items

    @given(st.lists(st.integers()), st.slices(12))
    def test_slices_are_plain_lists(self, items, part):
        assert SharedList(items)[part] == items[part]
        assert type(SharedList(items)[part]) is list

    @given(st.lists(st.text(), min_size=1), st.data())
    def test_indices_count_from_either_end(self, items, data):
        indices = data.draw(st.lists(st.integers(-len(items), len(items) - 1)))
        shared = SharedList(items)
        assert [shared[i] for i in indices] == [items[i] for i in indices]
        assert shared.__getitems__(indices) == [items[i] for i in indices]
        assert shared.__getitems__(iter(np.array(indices, dtype=np.int32))) == [items[i] for i in indices]

    @pytest.mark.parametrize("index", [1, np.int64(1), np.uint8(1), np.array(1), True, -2])
    def test_integers_of_any_kind(self, index):
        assert SharedList("abc")[index] == "b"

    @pytest.mark.parametrize("index", [3, -4, 2**70, np.int64(3)])
    def test_an_index_outside_says_so(self, index):
        shared = SharedList("abc")
        for read in (lambda: shared[index], lambda: shared.__getitems__([0, index, 1])):
            with pytest.raises(IndexError, match=rf"SharedList index {index} is out of range: the list has 3 items"):
                read()

    @pytest.mark.parametrize("index", ["1", 1.0, (1,), None, [1]])
    def test_other_indices_are_type_errors(self, index):
        shared = SharedList("abc")
        for read in (lambda: shared[index], lambda: shared.__getitems__([index])):
            with pytest.raises(TypeError):
                read()

    def test_search(self):
        shared = SharedList(["a", "b", "a", Picture("c")])
        assert "b" in shared
        assert "z" not in shared
        assert Picture("c") in shared
        assert (shared.index("a"), shared.index("a", 1), shared.count("a")) == (0, 2, 2)
        with pytest.raises(ValueError, match=r".*"):
            shared.index("z")

    def test_empty(self):
        shared = SharedList([])
        assert (len(shared), list(shared), shared[:], bool(shared)) == (0, [], [], False)
        with pytest.raises(IndexError, match="has 0 items"):
            shared[0]

    def test_it_cannot_be_changed(self):
        shared = SharedList([[1], [2]])
        with pytest.raises(TypeError):
            shared[0] = 5
        shared[0].append(9)
        assert shared[0] == [1]
        with pytest.raises(TypeError, match="read-only"):
            shared._memory[0] = 0

    def test_size_and_text(self):
        assert repr(SharedList([])) == "SharedList(0 items, 8 B)"
        shared = SharedList(bytes(1000) for _ in range(2000))
        assert repr(shared) == "SharedList(2000 items, 2.1 MB)"
        assert 2_000_000 < shared.nbytes < 2_100_000


class TestPacking:
    def test_takes_any_iterable(self):
        assert SharedList(x * x for x in range(5))[:] == [0, 1, 4, 9, 16]
        assert SharedList({"a": 1, "b": 2})[:] == ["a", "b"]
        assert SharedList(SharedList([1, 2]))[:] == [1, 2]
        assert SharedList(array("d", [1.5, 2.5]))[:] == [1.5, 2.5]

    def test_arrays_and_objects_are_items_too(self):
        shared = SharedList([np.arange(6).reshape(2, 3), Picture("a.jpg"), Counter("aab"), range(3)])
        assert shared[0].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert shared[0].flags.writeable
        assert shared[1:] == [Picture("a.jpg"), Counter("aab"), range(3)]

    def test_functions_go_by_cloudpickle(self):
        shared = SharedList([lambda x, k=k: x + k for k in range(3)])
        assert [add(10) for add in shared] == [10, 11, 12]

    def test_what_cannot_be_pickled_is_named(self):
        with pytest.raises(TypeError, match=r"must be picklable, but item 2, a dict, is not: cannot pickle .*lock"):
            SharedList([1, 2, {"lock": threading.Lock()}])

    def test_an_error_of_the_iterable_passes_and_leaves_nothing(self):
        before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

        def fails():
            yield 1
            raise RuntimeError("disk gone")

        with pytest.raises(RuntimeError, match="disk gone"):
            SharedList(fails())
        gc.collect()
        if before:
            assert len(os.listdir("/proc/self/fd")) == before

    def test_never_holds_the_pickles_as_objects(self):
        tracemalloc.start()
        try:
            shared = SharedList(bytes(10_000) for _ in range(2_000))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert shared.nbytes > 20_000_000
        assert peak < 4_000_000

    @pytest.mark.parametrize("item", [LosesItsKey(), RaisesIndexError()])
    def test_an_error_while_unpickling_is_not_taken_for_a_wrong_index(self, item):
        shared = SharedList([item])
        for read in (lambda: shared[0], lambda: shared.__getitems__([0]), lambda: list(shared)):
            with pytest.raises((KeyError, IndexError)) as raised:
                read()
            assert "SharedList" not in str(raised.value)

    def test_without_memfd_a_file_that_has_no_name(self, monkeypatch, tmp_path):
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        shared = SharedList(range(5))
        assert shared[:] == [0, 1, 2, 3, 4]
        assert list(tmp_path.iterdir()) == []
        assert memory_of(shared)[0] == tmp_path.stat().st_dev

    def test_no_descriptor_is_left(self):
        shared = SharedList(range(3))
        descriptor = shared._descriptor
        assert not os.get_inheritable(descriptor)
        del shared
        gc.collect()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


class TestPickling:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_the_bytes_go_along(self, protocol):
        shared = SharedList(["a", {"b": 1}])
        restored = pickle.loads(pickle.dumps(shared, protocol))
        assert restored[:] == ["a", {"b": 1}]
        assert memory_of(restored) != memory_of(shared)

    def test_to_a_file_and_by_cloudpickle(self):
        shared = SharedList(range(1000))
        file = io.BytesIO()
        pickle.dump({"items": shared}, file)
        file.seek(0)
        assert pickle.load(file)["items"][-1] == 999
        assert cloudpickle.loads(cloudpickle.dumps(shared))[-1] == 999

    def test_out_of_band(self):
        buffers = []
        content = pickle.dumps(SharedList(range(1000)), 5, buffer_callback=buffers.append)
        assert len(content) < 200
        assert pickle.loads(content, buffers=buffers)[:] == list(range(1000))

    def test_copies_are_the_list_itself(self):
        shared = SharedList([[1]])
        assert copy.copy(shared) is shared
        assert copy.deepcopy({"items": shared})["items"] is shared


def answer(connection, shared, others):
    """What a child sees: the memory, and the items."""
    assert others[0] is shared
    connection.send((memory_of(shared), len(shared), shared[-1], sum(item["i"] for item in shared)))
    connection.close()


@forks
@pytest.mark.usefixtures("helpers_running")
class TestProcesses:
    @pytest.mark.parametrize("method", START_METHODS)
    def test_every_start_method_shares_the_memory(self, method):
        context = multiprocessing.get_context(method)
        shared = SharedList({"i": i, "name": f"item {i}"} for i in range(1000))
        answers = []
        for _ in range(2):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=answer, args=(sender, shared, [shared]))
            process.start()
            sender.close()
            answers.append(receiver.recv())
            receiver.close()
            process.join()
            assert process.exitcode == 0
            process.close()
        assert answers == [(memory_of(shared), 1000, {"i": 999, "name": "item 999"}, 499_500)] * 2

    @pytest.mark.parametrize("method", START_METHODS)
    def test_a_queue_copies_the_bytes(self, method):
        context = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(duplex=False)
        sender.send(SharedList(range(10)))
        assert receiver.recv()[:] == list(range(10))
        sender.close()
        receiver.close()

    def test_a_child_may_outlive_the_parents_list(self):
        context = multiprocessing.get_context("spawn")
        ready, start = context.Pipe(duplex=False)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=answer_later, args=(ready, sender, SharedList(["kept"])))
        process.start()
        gc.collect()
        start.send("go")
        assert receiver.recv() == ["kept"]
        process.join()
        process.close()
        for connection in (ready, start, receiver, sender):
            connection.close()


def answer_later(ready, connection, shared):
    ready.recv()
    connection.send(shared[:])


class TestAsADataset:
    def test_in_a_loader(self):
        shared = SharedList({"x": i, "y": [i, i]} for i in range(10))
        batches = list(DataLoader(shared, batch_size=4, output="numpy"))
        assert as_lists(batch["x"] for batch in batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_in_combinations(self):
        shared = SharedList(range(10))
        parts = ConcatDataset([Subset(shared, [3, 1]), shared])
        assert as_lists(DataLoader(parts, batch_size=6, output="numpy")) == [[3, 1, 0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]

    @needs_torch
    def test_in_torchs_loader(self):
        import torch

        shared = SharedList((i, float(i)) for i in range(6))
        index = torch.tensor(2)
        assert shared[index] == (2, 2.0)
        batches = list(torch.utils.data.DataLoader(shared, batch_size=3))
        assert as_lists(numbers for numbers, _ in batches) == [[0, 1, 2], [3, 4, 5]]

    @needs_torch
    def test_tensors_are_items_too(self):
        import torch

        shared = SharedList([torch.arange(3), torch.zeros(2, 2)])
        assert shared[0].tolist() == [0, 1, 2]
        assert shared[1].shape == (2, 2)


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
    monkeypatch.setattr(shared_list, "_told", set())


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
        monkeypatch.setattr(shared_list, "LEAST_ITEMS", 1000)
        monkeypatch.setattr(shared_list, "LEAST_BYTES", 1000)
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

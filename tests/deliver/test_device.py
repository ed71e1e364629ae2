"""Batches on a device: what is moved, in which order streams are told, and what is kept for how long."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from headrace.base.endings import await_dropped
from headrace.base.errors import MissingExtraError
from headrace.base.messages import BadSample, Exhausted, Failed, Finished
from headrace.deliver.ahead import Ahead
from headrace.deliver.device import Delivery, check_device, plan_delivery
from tests.needs import HAS_TORCH, needs_torch, without_torch

if HAS_TORCH:
    import torch
    from torch.nn.utils.rnn import PackedSequence, pack_sequence
    from torch.utils.data._utils.pin_memory import pin_memory as torch_pin

    from headrace.frameworks import torch_devices
    from headrace.frameworks.torch_devices import PlainCopier, StreamCopier, device_copier, thread_settings
    from headrace.frameworks.torch_tensors import pin

Pair = namedtuple("Pair", ["left", "right"])


class FrozenList(tuple):
    """A tuple of its own type."""


class Picky(list):
    """A sequence that cannot be filled again."""

    def __setitem__(self, index, value):
        raise TypeError("frozen")


class Labelled(UserDict):
    """A mapping with an attribute of its own."""

    label = "none"


def containers(leaf):
    """Every kind of container that a collate function may return, around `leaf()`."""
    labelled = Labelled(x=leaf())
    labelled.label = "mine"
    return [
        leaf(),
        [leaf(), "text", b"bytes", 3, None],
        (leaf(), (leaf(),)),
        Pair(leaf(), [leaf()]),
        FrozenList([leaf()]),
        {"x": leaf(), 1: {"y": leaf()}},
        OrderedDict(b=leaf(), a=leaf()),
        defaultdict(list, x=leaf()),
        MappingProxyType({"x": leaf()}),
        labelled,
        UserList([leaf()]),
        Picky([leaf()]),
        range(3),
        deque([1]),
        {1, 2},
        SimpleNamespace(x=1),
    ]


def shape_of(value):
    """The types and tensors of a batch, to be compared."""
    if HAS_TORCH and isinstance(value, torch.Tensor):
        return ("tensor", value.tolist() if value.device.type == "cpu" else value.shape, value.device.type)
    if isinstance(value, (dict, UserDict, MappingProxyType)):
        items = [(key, shape_of(item)) for key, item in value.items()]
        return (type(value), getattr(value, "default_factory", None), getattr(value, "label", None), items)
    if isinstance(value, (list, tuple, UserList)):
        return (type(value), [shape_of(item) for item in value])
    return value


class Recorder:
    """Stands in for the streams of a device, and notes in one log what is asked of them, and of tensors."""

    def __init__(self):
        self.log = []
        self.on_side = False
        self.events = []
        self.arrivals = []

    @contextmanager
    def aside(self):
        self.on_side = True
        try:
            yield
        finally:
            self.on_side = False

    def mark(self):
        self.events.append(RecordedEvent(self.log, len(self.events)))
        self.log.append(f"record event {len(self.events) - 1}")
        return self.events[-1]

    def current(self):
        return RecordedStream(self.log)

    def mark_current(self):
        self.arrivals.append(RecordedEvent(self.log, f"of arrival {len(self.arrivals)}"))
        return self.arrivals[-1]


class RecordedEvent:
    def __init__(self, log, number):
        self.log = log
        self.number = number
        self.while_waiting = lambda: None

    def synchronize(self):
        self.while_waiting()
        self.log.append(f"wait for event {self.number}")


class RecordedStream:
    def __init__(self, log):
        self.log = log

    def wait_event(self, event):
        self.log.append(f"stream waits for event {event.number}")


class OwnBatch:
    """A user's batch with methods of its own, which note in the recorder's log what they are asked."""

    def __init__(self, recorder, name="host"):
        self.recorder = recorder
        self.name = name

    def pin_memory(self):
        self.recorder.log.append("pin")
        return OwnBatch(self.recorder, "pinned")

    def to(self, device, non_blocking=False):
        where = "aside" if self.recorder.on_side else "in the current stream"
        self.recorder.log.append(f"copy {self.name} to {device.type} {where}, {non_blocking=}")
        return OwnBatch(self.recorder, "moved")

    def record_stream(self, stream):
        assert isinstance(stream, RecordedStream)
        self.recorder.log.append(f"record_stream of {self.name}")


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def meta_copier(recorder, monkeypatch):
    """A copier with stand-in streams whose device is `meta`; page-locked tensors are clones."""
    recorded = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(self))
    copier = StreamCopier(torch.device("meta"), recorder)
    made = SimpleNamespace(copy=copier.copy, arrive=copier.arrive, recorded=recorded)
    del copier
    yield made
    vars(made).clear()
    await_dropped()


def test_without_a_wish_there_is_nothing_to_do():
    delivery = plan_delivery(None, None)
    assert delivery == Delivery()
    assert delivery.at_once is None
    check_device(None)


@without_torch
def test_a_device_needs_torch():
    for act in (check_device, lambda device: plan_delivery(None, device)):
        with pytest.raises(MissingExtraError, match=r"Moving batches to a device needs torch"):
            act("cpu")


def test_a_batch_that_cannot_be_prepared_has_failed():
    def prepare(batch):
        if batch == "bad":
            raise ValueError(batch)
        return batch.upper()

    delivery = Delivery(prepare)
    assert delivery.prepare_outcome(Finished(3, "good")) == Finished(3, "GOOD")
    left_out = (BadSample(7, 4, 0, "ValueError", ""),)
    failed = delivery.prepare_outcome(Finished(4, "bad", left_out, state="where"))
    assert isinstance(failed, Failed)
    assert (failed.number, str(failed.error), failed.state, failed.bad) == (4, "bad", "where", left_out)
    assert delivery.prepare_outcome(Exhausted(5)) == Exhausted(5)
    assert Delivery().prepare_outcome(Finished(3, "good")) == Finished(3, "good")


@needs_torch
def test_pinning_treats_every_container_as_torch_does(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: -self)
    for batch in containers(lambda: torch.tensor([1, 2])):
        assert shape_of(pin(batch)) == shape_of(torch_pin(batch)), batch


@needs_torch
@pytest.mark.parametrize("kind", ["plain", "streams"])
def test_copying_rebuilds_every_container_as_pinning_does(kind, meta_copier, monkeypatch):
    copier = PlainCopier(torch.device("meta")) if kind == "plain" else meta_copier
    for batch in containers(lambda: torch.tensor([1, 2])):
        moved = copier.arrive(copier.copy(batch))
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "pin_memory", lambda self: self.to("meta"))
            assert shape_of(moved) == shape_of(torch_pin(batch)), batch


@needs_torch
def test_to_the_cpu_batches_come_as_they_are_and_without_a_thread():
    delivery = plan_delivery(None, "cpu")
    assert (delivery.prepare, delivery.begin) == (None, None)
    batch = {"x": torch.arange(3), "name": "text"}
    moved = delivery.finish(batch)
    assert moved["x"] is batch["x"]
    assert moved == batch
    assert delivery.at_once(batch) == batch


@needs_torch
@pytest.mark.parametrize("device", ["meta", HAS_TORCH and torch.device("meta")])
def test_to_meta(device):
    check_device(device)
    delivery = plan_delivery(None, device)
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    numbers, moved, text = delivery.at_once((torch.arange(3), packed, "text"))
    assert (numbers.device.type, numbers.shape, text) == ("meta", (3,), "text")
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")


@needs_torch
@pytest.mark.parametrize("device", ["nonsense", "nonsense:1", 3.5])
def test_a_device_that_torch_does_not_know_fails_early_in_its_words(device):
    kind = TypeError if device == 3.5 else RuntimeError
    for act in (check_device, device_copier, lambda device: plan_delivery(None, device)):
        with pytest.raises(kind) as theirs:
            torch.device(device)
        with pytest.raises(kind) as ours:
            act(device)
        assert str(theirs.value) in str(ours.value)
        assert str(ours.value).startswith("device must be one that torch can use here (cpu")
        assert f"), got '{device}': " in str(ours.value)


@needs_torch
@pytest.mark.skipif(HAS_TORCH and torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_fails_when_the_epoch_begins_with_torchs_type():
    check_device("cuda")
    with pytest.raises((AssertionError, RuntimeError)) as theirs:
        torch.empty(0, device="cuda")
    with pytest.raises(theirs.type, match=f"got 'cuda': {theirs.value}"):
        plan_delivery(None, "cuda")


@needs_torch
def test_the_order_of_a_copy(recorder):
    copier = StreamCopier(torch.device("cuda"), recorder)
    on_its_way = copier.copy([OwnBatch(recorder)])
    copied = ["pin", "copy pinned to cuda aside, non_blocking=True", "record event 0"]
    assert recorder.log == copied
    (batch,) = copier.arrive(on_its_way)
    assert batch.name == "moved"
    assert recorder.log[3:] == ["stream waits for event 0", "record_stream of moved"]


@needs_torch
def test_the_host_batch_is_kept_until_its_copy_is_complete(meta_copier, recorder):
    hosts = []

    class Held(OwnBatch):
        def pin_memory(self):
            pinned = Held(self.recorder, "pinned")
            hosts.append(weakref.ref(pinned))
            return pinned

    def check_host_0_is_there():
        assert hosts[0]() is not None

    first = meta_copier.copy(Held(recorder))
    recorder.events[0].while_waiting = check_host_0_is_there
    meta_copier.arrive(first)
    assert hosts[0]() is not None
    meta_copier.copy(Held(recorder))
    assert recorder.log[-2:] == ["record event 1", "wait for event 0"]
    assert hosts[0]() is None
    assert hosts[1]() is not None


@needs_torch
def test_a_copier_that_goes_waits_for_its_last_copy(recorder):
    copier = StreamCopier(torch.device("cuda"), recorder)
    copier.copy([OwnBatch(recorder)])
    recorder.events[0].while_waiting = lambda: recorder.log.append(threading.current_thread().name)
    del copier
    await_dropped()
    assert recorder.log[-2:] == ["headrace-keeper", "wait for event 0"]


@needs_torch
def test_a_copy_that_fails_half_way_is_waited_for_and_keeps_nothing(recorder):
    class Bad:
        def to(self, device):
            raise ValueError("cannot be moved")

    copier = StreamCopier(torch.device("cuda"), recorder)
    with pytest.raises(ValueError, match="cannot be moved"):
        copier.copy([OwnBatch(recorder), Bad()])
    assert recorder.log[-2:] == ["record event 0", "wait for event 0"]
    assert not recorder.on_side
    assert not copier._sent
    copier.copy([OwnBatch(recorder)])
    assert recorder.log[-1] == "record event 1"


@needs_torch
def test_every_tensor_that_was_made_is_recorded_and_no_other(meta_copier):
    class Hidden:
        """Tensors that nobody can see from outside."""

        __slots__ = ("_tensors",)

        def __init__(self, tensors):
            self._tensors = tensors

        def to(self, device, **options):
            return Hidden([tensor.to(device, **options) for tensor in self._tensors])

    there = torch.ones(5, device="meta")
    packed = pack_sequence([torch.ones(3), torch.ones(2)], enforce_sorted=False)
    sparse = torch.eye(3).to_sparse()
    hidden = Hidden([torch.ones(7), torch.ones(8)])
    batch = meta_copier.arrive(meta_copier.copy([torch.ones(4), there, packed, sparse, hidden]))
    assert batch[1] is there
    made = [batch[0], *batch[4]._tensors, batch[2].data, batch[2].sorted_indices, batch[2].unsorted_indices]
    recorded = {id(tensor) for tensor in meta_copier.recorded}
    assert all(id(tensor) in recorded for tensor in made)
    assert id(there) not in recorded
    assert all(tensor.layout == torch.strided and tensor.device.type == "meta" for tensor in meta_copier.recorded)


@needs_torch
@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta state")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "strided"])
def test_all_memory_of_a_tensor_is_found(layout):
    blocks = {"blocksize": (2, 2)} if layout in ("sparse_bsr", "sparse_bsc") else {}
    dense = torch.eye(4)
    tensor = dense if layout == "strided" else dense.to_sparse(layout=getattr(torch, layout), **blocks)
    parts = torch_devices._allocations(tensor)
    assert all(part.layout == torch.strided for part in parts)
    assert len(parts) == {"strided": 1, "sparse_coo": 2}.get(layout, 3)


@needs_torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_all_memory_of_a_nested_tensor_is_found():
    parts = [torch.ones(2), torch.ones(3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert torch_devices._allocations(jagged) == [jagged]  # it has a `record_stream`
    (first,) = torch_devices._allocations(torch.nested.nested_tensor(parts))
    assert first.untyped_storage().nbytes() == 5 * 4


@needs_torch
def test_what_cannot_be_pinned_is_copied_all_the_same(meta_copier, monkeypatch):
    def refuse(self):
        raise RuntimeError("cannot pin")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    host = [torch.ones(2), torch.ones(3, device="meta")]
    with pytest.warns(UserWarning, match="copied from pageable memory, which is slower: .* cannot pin"):
        on_its_way = meta_copier.copy(host)
    assert [tensor.device.type for tensor in meta_copier.arrive(on_its_way)] == ["meta", "meta"]
    meta_copier.copy(host)  # without a word


@dataclass(frozen=True)
class Example:
    x: Any
    parts: list
    name: str = "text"


@dataclass
class Total:
    n: int
    double: int = field(init=False)

    def __post_init__(self):
        self.double = 2 * self.n


@needs_torch
@pytest.mark.parametrize("kind", ["plain", "streams"])
def test_what_dataclasses_hold_is_moved_and_they_are_left_as_they_are(kind, meta_copier):
    copier = PlainCopier(torch.device("meta")) if kind == "plain" else meta_copier
    total = Total(2)
    batch = [Example(torch.ones(2), [Example(torch.ones(3), [total])]), Total(torch.ones(4)), Total]
    moved = copier.arrive(copier.copy(batch))
    assert [type(part) for part in moved[:2]] == [Example, Total]
    assert (moved[0].x.device.type, moved[0].parts[0].x.device.type, moved[0].name) == ("meta", "meta", "text")
    assert (moved[1].n.device.type, moved[1].double.device.type, moved[2]) == ("meta", "meta", Total)
    assert moved[0].parts[0].parts[0] is total or kind == "streams"
    assert batch[0].x.device.type == batch[0].parts[0].x.device.type == "cpu"


@needs_torch
def test_what_a_batch_is_copied_from_is_kept_though_it_moves_in_place(meta_copier, recorder):
    class InPlace:
        def __init__(self, tensor):
            self.tensor = tensor

        def pin_memory(self):
            self.tensor = self.tensor.clone()
            sources.append(weakref.ref(self.tensor))
            return self

        def to(self, device, non_blocking=False):
            self.tensor = self.tensor.to(device, non_blocking=non_blocking)
            return self

    sources = []
    moved = meta_copier.arrive(meta_copier.copy({"data": InPlace(torch.ones(2))}))["data"]
    assert moved.tensor.device.type == "meta"
    assert sources[0]() is not None
    meta_copier.copy([])
    assert recorder.log[-1] == "wait for event 0"
    assert sources[0]() is None


@needs_torch
@pytest.mark.parametrize("n_waiting", [0, 1, 2])
def test_a_copy_waits_until_the_device_is_done_with_earlier_batches(recorder, n_waiting):
    """However far the loop runs ahead of the device, at most four batches are there."""
    copier = StreamCopier(torch.device("cuda"), recorder, depth=2)
    on_their_way = deque()
    for n in range(8):
        on_their_way.append(copier.copy([OwnBatch(recorder)]))
        done = [line for line in recorder.log if line.startswith("wait for event of arrival")]
        assert done == [f"wait for event of arrival {i}" for i in range(1, 1 + max(n - 3, 0))]
        if len(on_their_way) > n_waiting:
            copier.arrive(on_their_way.popleft())


@needs_torch
def test_batches_that_nobody_took_are_not_counted(recorder):
    copier = StreamCopier(torch.device("cuda"), recorder, depth=2)
    for _ in range(8):
        copier.copy([OwnBatch(recorder)])
    assert len(copier._on_their_way) <= 1
    assert copier.arrive(copier.copy([OwnBatch(recorder)]))


@needs_torch
def test_non_blocking_is_asked_only_of_those_who_know_it(recorder):
    class Plain:
        def to(self, device):
            return ("moved", device.type)

    class Attributes(dict):
        __getattr__ = dict.__getitem__

    copier = StreamCopier(torch.device("cuda"), recorder)
    postcard = Attributes(to="you", pin_memory="no")
    assert copier.arrive(copier.copy({"plain": Plain()})) == {"plain": ("moved", "cuda")}
    assert PlainCopier(torch.device("meta")).copy(postcard) == postcard


@needs_torch
@pytest.mark.parametrize("kind", ["module", "accelerator"])
def test_a_thread_takes_over_the_consumers_device(monkeypatch, kind):
    calls = []
    names = ("Event", "Stream", "stream", "current_stream")
    module = SimpleNamespace(
        **dict.fromkeys(names if kind == "module" else ()), current_device=lambda: 2, set_device=calls.append
    )
    accelerator = SimpleNamespace(current_device_index=lambda: 2, set_device_index=calls.append)
    monkeypatch.setattr(torch, "cuda", module)
    monkeypatch.setattr(torch, "accelerator", None if kind == "module" else accelerator)
    monkeypatch.setattr(torch_devices, "current_accelerator", lambda: "cuda")
    monkeypatch.setattr(torch_devices, "_use_one_core", lambda n_threads: None)
    for device, index in ((None, 2), ("cuda", 2), ("cuda:1", 1)):
        begin = thread_settings(device)
        assert calls == []
        begin()
        assert calls == [index]
        calls.clear()
    monkeypatch.setattr(torch_devices, "current_accelerator", lambda: None)
    thread_settings()()
    assert calls == []


@needs_torch
def test_a_thread_uses_one_core_and_those_started_later_use_as_many_as_before():
    def ask():
        found.append(torch.get_num_threads())
        torch.ones(10**6).sum()
        found.append(torch.get_num_threads())

    def deliver():
        begin()
        ask()

    found, before = [], torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        begin = thread_settings()
        for target in (deliver, ask):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        ask()
    finally:
        torch.set_num_threads(before)
    assert found == [1, 1, 3, 3, 3, 3]


@needs_torch
def test_the_streams_of_a_module_are_used_as_torch_documents_them(monkeypatch):
    log = []

    class Stream:
        def __init__(self, device):
            self.name = f"side stream of {device}"

        def record_event(self, event):
            assert event == "blocking event"
            log.append(f"event on {self.name}")

    def stream(side):
        log.append(f"enter {side.name}")
        return contextmanager(lambda: iter([None]))()

    module = SimpleNamespace(
        Event=lambda blocking: "blocking event" if blocking else None,
        Stream=Stream,
        stream=stream,
        current_stream=lambda device: f"current of {device}",
        current_device=None,
        set_device=None,
    )
    monkeypatch.setattr(torch, "xpu", module)
    device = torch.device("xpu", 1)
    torch_devices._side_stream.cache_clear()
    try:
        assert torch_devices._stream_module(device) is module
        streams, others = (torch_devices._ModuleStreams(module, device) for _ in range(2))
        with streams.aside():
            pass
        streams.mark()
        assert log == ["enter side stream of xpu:1", "event on side stream of xpu:1"]
        assert streams.current() == "current of xpu:1"
        assert streams._side is others._side
    finally:
        torch_devices._side_stream.cache_clear()


@needs_torch
def test_devices_without_streams():
    for device in ("cpu", "meta", "mps"):
        assert torch_devices._stream_module(torch.device(device)) is None
        assert torch_devices._streams_of(torch.device(device)) is None
        assert not PlainCopier(torch.device(device)).worth_a_thread


@needs_torch
def test_ahead_of_a_loop(recorder, monkeypatch):
    """Both steps together: copies in the thread, arrivals in the loop."""

    class Source:
        def __init__(self):
            self.batches = iter([OwnBatch(recorder) for _ in range(4)])

        def __next__(self):
            return next(self.batches)

        def close(self):
            pass

    where = []
    copier = StreamCopier(torch.device("cuda"), recorder)
    monkeypatch.setattr(torch_devices, "device_copier", lambda device, depth: copier)
    delivery = plan_delivery(lambda batch: where.append(threading.current_thread().name) or batch, "meta")
    for on_its_way in Ahead(Source(), delivery.prepare, begin=lambda: None):
        assert delivery.finish(on_its_way).name == "moved"
    assert where == ["headrace-deliver"] * 4
    assert [line for line in recorder.log if "waits" in line] == [f"stream waits for event {n}" for n in range(4)]

"""Segments without a name, the ring of messages, and the arena, which reuses no block while anybody sees it."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import socket
import sys
import threading
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader
from headrace.transport import shared_memory
from headrace.transport.channel import LoaderChannel, WorkerChannel
from headrace.transport.shared_memory import (
    WORTH_SHARING,
    LoaderArena,
    RingReader,
    RingWriter,
    WorkerArena,
    create_segment,
    is_backed_by_file,
    map_segment,
    preferred_size,
)


def test_the_memory_has_no_name_and_takes_no_space_until_it_is_written_to():
    before = set(os.listdir("/dev/shm"))
    fd, size = create_segment(4)
    try:
        assert size == preferred_size(4)
        assert not is_backed_by_file(fd)
        assert os.fstat(fd).st_blocks == 0
        memory = map_segment(fd, size)
        memory[size - 1] = 1
        assert 0 < os.fstat(fd).st_blocks * 512 <= 2 * mmap.PAGESIZE
        assert set(os.listdir("/dev/shm")) <= before
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_all_workers_together_get_half_of_the_memory():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for workers in (1, 2, 7, 64):
        size = preferred_size(workers)
        assert size % mmap.PAGESIZE == 0
        assert size >= 2**26
        assert size * workers <= max(total // 2, 2**26 * workers)
    assert preferred_size(10**6) == 2**26


def test_where_the_memory_is_not_told_a_guess_is_made(monkeypatch):
    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert preferred_size(1) == 2**32


@pytest.fixture
def no_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)


def test_without_memfd_it_is_a_file_without_a_name(no_memfd, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path)
    monkeypatch.setattr(shared_memory, "_free_bytes", lambda folder: 2**40)
    fd, size = create_segment(2)
    try:
        assert size == preferred_size(2)
        assert is_backed_by_file(fd)
        assert list(tmp_path.iterdir()) == []
        memory = map_segment(fd, size)
        memory[100] = 9
        assert os.pread(fd, 1, 100) == b"\t"
    finally:
        os.close(fd)


def test_a_system_that_refuses_memfd_gets_a_file(monkeypatch, tmp_path):
    def refuse(name, flags):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path)
    monkeypatch.setattr(shared_memory, "_free_bytes", lambda folder: 2**40)
    fd, _ = create_segment(1)
    assert is_backed_by_file(fd)
    os.close(fd)


def test_no_descriptor_left_is_told_and_not_worked_around(monkeypatch):
    def refuse(name, flags):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        create_segment(1)


def test_little_space_is_told_with_numbers_and_respected(no_memfd, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path)
    monkeypatch.setattr(shared_memory, "_free_bytes", lambda folder: 64 * 2**20 if folder == tmp_path else 10 * 2**20)
    with pytest.warns(UserWarning, match=r"has 64 MB free.*has 10 MB free") as caught:
        fd, size = create_segment(4)
    os.close(fd)
    text = str(caught[0].message)
    assert size == 8 * 2**20
    assert f"Each of 4 workers uses at most 8 MB of {tmp_path}" in text
    assert "--shm-size" in text


def test_a_folder_with_room_is_preferred_to_one_without(no_memfd, monkeypatch, tmp_path):
    shm, other = tmp_path / "shm", tmp_path / "tmp"
    shm.mkdir()
    other.mkdir()
    monkeypatch.setattr(shared_memory, "_SHM", shm)
    monkeypatch.setattr("tempfile.tempdir", str(other))
    monkeypatch.setattr(shared_memory, "_free_bytes", lambda folder: 2**20 if folder == shm else 2**40)
    fd, size = create_segment(1)
    assert size == preferred_size(1)
    assert Path(os.readlink(f"/proc/self/fd/{fd}")).parent == other
    os.close(fd)


def test_a_loader_works_without_memfd_and_with_far_too_little_space(no_memfd, monkeypatch, tmp_path):
    """Batches of 4 MB, and room for 1 MB: they go through the socket."""
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shared_memory, "_free_bytes", lambda folder: 4 * 2**20)
    data = [np.full(2**19, i, np.float64) for i in range(6)]
    loader = DataLoader(data, batch_size=1, num_workers=2, output="numpy", multiprocessing_context="fork")
    with pytest.warns(UserWarning, match="little shared memory"):
        batches = list(loader)
    assert [set(batch.ravel().tolist()) for batch in batches] == [{i} for i in range(6)]
    assert list(tmp_path.iterdir()) == []


def make_ring(size):
    memory, taken = memoryview(bytearray(size)), memoryview(array("q", [0]))
    return RingWriter(memory, taken), RingReader(memory, taken)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.integers(1, 40), st.none()), max_size=80), st.integers(1, 64))
def test_messages_come_out_as_they_went_in(steps, size):
    """Numbers are lengths of messages to put, None takes one."""
    writer, reader = make_ring(size)
    waiting = []
    for number, step in enumerate(steps):
        if step is None:
            if waiting:
                message, start = waiting.pop(0)
                assert reader.take(start, len(message)) == message
            continue
        message = bytes([number % 256]) * step
        start = writer.put([message[:3], message[3:]], step)
        if start is None:
            assert waiting or step > size, "an empty ring has room for all that fits into it"
        else:
            waiting.append((message, start))
    for message, start in waiting:
        assert reader.take(start, len(message)) == message


def test_an_empty_ring_begins_where_the_cache_is_warm():
    writer, reader = make_ring(100)
    for _ in range(5):
        assert writer.put([b"message"], 7) == 0
        reader.take(0, 7)


def test_a_full_ring_has_no_room_until_something_is_taken():
    writer, reader = make_ring(100)
    first, second = writer.put([bytes(40)], 40), writer.put([bytes(60)], 60)
    assert (first, second) == (0, 40)
    assert writer.put([b"x"], 1) is None
    reader.take(first, 40)
    assert writer.put([bytes(39)], 39) == 0
    assert writer.put([b"x"], 1) is None, "else a full ring would look like an empty one"


@pytest.fixture
def ends():
    writer, reader = make_ring(3000)
    ours, theirs = socket.socketpair()
    yield LoaderChannel(ours, reader), WorkerChannel(theirs.fileno(), writer)
    ours.close()
    theirs.close()


def test_long_messages_pass_through_the_ring_and_keep_their_order(ends):
    loader, worker = ends
    sent = [b"a" * 2000, b"short", b"b" * 900, b"c" * 2500, b"d" * 600, b""]  # the third and fourth do not fit
    for message in sent:
        worker.send(message[:1], memoryview(message[1:]))
    worker.send(b"last")
    assert [bytes(message) for message in loader.messages(to_the_end=True)] == [*sent, b"last"]


def test_messages_stay_as_they_are_while_the_ring_is_used_again(ends):
    loader, worker = ends
    kept = []
    for i in range(20):
        worker.send(bytes([i]) * 2000)
        kept += loader.messages()
    assert [bytes(message) for message in kept] == [bytes([i]) * 2000 for i in range(20)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30))
def test_any_messages_in_any_mixture(messages):
    """Lengths, and whether the loader looks after that."""
    writer, reader = make_ring(4096)
    ours, theirs = socket.socketpair()
    loader, worker = LoaderChannel(ours, reader), WorkerChannel(theirs.fileno(), writer)
    sent, received = [], []
    for number, (length, looks) in enumerate(messages):
        sent.append(bytes([number % 256]) * length)
        worker.send(sent[-1])
        if looks:
            received += [bytes(message) for message in loader.messages(to_the_end=True)]
    worker.send(b"end")
    received += [bytes(message) for message in loader.messages(to_the_end=True)]
    assert received == [*sent, b"end"]
    ours.close()
    theirs.close()


BYTES = np.dtype(np.uint8)


class Pair:
    """Both sides of an arena, in one process."""

    def __init__(self, size=2**26, most_leased=None):
        self.fd = os.memfd_create("headrace-test")
        os.ftruncate(self.fd, size)
        self.worker = WorkerArena(self.fd, size)
        self.loader = LoaderArena(self.fd, size, size if most_leased is None else most_leased)

    def ship(self, n_bytes, value):
        """A block from the worker, as the loader sees it; the worker itself lets go of it."""
        array = self.worker.allocate((n_bytes,), BYTES)
        array[:] = value
        return self.loader.lease(self.worker.send(memoryview(array)))

    def used_bytes(self):
        """Memory that the kernel has given to the segment."""
        return os.fstat(self.fd).st_blocks * 512

    def carved_bytes(self):
        """Memory that was ever handed out."""
        return sum(size for size, _ in self.worker._blocks)


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    os.close(pair.fd)
    vars(pair).clear()


def is_in_arena(array, pair):
    start = pair.worker._address
    return start <= array.ctypes.data < start + pair.worker._size


def test_what_the_worker_writes_the_loader_reads_without_a_copy(pair):
    array = pair.worker.allocate((1000, 50), np.dtype(np.float32))
    array[:] = np.arange(50_000).reshape(1000, 50)
    view = pair.loader.lease(pair.worker.send(memoryview(array).cast("B"))).view(np.float32).reshape(1000, 50)
    assert (view == array).all()
    array[3, 4] = -1.0
    assert view[3, 4] == -1.0


def test_small_arrays_and_objects_are_ordinary_memory(pair):
    assert not is_in_arena(pair.worker.allocate((WORTH_SHARING - 1,), BYTES), pair)
    assert is_in_arena(pair.worker.allocate((WORTH_SHARING,), BYTES), pair)
    objects = pair.worker.allocate((WORTH_SHARING,), np.dtype(object))
    assert not is_in_arena(objects, pair)
    assert objects.tolist() == [None] * WORTH_SHARING


@pytest.mark.parametrize("shape", [(0,), (0, 5), (), (3, 0)])
def test_empty_and_scalar_shapes(pair, shape):
    assert pair.worker.allocate(shape, np.dtype(np.int64)).shape == shape


def test_a_block_is_used_again_when_the_last_view_is_gone(pair):
    addresses = set()
    for i in range(20):
        view = pair.ship(50_000, i)
        addresses.add(view.ctypes.data)
        row = view[10:20]
        del view
        assert row.tolist() == [i] * 10
        del row
    assert len(addresses) == 1


def test_a_view_of_one_row_keeps_the_whole_block(pair):
    rows = [pair.ship(60_000, i).reshape(6, 10_000)[2] for i in range(5)]
    assert [set(row.tolist()) for row in rows] == [{i} for i in range(5)]


def test_a_block_is_not_used_again_while_the_worker_sees_it(pair):
    kept = pair.worker.allocate((50_000,), BYTES)
    kept[:] = 1
    lease = pair.loader.lease(pair.worker.send(memoryview(kept)))
    del lease
    other = pair.worker.allocate((50_000,), BYTES)
    other[:] = 2
    assert set(kept.tolist()) == {1}


def test_what_was_never_sent_is_used_again(pair):
    first = pair.worker.allocate((50_000,), BYTES)
    address = first.ctypes.data
    del first
    assert pair.worker.allocate((50_000,), BYTES).ctypes.data == address


def test_a_reference_that_is_taken_back_can_be_sent_or_dropped(pair):
    array = pair.worker.allocate((50_000,), BYTES)
    array[:] = 5
    ref = pair.worker.send(memoryview(array))
    pair.worker.take_back(ref)
    assert pair.worker.send(memoryview(array)) == ref  # still the worker's, so it need not be copied
    pair.worker.take_back(ref)
    address = array.ctypes.data
    del array
    assert pair.worker.allocate((50_000,), BYTES).ctypes.data == address
    # One whose memory has gone meanwhile.
    ref = pair.worker.send(memoryview(bytes(50_000)))
    pair.worker.take_back(ref)
    assert pair.worker.send(memoryview(bytes(50_000))).block == ref.block


def test_the_same_memory_sent_twice_is_two_blocks(pair):
    array = pair.worker.allocate((50_000,), BYTES)
    array[:] = 3
    one, two = (pair.loader.lease(pair.worker.send(memoryview(array))) for _ in range(2))
    one[:] = 4
    assert set(two.tolist()) == {3}


def test_foreign_memory_and_the_middle_of_a_block_are_copied(pair):
    foreign = np.full(50_000, 8, np.uint8)
    view = pair.loader.lease(pair.worker.send(memoryview(foreign)))
    foreign[:] = 9
    assert set(view.tolist()) == {8}
    array = pair.worker.allocate((100_000,), BYTES)
    array[:] = np.arange(100_000) % 251
    middle = pair.loader.lease(pair.worker.send(memoryview(array)[30_000:70_000]))
    assert (middle == np.arange(30_000, 70_000) % 251).all()


@pytest.mark.parametrize("n_bytes", [WORTH_SHARING, 40_000, 65_537, 10**6, 2**20 + 1, 10**7])
def test_sizes_are_rounded_up_a_little_so_that_like_sizes_share_blocks(pair, n_bytes):
    view = pair.ship(n_bytes, 1)
    (size, offset) = pair.worker._blocks[0]
    assert n_bytes <= size <= max(n_bytes * 1.25, n_bytes + 4096)
    assert size % 4096 == 0
    assert offset % 4096 == 0
    address = view.ctypes.data
    del view
    assert pair.ship(int(n_bytes * 0.97), 2).ctypes.data == address


def test_a_large_block_is_not_wasted_on_something_small(pair):
    large = pair.ship(10**7, 1)
    address = large.ctypes.data
    del large
    assert pair.ship(10**5, 2).ctypes.data != address
    assert pair.ship(5 * 10**6, 3).ctypes.data == address


def test_a_full_arena_has_no_room_and_says_so(pair):
    views = []
    while (block := pair.worker.take(2**22)) is not None:
        views.append(block)
    assert 13 <= len(views) <= 16
    overflow = pair.worker.allocate((2**22,), BYTES)
    assert not is_in_arena(overflow, pair)
    assert pair.worker.send(memoryview(overflow)) is None
    views.pop()
    assert pair.worker.send(memoryview(overflow)) is not None


def test_beyond_the_limit_of_leased_bytes_batches_are_copied_and_blocks_go_on():
    pair = Pair(most_leased=300_000)
    kept = [pair.ship(100_000, i) for i in range(50)]
    assert sum(is_leased(view, pair) for view in kept) == 3
    assert [set(view.tolist()) for view in kept] == [{i} for i in range(50)]
    assert pair.carved_bytes() < 6 * 110_000
    del kept[:3]
    assert is_leased(pair.ship(100_000, 7), pair)
    os.close(pair.fd)


def is_leased(view, pair):
    start = np.frombuffer(pair.loader._memory, np.uint8).ctypes.data
    return start <= view.ctypes.data < start + pair.worker._size


def test_beyond_the_number_of_leases_batches_are_copied(pair):
    kept = [pair.ship(WORTH_SHARING, i % 256) for i in range(shared_memory._MAX_LEASES + 20)]
    assert sum(is_leased(view, pair) for view in kept) == shared_memory._MAX_LEASES
    assert [view[0] for view in kept] == [i % 256 for i in range(len(kept))]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ship", "drop", "keep a row", "hold in the worker", "let go in the worker"]),
            st.integers(0, 2**32),
        ),
        max_size=80,
    )
)
def test_nothing_that_is_seen_is_ever_overwritten(steps):
    """Against the plain model: everything kept has the values it was made with."""
    pair = Pair(size=2**23, most_leased=2**21)
    seen, held, number = [], [], 0
    for act, draw in steps:
        if act == "ship":
            number += 1
            n_bytes = WORTH_SHARING + draw % 300_000
            array = pair.worker.allocate((n_bytes,), BYTES)
            array[:] = number % 251
            ref = pair.worker.send(memoryview(array))
            if ref is not None:
                seen.append((number % 251, pair.loader.lease(ref)))
            if draw % 5 == 0:
                held.append((number % 251, array))
        elif act == "hold in the worker":
            number += 1
            array = pair.worker.allocate((WORTH_SHARING + draw % 100_000,), BYTES)
            array[:] = number % 251
            held.append((number % 251, array))
        elif act == "let go in the worker" and held:
            held.pop(draw % len(held))
        elif act == "drop" and seen:
            seen.pop(draw % len(seen))
        elif act == "keep a row" and seen:
            value, view = seen.pop(draw % len(seen))
            seen.append((value, view[len(view) // 2 :][:100]))
        for value, view in seen + held:
            assert view[0] == value
            assert view[-1] == value
    for value, view in seen + held:
        assert (view == value).all()
    os.close(pair.fd)


def test_memory_stays_flat_over_many_batches_of_random_sizes(pair):
    random = np.random.default_rng(0)
    carved = []
    for i in range(3000):
        view = pair.ship(int(random.integers(WORTH_SHARING, 2**20)), i % 256)
        assert view[-1] == i % 256
        if i in (500, 2999):
            carved.append(pair.carved_bytes())
    assert carved[1] <= carved[0] * 1.5
    assert carved[1] < 20 * 2**20


def test_a_retired_arena_gives_its_memory_back_but_for_what_is_leased(pair):
    views = [pair.ship(2**20, i + 1) for i in range(20)]
    before = pair.used_bytes()
    assert before >= 20 * 2**20
    kept = [views[3], views[11][1000:1010], views[19]]
    views.clear()
    gc.collect()
    pair.loader.retire()
    assert pair.used_bytes() <= 4 * 2**20
    assert [view[0] for view in kept] == [4, 12, 20]
    assert [view[-1] for view in kept] == [4, 12, 20]
    assert (kept[0] == 4).all()
    pair.loader.retire()  # once more does no harm
    assert (kept[2] == 20).all()


def test_a_retired_arena_gives_back_what_was_never_taken_in_too(pair):
    """Batches that nobody received when the workers were closed lie behind those that were."""
    kept = pair.ship(2**20, 1)
    for _ in range(10):
        array = pair.worker.allocate((2**20,), BYTES)
        array[:] = 2
        pair.worker.send(memoryview(array))
    assert pair.used_bytes() >= 11 * 2**20
    pair.loader.retire()
    assert pair.used_bytes() <= 2 * 2**20
    assert (kept == 1).all()


def test_leases_end_in_any_thread_while_others_are_made(pair):
    """As when a thread prepares batches and the training loop drops them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    stop, handed, errors = threading.Event(), [], []

    def drop():
        while not stop.is_set():
            if len(handed) > 150:
                handed.pop()

    threads = [threading.Thread(target=drop) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i in range(3000):
            handed.append(pair.ship(WORTH_SHARING, i % 256))
            while len(handed) > 240:
                pass
    except RuntimeError as error:
        errors.append(str(error))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        handed.clear()
    assert errors == []


def test_a_forked_child_that_drops_a_batch_does_not_free_it(pair):
    view = pair.ship(100_000, 7)
    pid = os.fork()
    if pid == 0:
        del view
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    array = pair.worker.allocate((100_000,), BYTES)
    array[:] = 9
    assert set(view.tolist()) == {7}


def test_a_forked_child_of_the_worker_that_drops_memory_does_not_free_it(pair):
    array = pair.worker.allocate((100_000,), BYTES)
    array[:] = 7
    pid = os.fork()
    if pid == 0:
        del array
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    other = pair.worker.allocate((100_000,), BYTES)
    other[:] = 9
    assert set(array.tolist()) == {7}


def test_the_board_is_seen_from_both_sides(pair):
    pair.worker.board[1] = 77
    assert pair.loader.board[1] == 77
    pair.loader.board[0] = -1
    assert pair.worker.board[0] == -1


def test_a_file_that_cannot_grow_has_no_room(tmp_path, monkeypatch):
    with open(tmp_path / "segment", "w+b") as file:
        os.ftruncate(file.fileno(), 2**24)
        worker = WorkerArena(file.fileno(), 2**24)
        kept = worker.take(2**20)
        assert kept is not None
        assert os.fstat(file.fileno()).st_blocks * 512 >= 2**20  # reserved before it is written to

        def no_space(fd, offset, size):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", no_space)
        assert worker.take(2**20) is None
        array = worker.allocate((2**20,), BYTES)
        array[:] = 1  # ordinary memory


def test_the_table_of_states_fits_before_the_data():
    layout = shared_memory._BOARD_BYTES + shared_memory._MAX_BLOCKS
    assert layout <= shared_memory._DATA_START
    assert shared_memory._DATA_START % mmap.PAGESIZE == 0


def test_a_mapping_outlives_its_descriptor():
    fd = os.memfd_create("headrace-test")
    os.ftruncate(fd, 2**20)
    memory = map_segment(fd, 2**20)
    os.close(fd)
    memory[5] = 3
    assert memory[5] == 3


def test_a_lease_may_end_after_the_module_has(pair, monkeypatch):
    """When Python ends, the names of a module may be gone before the last batch is."""
    view = pair.ship(100_000, 7)
    for name in ("struct", "_MARK_FREE", "_FREE"):
        monkeypatch.setattr(shared_memory, name, None)
    del view
    monkeypatch.undo()
    assert pair.worker.allocate((100_000,), BYTES).ctypes.data == pair.worker._address + pair.worker._blocks[0][1]

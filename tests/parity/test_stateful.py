"""The behaviours of torchdata's StatefulDataLoader that people rely on, side by side with it where they agree."""

from __future__ import annotations

import gc
import json
import threading

import pytest

pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

import torch  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

import headrace  # noqa: E402
from tests.resuming import own_generators  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:The dataset .* is iterated again"),
]


LOADERS = {"torchdata": stateful.StatefulDataLoader, "headrace": headrace.StatefulDataLoader}
SAMPLERS = {"torchdata": StatefulDistributedSampler, "headrace": headrace.StatefulDistributedSampler}


@pytest.fixture(params=LOADERS)
def make(request):
    """Makes loaders of either library, which a test closes by dropping them."""
    made = []

    def make(dataset, **arguments):
        made.append(LOADERS[request.param](dataset, **arguments))
        return made[-1]

    yield make
    for loader in made:
        if hasattr(loader, "close"):
            loader.close()
        loader.__dict__.clear()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("QueueFeederThread"):
            thread.join(30)  # torchdata's workers are gone by then, and it ends of its own accord


def lists(batches):
    return [batch.tolist() for batch in batches]


def shuffled(make, seed=3, **arguments):
    generator = torch.Generator().manual_seed(seed)
    return make(list(range(20)), batch_size=3, shuffle=True, generator=generator, **arguments)


class Stream(torch_data.IterableDataset):
    """Numbers dealt out to the workers; its own iterator, which begins anew in `__iter__`."""

    begun = 0

    def __init__(self, n):
        self.n = n
        self.given = 0

    def __iter__(self):
        self.begun += 1
        worker = torch_data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self.numbers = range(first, self.n, step)
        self.given = 0
        return self

    def __next__(self):
        if self.given == len(self.numbers):
            raise StopIteration
        self.given += 1
        return self.numbers[self.given - 1]


class StatefulStream(Stream):
    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class GeneratorStream(StatefulStream):
    """A generator that takes up the state that it finds."""

    def __iter__(self):
        for number in range(self.given, self.n):
            self.given = number + 1
            yield number
        self.given = 0


def test_a_state_before_the_first_batch(make):
    loader = make(list(range(6)), batch_size=2)
    state = loader.state_dict()
    other = make(list(range(6)), batch_size=2)
    other.load_state_dict(state)
    assert lists(other) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_loaded_is_told_again(make, workers):
    """torchdata starts its workers to be able to answer; ours answers at once."""
    loader = make(list(range(12)), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    other = make(list(range(12)), batch_size=2, num_workers=workers)
    other.load_state_dict(state)
    assert repr(other.state_dict()) == repr(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_at_the_last_batch_resumes_to_the_next_epoch(make, workers):
    loader = make(list(range(6)), batch_size=2, num_workers=workers)
    for _ in loader:
        state = loader.state_dict()
    other = make(list(range(6)), batch_size=2, num_workers=workers)
    other.load_state_dict(state)
    if not isinstance(other, headrace.DataLoader):
        assert lists(other) == []  # in which a training that counts its batches would end
    assert lists(other) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_the_loop_resumes_to_a_full_epoch(make, workers):
    loader = make(list(range(6)), batch_size=2, num_workers=workers)
    lists(loader)
    other = make(list(range(6)), batch_size=2, num_workers=workers)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == [[0, 1], [2, 3], [4, 5]]


def test_two_and_two_resumed_epochs_are_four_straight_ones(make):
    def shuffled_by_the_global_generator():
        return make(list(range(20)), batch_size=3, shuffle=True)

    with own_generators():
        straight = shuffled_by_the_global_generator()
        epochs = [lists(straight) for _ in range(4)]
    with own_generators():
        first, second = shuffled_by_the_global_generator(), shuffled_by_the_global_generator()
        assert [lists(first) for _ in range(2)] == epochs[:2]
        second.load_state_dict(first.state_dict())
        assert [lists(second) for _ in range(2)] == epochs[2:]
    assert len({str(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 4])
def test_a_shuffled_epoch_goes_on(make, workers, stop):
    straight = shuffled(make, num_workers=workers)
    want = lists(straight)
    loader = shuffled(make, num_workers=workers)
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(stop)]
    state = loader.state_dict()
    other = shuffled(make, num_workers=workers)
    other.load_state_dict(state)
    assert got + lists(other) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_is_torchs_own(workers):
    """Bit for bit that of torch's DataLoader, which cannot resume; torchdata shuffles otherwise."""
    want = lists(shuffled(torch_data.DataLoader, num_workers=workers))
    with shuffled(headrace.DataLoader, num_workers=workers) as loader:
        iterator = iter(loader)
        got = [next(iterator).tolist() for _ in range(3)]
        state = loader.state_dict()
    with shuffled(headrace.DataLoader, num_workers=workers) as other:
        other.load_state_dict(state)
        assert got + lists(other) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_returned_states_never_change_afterwards(make, workers):
    loader = make(StatefulStream(12), batch_size=2, num_workers=workers)
    states, texts = [], []
    for _ in loader:
        states.append(loader.state_dict())
        texts.append(repr(states[-1]))
    assert [repr(state) for state in states] == texts


def test_states_are_json_if_the_users_state_is():
    """Ours always are; torchdata's hold the generator of a shuffle as a tensor."""
    for dataset, arguments in ((list(range(9)), {"shuffle": True}), (StatefulStream(9), {})):
        loader = headrace.DataLoader(dataset, batch_size=2, **arguments)
        next(iter(loader))
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state


def test_iter_is_called_once_also_on_resume(make):
    loader = make(StatefulStream(10), batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    stream = StatefulStream(10)
    other = make(stream, batch_size=2)
    other.load_state_dict(state)
    assert lists(other) == [[2, 3], [4, 5], [6, 7], [8, 9]]
    assert stream.begun == 1


@pytest.mark.parametrize("kind", [StatefulStream, GeneratorStream])
def test_datasets_load_their_state_after_iter_if_they_are_their_own_iterator_and_else_before(make, kind):
    loader = make(kind(10), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    other = make(kind(10), batch_size=2)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == [[4, 5], [6, 7], [8, 9]]


class Forgetful(torch_data.Sampler):
    """A sampler without a state."""

    def __iter__(self):
        return iter([5, 3, 1, 4, 2, 0])

    def __len__(self):
        return 6


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_without_a_state_are_run_forward(make, workers):
    fetched = []

    class Watched(list):
        def __getitem__(self, index):
            fetched.append(index)
            return super().__getitem__(index)

    loader = make(Watched(range(6)), sampler=Forgetful(), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    fetched.clear()
    other = make(Watched(range(6)), sampler=Forgetful(), num_workers=workers)
    other.load_state_dict(state)
    assert lists(other) == [[1], [4], [2], [0]]
    if not workers:
        assert fetched == [1, 4, 2, 0]  # without fetching what was given before


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_without_a_state_are_run_forward(make, workers):
    want = lists(make(Stream(20), batch_size=2, num_workers=workers))
    loader = make(Stream(20), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(3)]
    state = loader.state_dict()
    other = make(Stream(20), batch_size=2, num_workers=workers)
    other.load_state_dict(state)
    assert got + lists(other) == want


@pytest.mark.parametrize("kind", [Stream, StatefulStream])
def test_a_state_soon_after_a_resume_is_right(kind):
    """Before every worker has given something. (Of a stream without a state, torchdata raises ValueError here.)"""

    def make():
        return headrace.DataLoader(kind(18), batch_size=2, num_workers=3)

    with make() as loader:
        want = lists(loader)
    got, state = [], None
    for _ in range(4):
        with make() as loader:
            if state is not None:
                loader.load_state_dict(state)
            got.append(next(iter(loader)).tolist())
            state = loader.state_dict()
    assert got == want[:4]


def test_out_of_order_nothing_is_lost_and_nothing_doubled():
    """For which torchdata gives no guarantee."""

    def make():
        return headrace.DataLoader(list(range(30)), batch_size=2, num_workers=2, in_order=False)

    with make() as loader, make() as other:
        iterator = iter(loader)
        got = [number for _ in range(6) for number in next(iterator).tolist()]
        other.load_state_dict(loader.state_dict())
        got += [number for batch in other for number in batch.tolist()]
    assert sorted(got) == list(range(30))


def test_another_number_of_workers_is_accepted():
    """Which torchdata asserts to be the same."""
    loader = headrace.DataLoader(list(range(12)), batch_size=2, num_workers=2)
    with loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    for workers in (0, 1, 3):
        with headrace.DataLoader(list(range(12)), batch_size=2, num_workers=workers) as other:
            other.load_state_dict(state)
            assert lists(other) == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_the_same_methods_have_the_same_names():
    for name in ("state_dict", "load_state_dict"):
        assert callable(getattr(stateful.StatefulDataLoader, name))
        assert callable(getattr(headrace.DataLoader, name))


# Datasets that know their state


class Aging(torch_data.Dataset):
    """By key; it counts what each copy of it has given, and draws from a generator of its own."""

    def __init__(self, n=20):
        self.n = n
        self.given = 0
        self.generator = torch.Generator().manual_seed(11)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.given += 1
        return index * 10_000 + self.given * 100 + int(torch.randint(100, (), generator=self.generator))

    def state_dict(self):
        return {"given": self.given, "generator": self.generator.get_state().tolist()}

    def load_state_dict(self, state):
        self.given = state["given"]
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))


class Lengths(torch_data.IterableDataset):
    """Numbers from an iterator that knows its state; workers have very different amounts, some none."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        worker = torch_data.get_worker_info()
        if worker is None:
            return Numbers(range(sum(self.lengths)))
        first = sum(self.lengths[: worker.id])
        return Numbers(range(first, first + self.lengths[worker.id]))


class Numbers:
    def __init__(self, numbers):
        self.numbers = numbers
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.given == len(self.numbers):
            raise StopIteration
        self.given += 1
        return self.numbers[self.given - 1]

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Lasting(Stream):
    """Its own iterator, which knows of former epochs: each of them has other numbers."""

    epoch = -1

    def __iter__(self):
        self.epoch += 1
        return super().__iter__()

    def __next__(self):
        return 1000 * self.epoch + super().__next__()

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        self.epoch, self.given = state["epoch"], state["given"]


DATASETS = {"by key": Aging, "iterators": lambda: Lengths([0, 13, 7]), "its own iterator": lambda: StatefulStream(20)}


def workers_for(kind, workers):
    return 3 if workers and kind == "iterators" else workers


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (2, False), (2, True)], ids=["alone", "workers", "persistent"]
)
@pytest.mark.parametrize("every", [1, 3])
def test_every_dataset_with_a_state_goes_on(make, kind, workers, persistent, every):
    def new():
        return make(
            DATASETS[kind](),
            batch_size=2,
            num_workers=workers_for(kind, workers),
            persistent_workers=persistent,
            snapshot_every_n_steps=every,
        )

    want = lists(new())
    for stop in (1, 4, 6):
        loader = new()
        iterator = iter(loader)
        got = [next(iterator).tolist() for _ in range(stop)]
        state = loader.state_dict()
        other = new()
        other.load_state_dict(state)
        resumed = iter(other)
        got.append(next(resumed).tolist())
        again = other.state_dict()  # soon after a resume
        third = new()
        third.load_state_dict(again)
        assert got + lists(third) == want


@pytest.mark.parametrize("kind", [Aging, lambda: Lasting(12)], ids=["by key", "its own iterator"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)], ids=["alone", "persistent"])
def test_what_a_dataset_knows_lasts_over_epochs(make, kind, workers, persistent):
    def new():
        return make(kind(), batch_size=2, num_workers=workers, persistent_workers=persistent)

    straight = new()
    epochs = [lists(straight) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    loader, other = new(), new()
    lists(loader)
    state = loader.state_dict()
    other.load_state_dict(state)
    assert [lists(other) for _ in range(2)] == epochs[1:]
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(2)]
    third = new()
    third.load_state_dict(loader.state_dict())
    assert [got + lists(third), lists(third)] == epochs[1:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_may_be_loaded_while_an_epoch_runs_and_twice(make, workers):
    loader = make(Aging(), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    want = lists(iterator)
    other = make(Aging(), batch_size=2, num_workers=workers)
    running = iter(other)
    next(running)
    for _ in range(2):
        other.load_state_dict(state)
        assert lists(other) == want


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_distributed_sampler_knows_how_far_it_is(name):
    sampler = SAMPLERS[name](range(10), num_replicas=2, rank=1, shuffle=False)
    assert isinstance(sampler, torch_data.DistributedSampler)
    indices = iter(sampler)
    assert (sampler.yielded, sampler.state_dict()) == (0, {"yielded": 0})
    assert [next(indices), next(indices)] == [1, 3]
    assert (sampler.yielded, sampler.state_dict()) == (2, {"yielded": 2})
    other = SAMPLERS[name](range(10), num_replicas=2, rank=1, shuffle=False)
    other.load_state_dict(sampler.state_dict())
    assert other.next_yielded == 2
    assert list(other) == [5, 7, 9]
    assert other.next_yielded is None
    assert list(other) == [1, 3, 5, 7, 9]
    for wrong in ({}, {"yielded": -1}):
        with pytest.raises(ValueError, match="state"):
            sampler.load_state_dict(wrong)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_with_such_a_sampler_goes_on(name, workers):
    def new():
        sampler = SAMPLERS[name](range(24), num_replicas=2, rank=1, seed=4)
        return LOADERS[name](list(range(24)), batch_size=2, sampler=sampler, num_workers=workers)

    straight = new()
    want = lists(straight)
    for stop in (1, 3):
        loader = new()
        iterator = iter(loader)
        got = [next(iterator).tolist() for _ in range(stop)]
        other = new()
        other.load_state_dict(loader.state_dict())
        assert got + lists(other) == want
        assert lists(other) == want
    after = new()
    after.load_state_dict(straight.state_dict())
    if (name, workers) == ("torchdata", 0):
        assert lists(after) == []  # what the sampler has yielded counts for the next epoch
    assert lists(after) == want


def test_the_protocol_is_the_same():
    for example, expected in ((Aging(), True), (Numbers(range(1)), True), (Stream(1), False)):
        assert isinstance(example, stateful.Stateful) is isinstance(example, headrace.Stateful) is expected

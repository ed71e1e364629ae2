"""A run that is stopped anywhere and gone on with elsewhere gives what the undisturbed one gives, bit for bit."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import BatchSampler, BucketBatchSampler, DataLoader, Dataset, RandomSampler, Sampler, StateError
from headrace.testing import FlakyDataset, HandDrivenEngine
from tests.needs import as_lists, needs_torch
from tests.resuming import (
    DRAW,
    INLINE,
    ORDERS,
    Config,
    Counting,
    Eager,
    Lazy,
    Noisy,
    Way,
    global_generators,
    interrupted,
    own_generators,
    plain,
    run,
    seed_generators,
    set_generators,
    stop_after,
    through_json,
    ways,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

UNSHARED = [draw for draw in DRAW if draw not in ("nothing", "rng")]
"""What threads would draw from one generator."""


def alike(got, want, in_order):
    """Whether two runs gave the same batches; out of order, the same in each epoch."""
    return got == want if in_order else sorted(map(repr, got)) == sorted(map(repr, want))


def seeded_configs(draws):
    return st.builds(
        Config,
        n=st.integers(1, 40),
        order=st.sampled_from([order for order in ORDERS if order != "with a state"]),
        batch_size=st.sampled_from([1, 2, 5, None]),
        drop_last=st.booleans(),
        seed=st.integers(-3, 2**70),
        draw=st.sampled_from(draws),
        in_order=st.booleans(),
    )


STOPS = st.lists(st.integers(0, 30), min_size=1, max_size=3)


@settings(deadline=None, max_examples=80)
@given(config=seeded_configs(list(DRAW)), stops=STOPS, data=st.data())
def test_with_a_seed(config, stops, data):
    """Random augmentations and further epochs included, whatever else has drawn random numbers meanwhile."""
    on_the_way = data.draw(st.lists(ways("inline", "any order"), min_size=len(stops) + 1, max_size=len(stops) + 1))
    with own_generators():
        want = run(config.loader(), 3)
        got = interrupted(config.loader, stops, on_the_way, 3, keeps=False)
    assert alike(got, want, config.in_order)


@settings(deadline=None, max_examples=25)
@given(config=seeded_configs(["nothing", "rng"]), stops=STOPS, data=st.data())
def test_with_a_seed_and_threads(config, stops, data):
    on_the_way = data.draw(st.lists(ways("inline", "threads"), min_size=len(stops) + 1, max_size=len(stops) + 1))
    with own_generators():
        want = run(config.loader(), 2)
        got = interrupted(config.loader, stops, on_the_way, 2, keeps=False)
    assert alike(got, want, config.in_order)


@settings(deadline=None, max_examples=5)
@given(config=seeded_configs(UNSHARED), stops=st.integers(1, 20), data=st.data())
def test_with_a_seed_and_processes(config, stops, data):
    on_the_way = [data.draw(ways("fork")), data.draw(ways("fork", "inline"))]
    with own_generators():
        want = run(config.loader(), 2)
        got = interrupted(config.loader, [stops], on_the_way, 2, keeps=False)
    assert alike(got, want, config.in_order)


def unseeded_configs():
    return st.builds(
        Config,
        n=st.integers(1, 40),
        order=st.sampled_from(list(ORDERS)),
        batch_size=st.sampled_from([1, 2, 5, None]),
        drop_last=st.booleans(),
        in_order=st.booleans(),
        own_generator=st.booleans(),
    )


@settings(deadline=None, max_examples=120)
@given(config=unseeded_configs(), stops=STOPS, data=st.data())
def test_without_a_seed(config, stops, data):
    """The order is in the state; the global generators are restored with the rest of the training."""
    on_the_way = data.draw(st.lists(ways("inline", "any order"), min_size=len(stops) + 1, max_size=len(stops) + 1))
    with own_generators():
        want = run(config.loader(), 2)
        seed_generators(0)
        got = interrupted(config.loader, stops, on_the_way, 2, keeps=True)
    assert alike(got, want, config.in_order)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("order", list(ORDERS))
def test_at_the_last_batch_of_any_sampler(order, n):
    config = Config(n, order, 1)
    with own_generators():
        want = run(config.loader(), 3)
        seed_generators(0)
        stop = sum(epoch == 0 for epoch, _ in want)
        got = interrupted(config.loader, [stop, stop], [INLINE] * 3, 3, keeps=True)
    assert got == want


@settings(deadline=None, max_examples=10)
@given(config=unseeded_configs(), stop=st.integers(0, 30), first=ways("threads", persistent=False), data=st.data())
def test_without_a_seed_with_threads(config, stop, first, data):
    """The rest of an epoch that workers have drawn ahead of, with any other workers."""
    second = data.draw(ways("inline", "threads"))
    with own_generators():
        want = run(config.loader(first), 1)
        seed_generators(0)
        got = interrupted(config.loader, [stop], [first, second], 1, keeps=True)
    assert alike(got, want, config.in_order)


@pytest.mark.parametrize("order", ["shuffled", "eager", "lazy", "with a state", "buckets"])
def test_without_a_seed_with_processes(order):
    config, fork = Config(order=order), Way("fork")
    with own_generators():
        want = run(config.loader(fork), 1)
        seed_generators(0)
        got = interrupted(config.loader, [2, 2], [fork, Way("fork", 1), INLINE], 1, keeps=True)
    assert got == want


_SCRIPT = """
import json, sys
from tests.resuming import Config, plain
loader = Config(draw="random", seed=5).loader()
loader.load_state_dict(json.load(sys.stdin))
print(json.dumps([plain(batch) for batch in loader]))
"""


def test_in_another_process():
    loader = Config(draw="random", seed=5).loader()
    given, state = stop_after(loader, 3, 1)
    command = [sys.executable, "-c", _SCRIPT]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, input=json.dumps(state), capture_output=True, text=True, check=True, cwd=root)
    want = [batch for _, batch in run(Config(draw="random", seed=5).loader(), 1)]
    assert [batch for _, batch in given] + json.loads(done.stdout) == want


# When the state is taken


@pytest.fixture(params=[None, 3], ids=["without a seed", "with a seed"])
def shuffled(request):
    """Makes equal loaders of six batches."""

    def make(**others):
        generator = None if request.param is not None else np.random.Generator(np.random.PCG64(1))
        arguments = {"shuffle": True, "seed": request.param, "generator": generator, **others}
        return DataLoader(range(12), batch_size=2, **arguments)

    return make


@pytest.mark.parametrize("kind", ["inline", "threads", "fork"])
@pytest.mark.parametrize(
    "order", ["shuffled", "with replacement", "weighted", "a subset", "eager", "batches of a sampler"]
)
def test_an_epoch_begun_without_a_batch_keeps_its_order(order, kind):
    """Whatever the generators are by then: the order that it had begun with is in the state."""
    config = Config(order=order)
    with own_generators(3), config.loader() as loader:
        batches = iter(loader)
        state = through_json(loader.state_dict())
        rest = [plain(batch) for batch in batches]
    with own_generators(4), config.loader(Way(kind)) as resumed:
        resumed.load_state_dict(state)
        assert [plain(batch) for batch in resumed] == rest


@pytest.mark.parametrize("draw", ["rng", "random", "numpy"])
def test_before_the_first_batch_workers_draw_what_they_would_have_drawn(draw):
    config = Config(draw=draw)
    with own_generators(3), config.loader(Way("fork")) as loader:
        batches = iter(loader)
        state = through_json(loader.state_dict())
        rest = [plain(batch) for batch in batches]
    with own_generators(4), config.loader(Way("fork")) as resumed:
        resumed.load_state_dict(state)
        assert [plain(batch) for batch in resumed] == rest


def test_before_the_first_batch(shuffled):
    want = as_lists(shuffled())
    loader = shuffled()
    loader.load_state_dict(through_json(shuffled().state_dict()))
    assert as_lists(loader) == want


def test_after_asking_for_an_iterator_but_for_no_batch(shuffled):
    want = as_lists(shuffled())
    first, second = shuffled(), shuffled()
    iterator = iter(first)
    second.load_state_dict(through_json(first.state_dict()))
    assert as_lists(second) == want
    assert as_lists(iterator) == want


def test_after_the_last_batch_comes_the_next_epoch(shuffled):
    straight = shuffled()
    epochs = [as_lists(straight) for _ in range(2)]
    first, second = shuffled(), shuffled()
    for _ in first:
        state = first.state_dict()
    second.load_state_dict(through_json(state))
    assert as_lists(second) == epochs[1]


def test_after_the_loop_it_is_the_next_epoch(shuffled):
    straight = shuffled()
    epochs = [as_lists(straight) for _ in range(4)]
    first, second = shuffled(), shuffled()
    assert [as_lists(first) for _ in range(2)] == epochs[:2]
    second.load_state_dict(through_json(first.state_dict()))
    assert [as_lists(second) for _ in range(2)] == epochs[2:]


def test_a_loop_that_was_left_and_begun_anew_tells_of_the_new_one(shuffled):
    loader, other = shuffled(), shuffled()
    next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    other.load_state_dict(through_json(loader.state_dict()))
    assert loader.state_dict()["epoch"] == 1
    assert as_lists(other) == as_lists(iterator)


def test_a_state_never_changes_afterwards(shuffled):
    loader = shuffled()
    states = [loader.state_dict()]
    texts = [json.dumps(states[0])]
    for _ in range(2):
        for _ in loader:
            states.append(loader.state_dict())
            texts.append(json.dumps(states[-1]))
    assert [json.dumps(state) for state in states] == texts


def test_what_is_loaded_is_told_again(shuffled):
    _, state = stop_after(shuffled(), 3, 1)
    loader = shuffled()
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    state["course"].clear()
    assert loader.state_dict() != state  # it keeps a copy


def test_taking_a_state_changes_nothing(shuffled):
    want = as_lists(shuffled())
    loader = shuffled()
    got = []
    with own_generators():
        before = repr(global_generators())
        for batch in loader:
            loader.state_dict()
            got.append(plain(batch))
        assert repr(global_generators()) == before
    assert got == want


def test_the_same_loader_goes_back(shuffled):
    loader = shuffled()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = as_lists(iterator)
    loader.load_state_dict(state)
    assert as_lists(loader) == rest


def test_an_iterator_that_runs_on_does_not_spoil_what_was_loaded(shuffled):
    loader = shuffled()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    next(iterator)
    assert loader.state_dict() == state


@pytest.mark.parametrize("kind", ["threads", "fork"])
def test_persistent_workers_go_back(shuffled, kind):
    with shuffled(**Way(kind, 2, persistent=True).arguments()) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = as_lists(iterator)
        loader.load_state_dict(state)
        assert as_lists(loader) == rest
        assert len(as_lists(loader)) == 6


def test_soon_after_a_resume(shuffled):
    """Before every worker has given something."""
    want = as_lists(shuffled())
    got, state = [], None
    for _ in range(6):
        with shuffled(num_workers=2, engine="threads") as loader:
            if state is not None:
                loader.load_state_dict(state)
            got.append(plain(next(iter(loader))))
            state = through_json(loader.state_dict())
    assert got == want


def test_a_pickled_loader_keeps_what_was_loaded(shuffled):
    _, state = stop_after(shuffled(), 2, 1)
    loader = shuffled()
    loader.load_state_dict(state)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == state
    assert as_lists(copy) == as_lists(loader)


def test_a_dataset_that_grew_between_the_epochs():
    data = list(range(6))
    loader = DataLoader(data, 2)
    assert len(as_lists(loader)) == 3
    data += [6, 7]
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    other = DataLoader(list(data), 2)
    other.load_state_dict(state)
    assert as_lists(other) == [[2, 3], [4, 5], [6, 7]]
    with pytest.raises(StateError, match="length = 8, and here it is 6"):
        DataLoader(range(6), 2).load_state_dict(state)


def test_a_dataset_whose_length_raises():
    class Endless(Dataset):
        def __len__(self):
            raise NotImplementedError

        def __getitem__(self, index):
            return index

    loader = DataLoader(Endless(), sampler=range(3))
    next(iter(loader))
    other = DataLoader(Endless(), sampler=range(3))
    other.load_state_dict(through_json(loader.state_dict()))
    assert as_lists(other) == [[1], [2]]


# Samplers and what they draw from


def goes_on(make, stop=1, epochs=2):
    """Whether a run that stops after each of the epochs' first `stop` batches, and at their edges, gives the same."""
    straight = make()
    want = [as_lists(straight) for _ in range(epochs)]
    loader, got = make(), []
    for epoch in range(epochs):
        fresh = make()
        fresh.load_state_dict(through_json(loader.state_dict()))  # at the edge
        loader, iterator = fresh, iter(fresh)
        got.append([plain(next(iterator)) for _ in range(stop)])
        fresh = make()
        fresh.load_state_dict(through_json(loader.state_dict()))
        loader = fresh
        got[epoch] += as_lists(loader)
    return got == want


@needs_torch
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_torch_generator(epochs):
    import torch

    def make():
        return DataLoader(range(10), 4, shuffle=True, generator=torch.Generator().manual_seed(1))

    assert goes_on(make, epochs=epochs)


@pytest.mark.parametrize(
    "generator",
    [lambda: random.Random(3), lambda: np.random.RandomState(3), lambda: np.random.default_rng(3)],
    ids=["random", "legacy numpy", "numpy"],
)
def test_a_generator_that_a_sampler_has(generator):
    class Own(Sampler):
        def __init__(self):
            self.generator = generator()

        def __iter__(self):
            order = list(range(9))
            self.generator.shuffle(order)
            return iter(order)

        def __len__(self):
            return 9

    assert goes_on(lambda: DataLoader(range(9), 2, sampler=Own()))


def test_the_generator_of_the_sampler_in_a_batch_sampler():
    def make():
        sampler = RandomSampler(range(10), generator=np.random.Generator(np.random.PCG64(3)))
        return DataLoader(range(10), batch_sampler=BatchSampler(sampler, 3, False))

    assert goes_on(make)


@pytest.mark.parametrize("order", ["buckets", "classes", "with a state"])
@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_that_count_epochs_themselves(order, workers):
    way = Way("threads", workers) if workers else INLINE
    assert interrupted(Config(order=order).loader, [3, 3, 20], [way] * 4, 4, keeps=False) == run(
        Config(order=order).loader(), 4
    )


def test_a_sampler_with_a_state_at_a_last_batch_that_is_not_full():
    """To cut that batch, it was asked until it had ended."""
    loader, other = (DataLoader(range(3), 2, sampler=Counting(3)) for _ in range(2))
    for _ in loader:
        state = through_json(loader.state_dict())
    other.load_state_dict(state)
    assert as_lists(other) == [[0, 1], [2]]


def test_with_a_seed_a_sampler_that_counts_epochs_itself():
    config = Config(order="with a state", seed=3)
    assert interrupted(config.loader, [8], [INLINE] * 2, 2, keeps=False) == run(config.loader(), 2)


@pytest.mark.parametrize("far", [3, 15])
def test_a_sampler_with_a_state_of_which_later_batches_came_first(far):
    def make():
        return DataLoader(range(30), sampler=Counting(30), in_order=False, engine=HandDrivenEngine(max, capacity=3))

    loader = make()
    iterator = iter(loader)
    got = as_lists(next(iterator) for _ in range(far))
    other = make()
    other.load_state_dict(through_json(loader.state_dict()))
    assert sorted(got + as_lists(other)) == [[i] for i in range(30)]


@pytest.mark.parametrize("seed", [None, 2])
def test_batch_samplers_of_all_kinds(seed):
    class Generated:
        def __iter__(self):
            for i in range(0, 8, 2):
                yield [i, i + 1]

    for batch_sampler in (Generated(), [(0, 1), (2, 3), (4, 5), (6, 7)]):
        loader, other = (DataLoader(range(8), batch_sampler=batch_sampler, seed=seed) for _ in range(2))
        next(iter(loader))
        other.load_state_dict(through_json(loader.state_dict()))
        assert as_lists(other) == [[2, 3], [4, 5], [6, 7]]


def test_the_replay_touches_no_global_generator():
    config = Config(order="lazy")
    with own_generators():
        _, state = stop_after(config.loader(), 3, 1)
        seed_generators(7)
        before = repr(global_generators())
        loader = config.loader()
        loader.load_state_dict(state)
        assert repr(global_generators()) == before


def test_a_sampler_that_shares_its_generator_with_others_is_told_of():
    """Its draws depend on how often the others draw, which no loader state can know."""

    class Shares(Noisy):
        def __getitem__(self, index):
            random.random()
            return index

    with own_generators():
        loader = DataLoader(Shares(12), 2, sampler=Lazy(12))
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.warns(UserWarning, match="draws random numbers as it goes, from a generator that others draw from"):
            loader.state_dict()
        loader.state_dict()  # told once


@pytest.mark.parametrize("order", ["shuffled", "eager", "weighted"])
def test_a_sampler_that_draws_at_once_may_share_its_generator(order):
    class Shares(Noisy):
        def __getitem__(self, index):
            np.random.rand()
            return index

    with own_generators():
        loader = DataLoader(Shares(12), 2, **ORDERS[order](12))
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        loader.state_dict()  # without a warning


# Seeking, and choosing an epoch


@pytest.fixture(params=["with a seed", "without a seed", "a sampler with a state"])
def sought(request):
    """Makes equal loaders of six batches, all of whose orders are their own."""

    def make(**others):
        match request.param:
            case "with a seed":
                order = {"shuffle": True, "seed": 3}
            case "without a seed":
                order = {"sampler": RandomSampler(range(12), generator=np.random.Generator(np.random.PCG64(1)))}
            case _:
                order = {"sampler": Counting(12)}
        return DataLoader(range(12), batch_size=2, **order, **others)

    return make


@pytest.mark.parametrize("batch", [2, 5, 6, 9])
def test_seek(sought, batch):
    want = as_lists(sought())
    loader = sought()
    loader.seek(batch)
    assert as_lists(loader) == want[batch:]


def test_seek_is_for_one_epoch(sought):
    straight = sought()
    epochs = [as_lists(straight) for _ in range(2)]
    loader = sought()
    loader.seek(2)
    assert [as_lists(loader) for _ in range(2)] == [epochs[0][2:], epochs[1]]


def test_a_state_after_seeking_counts_from_the_beginning(sought):
    want = as_lists(sought())
    loader, other = sought(), sought()
    loader.seek(2)
    next(iter(loader))
    state = through_json(loader.state_dict())
    assert state["batches"] == 3
    other.load_state_dict(state)
    assert as_lists(other) == want[3:]


def test_a_state_can_be_taken_right_after_seeking(sought):
    want = as_lists(sought())
    loader, other = sought(), sought()
    loader.seek(2)
    other.load_state_dict(through_json(loader.state_dict()))
    assert as_lists(other) == want[2:]


@pytest.mark.parametrize("workers", [0, 1])
def test_seek_where_the_workers_seeds_come_from_the_same_generator(workers):
    def make():
        generator = np.random.Generator(np.random.PCG64(1))
        return DataLoader(range(12), 2, shuffle=True, generator=generator, num_workers=workers, engine="threads")

    with make() as straight, make() as loader:
        loader.seek(2)
        assert as_lists(loader) == as_lists(straight)[2:]


def test_seek_to_the_beginning(shuffled):
    want = as_lists(shuffled())
    loader = shuffled()
    loader.seek(0)
    assert as_lists(loader) == want


@pytest.mark.parametrize("value", [-1, 1.5, True, None, "3"])
def test_only_counts_are_sought(value):
    loader = DataLoader(range(4))
    with pytest.raises(ValueError, match="batch must be an int of at least 0"):
        loader.seek(value)
    with pytest.raises(ValueError, match="epoch must be an int of at least 0"):
        loader.set_epoch(value)


def test_workers_seeds_of_a_sought_epoch_are_drawn_as_always():
    """What the workers draw is not the same in every epoch that is sought."""

    def seeds():
        with DataLoader(Noisy(8, "random"), 2, num_workers=1, multiprocessing_context="fork") as loader:
            loader.seek(2)
            return [plain(batch)[1] for batch in loader]

    with own_generators(1):
        first = seeds()
    with own_generators(2):
        assert seeds() != first


def test_set_epoch_chooses_the_order_of_a_seed():
    straight, loader = (DataLoader(range(9), 2, shuffle=True, seed=4) for _ in range(2))
    epochs = [as_lists(straight) for _ in range(4)]
    loader.set_epoch(2)
    assert [as_lists(loader), as_lists(loader)] == epochs[2:]
    loader.set_epoch(1)
    assert as_lists(loader) == epochs[1]


def test_set_epoch_of_the_epoch_that_was_loaded_goes_on_in_it():
    """Training loops call it at the beginning of each epoch, the resumed one too."""
    loader, other, third = (DataLoader(range(9), 2, shuffle=True, seed=4) for _ in range(3))
    want = as_lists(loader)
    next(iter(third))
    state = third.state_dict()
    other.load_state_dict(state)
    other.set_epoch(0)
    assert as_lists(other) == want[1:]
    other.load_state_dict(state)
    other.set_epoch(1)
    assert as_lists(other) == as_lists(loader)


def test_set_epoch_tells_samplers_that_count():
    sampler = BucketBatchSampler(np.arange(20) % 7 + 1, 4)
    straight = DataLoader(range(20), batch_sampler=BucketBatchSampler(np.arange(20) % 7 + 1, 4))
    epochs = [as_lists(straight) for _ in range(3)]
    loader = DataLoader(range(20), batch_sampler=sampler)
    loader.set_epoch(2)
    assert as_lists(loader) == epochs[2]


# Errors and samples that are left out


def told(iterator):
    """What an epoch tells: batches, and the types of errors."""
    outcomes = []
    while True:
        try:
            outcomes.append(plain(next(iterator)))
        except StopIteration:
            return outcomes
        except Exception as error:  # noqa: BLE001 (whatever it is)
            outcomes.append(type(error).__name__)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_raised_was_told_and_does_not_come_again(seed, workers):
    def make():
        return DataLoader(FlakyDataset(range(10), [3]), 2, seed=seed, num_workers=workers, engine="threads")

    with make() as loader, make() as other:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="sample 3 is bad"):
            next(iterator)
        other.load_state_dict(through_json(loader.state_dict()))
        assert as_lists(other) == [[4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_sampler_that_raises_in_the_middle(seed):
    class Breaks(Sampler):
        def __iter__(self):
            yield from range(5)
            raise LookupError("broken")

        def __len__(self):
            return 10

    loader = DataLoader(range(10), sampler=Breaks(), seed=seed)
    assert told(iter(loader)) == [[0], [1], [2], [3], [4], "LookupError"]


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("seed", [None, 1])
def test_left_out_samples_are_counted_once(seed):
    def make():
        return DataLoader(FlakyDataset(range(12), [2, 3, 5]), 2, seed=seed, on_error="skip")

    want = as_lists(make())
    for stop in range(len(want)):
        loader, other = make(), make()
        iterator = iter(loader)
        got = [plain(next(iterator)) for _ in range(stop)]
        other.load_state_dict(through_json(loader.state_dict()))
        assert got + as_lists(other) == want
        assert other.state_dict()["errors"] == 3


def test_the_rest_of_an_epoch_may_be_all_bad():
    """Which of a whole epoch would be an error."""

    def make():
        return DataLoader(FlakyDataset(range(8), range(4, 8)), 2, seed=1, on_error="skip")

    loader, other = make(), make()
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="left out"):
        assert as_lists(other) == []


def test_the_errors_of_another_life_count_against_max_errors():
    def make():
        return DataLoader(FlakyDataset(range(8), [1, 5]), 2, seed=1, on_error="skip", max_errors=1)

    loader, other = make(), make()
    with pytest.warns(UserWarning, match="left out"):
        next(iter(loader))
    other.load_state_dict(loader.state_dict())
    assert other.errors == []
    with pytest.raises(RuntimeError, match="max_errors"):
        as_lists(other)


# States that do not fit


def state_of(**arguments):
    loader = DataLoader(**{"dataset": range(10), "batch_size": 2, **arguments})
    next(iter(loader))
    return through_json(loader.state_dict())


@pytest.mark.parametrize(
    ("taken", "loaded", "reason"),
    [
        ({}, {"dataset": range(12)}, "length = 10, and here it is 12"),
        ({}, {"batch_size": 3}, "batch_size = 2, and here it is 3"),
        ({}, {"drop_last": True}, "drop_last = False, and here it is True"),
        ({}, {"shuffle": True}, "sampler = 'SequentialSampler', and here it is 'RandomSampler'"),
        ({"seed": 1}, {"seed": 2}, "seed = 1, and here it is 2"),
        ({"seed": 1}, {"seed": 1, "dataset": range(12)}, "length = 10, and here it is 12"),
        ({"seed": 1}, {"seed": 1, "shuffle": True}, "sampler = 'SequentialSampler', and here it is 'RandomSampler'"),
        ({"seed": 1, "sampler": range(10)}, {"seed": 1, "sampler": range(8)}, "samples = 10, and here it is 8"),
        ({"seed": 1}, {}, "it was taken with"),
        ({}, {"seed": 1}, "it was taken with"),
    ],
)
def test_a_state_of_another_loader_is_refused_with_the_reason(taken, loaded, reason):
    loader = DataLoader(**{"dataset": range(10), "batch_size": 2, **loaded})
    with pytest.raises(StateError, match=reason):
        loader.load_state_dict(state_of(**taken))


def test_buckets_of_other_data_are_refused():
    def make(n):
        return DataLoader(range(n), batch_sampler=BucketBatchSampler(np.arange(n) % 7 + 1, 4), seed=1)

    loader = make(40)
    next(iter(loader))
    with pytest.raises(StateError, match="length = 40, and here it is 60"):
        make(60).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("other", [np.random.RandomState(1), np.random.Generator(np.random.Philox(1)), None], ids=str)
def test_another_kind_of_generator_is_refused(other):
    loader = DataLoader(range(4), shuffle=True, generator=np.random.Generator(np.random.PCG64(1)))
    next(iter(loader))
    with pytest.raises(StateError, match="generator"):
        DataLoader(range(4), shuffle=True, generator=other).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("value", [None, 3, [], {}, {"headrace": 2}, {"headrace": "1"}, {"model": 1}])
def test_what_is_no_state_is_refused(value):
    with pytest.raises(StateError, match="not a loader state"):
        DataLoader(range(4)).load_state_dict(value)


def damaged(state, *, deep=True):
    """The state with each of its entries missing, or of another kind, one at a time; and the entry's name."""
    for name, value in state.items():
        if name in ("shared_seed", "kind", "digest"):
            continue  # which states of former versions do not have
        yield name, {other: entry for other, entry in state.items() if other != name}
        if deep:
            yield name, {**state, name: "x"}
            if name != "base_seed":  # which is drawn then, as after `seek`
                yield name, {**state, name: None}
        if type(value) is int:
            yield name, {**state, name: -1}
            yield name, {**state, name: 0.5}
        if name in ("course", "replay"):
            yield from ((inner, {**state, name: spoiled}) for inner, spoiled in damaged(value, deep=name == "course"))


@pytest.mark.parametrize("seed", [None, 1])
def test_damaged_states_are_refused_and_leave_the_loader_as_it_was(seed):
    loader = DataLoader(range(10), 2, seed=seed)
    want = as_lists(DataLoader(range(10), 2))
    iterator = iter(loader)
    next(iterator)
    fresh = DataLoader(range(10), 2, seed=seed)
    before = fresh.state_dict()
    accepted = []
    for name, state in damaged(through_json(loader.state_dict())):
        try:
            fresh.load_state_dict(state)
        except StateError:
            assert fresh.state_dict() == before
        else:
            accepted.append(name)
            fresh.load_state_dict(before)
    assert not accepted
    assert as_lists(fresh) == want


def test_batches_given_ahead_fit_only_the_batches_that_they_were():
    def make(batch_size):
        return DataLoader(range(12), batch_size, seed=1, in_order=False, engine=HandDrivenEngine(max, capacity=3))

    loader = make(2)
    next(iter(loader))
    state = through_json(loader.state_dict())
    assert state["course"]["ahead"]
    with pytest.raises(StateError, match="in_order=False, when later batches had been given before earlier ones"):
        make(3).load_state_dict(state)
    other = make(2)
    other.load_state_dict(state)
    assert len(as_lists(other)) == 5


# Size


def test_a_state_with_a_seed_is_under_a_kilobyte():
    for order in ("shuffled", "weighted", "eager", "buckets"):
        for n in (20, 10**5):
            _, state = stop_after(Config(n=n, order=order, seed=2**60).loader(), 5, 1)
            assert len(json.dumps(state)) < 1000, order


@pytest.mark.parametrize("n", [20, 10**5])
@pytest.mark.parametrize("order", ["shuffled", "weighted", "eager", "lazy", "buckets"])
def test_a_state_without_a_seed_is_under_forty_kilobytes(n, order):
    with own_generators():
        _, state = stop_after(Config(n=n, order=order, own_generator=True).loader(), 5, 1)
    assert len(json.dumps(state)) < 40_000


def test_a_state_out_of_order_grows_with_what_is_in_flight_only():
    config = Config(n=2000, batch_size=1, seed=1, in_order=False)
    _, state = stop_after(config.loader(Way("any order", 3)), 1000, 1)
    assert len(json.dumps(state)) < 1000


def test_the_epoch_before_does_not_matter_to_a_state_at_the_edge(shuffled):
    """A state at an edge loaded into a loader that is in the middle of another epoch."""
    straight = shuffled()
    epochs = [as_lists(straight) for _ in range(3)]
    first, second = shuffled(), shuffled()
    as_lists(first)
    as_lists(first)
    iterator = iter(second)
    next(iterator)
    second.load_state_dict(through_json(first.state_dict()))
    assert as_lists(second) == epochs[2]


def test_eager_samplers_find_what_they_found(shuffled):
    """`__iter__` draws from the live generator; the replay gives it the old one, and puts the live one back."""
    with own_generators():
        loader = DataLoader(range(10), 2, sampler=Eager(10))
        iterator = iter(loader)
        got = [plain(next(iterator))]
        state = loader.state_dict()
        rest = as_lists(iterator)
        saved = global_generators()
        seed_generators(11)
        other = DataLoader(range(10), 2, sampler=Eager(10))
        other.load_state_dict(state)
        assert as_lists(other) == rest
        set_generators(saved)
    assert len(got + rest) == 5

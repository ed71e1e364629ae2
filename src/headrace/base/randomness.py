"""Random numbers that belong to a sample: the same whoever makes it, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from headrace.base.generators import (
    GENERATORS,
    GlobalGenerator,
    States,
    derive_key,
    generator_states,
    restore_generators,
)
from headrace.base.messages import Place
from headrace.base.world import get_worker_info

if TYPE_CHECKING:
    from numpy.random import Generator

T = TypeVar("T")


Key: TypeAlias = "int | tuple[int, int, str] | None"
"""128 bits, or what `derive_key` makes them of, when they are asked for."""


class _Here(threading.local):
    key: Key = None  # of the sample at work
    generator: Generator | None = None
    lent: Callable[[], Generator] | None = None  # by another thread, for which this one works


_here = _Here()


def rng() -> Generator:
    """The NumPy generator of the sample that is being made, for datasets and collate functions.

    Guarantees: with `DataLoader(seed=...)`, what it gives is a function of the seed, the epoch and the position of the
    sample alone: not of the number or kind of workers, nor of what other samples draw. It is the only source of
    randomness that is repeatable under `engine="threads"`. Elsewhere it is one generator per thread, seeded from the
    worker's seed or from NumPy's global generator.

    Examples:
        >>> from headrace import Dataset
        >>> class Noisy(Dataset):
        ...     def __getitem__(self, index):
        ...         return index + rng().normal()
    """
    if _here.lent is not None:
        return _here.lent()
    if _here.generator is None:
        _here.generator = _generator_of(_here.key)
    return _here.generator


def _generator_of(key: Key) -> Generator:
    return _make_generator(derive_key(*key) if isinstance(key, tuple) else key)


def _make_generator(key: int | None) -> Generator:
    if key is not None:
        return np.random.Generator(np.random.Philox(key=key))
    worker = get_worker_info()
    return np.random.default_rng(np.random.randint(2**63) if worker is None else worker.seed)


def enter_sample(key: Key) -> None:
    """From now on, `rng` in this thread belongs to the sample of this key; to none if None."""
    _here.key = key
    _here.generator = None


WorkerStates: TypeAlias = "tuple[States, dict[str, Any] | None]"
"""Of all that a worker draws from: the global generators, and `rng` where no sample owns it; None if it is unused."""


def worker_states() -> WorkerStates:
    """The states of all generators that this thread draws from, as plain values."""
    generator = _here.generator
    return generator_states(), None if generator is None else dict(generator.bit_generator.state)


def restore_worker(states: WorkerStates) -> None:
    """Set them to what `worker_states` returned, so that nothing is drawn twice."""
    global_states, own = states
    restore_generators(global_states)
    enter_sample(None)
    if own is not None:
        rng().bit_generator.state = own


@contextmanager
def own_samples() -> Iterator[None]:
    """Whatever samples are entered, `rng` is as it was afterwards."""
    before = _here.key, _here.generator
    try:
        yield
    finally:
        _here.key, _here.generator = before


def sample_key() -> Key:
    """What the random numbers of the sample at work are keyed by."""
    return _here.key


class TurnsToDraw:
    """Lets other threads draw from this one's generator, for one row after the other.

    Guarantees: each row draws what it would draw if this thread made all rows in turn. From the first time that it asks
    for the generator, a row waits until all rows before it are done.
    """

    def __init__(self) -> None:
        self._key, self._generator = _here.key, _here.generator
        self._changed = threading.Condition()
        self._done: set[int] = set()
        self._n_done = 0  # rows before the first that is not

    def call(self, number: int, fn: Callable[..., T], *arguments: Any) -> T:
        """Call a function in another thread, for row `number`; rows are begun in their order."""

        def wait() -> Generator:
            with self._changed:
                self._changed.wait_for(lambda: self._n_done >= number)
                if self._generator is None:
                    self._generator = _generator_of(self._key)
                return self._generator

        _here.lent = wait
        try:
            return fn(*arguments)
        finally:
            _here.lent = None
            with self._changed:
                self._done.add(number)
                while self._n_done in self._done:
                    self._done.remove(self._n_done)
                    self._n_done += 1
                self._changed.notify_all()

    def give_back(self) -> None:
        """This thread goes on with the generator as the rows left it."""
        _here.generator = self._generator


class RowGenerators:
    """A generator for each of some rows that are made at the same time by one thread, as coroutines.

    Guarantees: what a row draws is a function of the sample at work here and of the row's number.

    Args:
        first: the number of the first row.
    """

    def __init__(self, first: int) -> None:
        self._key = _here.key
        self._first = first
        self._outer: Callable[[], Generator] | None = None
        self._row: ContextVar[int] = ContextVar("row")
        self._generators: dict[int, Generator] = {}

    def __enter__(self) -> None:
        self._outer, _here.lent = _here.lent, self._find

    def __exit__(self, *error: object) -> None:
        _here.lent = self._outer

    def enter(self, number: int) -> None:
        """What this coroutine draws from now on belongs to a row."""
        self._row.set(number)

    def _find(self) -> Generator:
        row = self._row.get(-1)
        if row not in self._generators:
            key = self._key
            own = (key[0], key[1], f"{key[2]}, row {self._first + row}") if isinstance(key, tuple) else None
            self._generators[row] = _generator_of(own)
        return self._generators[row]

    def give_back(self) -> None:
        """Let it be seen here that random numbers were drawn, if they were."""
        if self._generators:
            rng().random()


class SampleRandomness:
    """Gives every sample random numbers of its own: through `rng`, and through the generators that user code knows.

    Those are global, so they are seeded before each sample; but only those that are drawn from, which is learned from
    the first sample. If a batch is found to have drawn from another one, it is made again.

    Args:
        seed: of the loader.
        shares_generators: whether other threads draw from the global generators: then they are left alone.
        gives_back: whether the global generators are the training loop's: then each batch leaves them as they were.
        repeats: whether a batch can be made again; if not, all generators are always seeded.
    """

    def __init__(
        self, seed: int, *, shares_generators: bool = False, gives_back: bool = False, repeats: bool = True
    ) -> None:
        self._seed = seed
        self._gives_back = gives_back
        self._watched: tuple[GlobalGenerator, ...] = () if shares_generators else GENERATORS
        self._used: set[GlobalGenerator] = set(self._watched)
        self._is_learning = repeats
        self._before: list[Any] = []  # a glance at what is not used
        self._epoch = self._start = self._step = 0

    def make(self, place: Place, make_batch: Callable[[], T]) -> T:
        """What `make_batch` makes of the samples at a place."""
        self._epoch, self._start, self._step = place
        with own_samples():
            if not self._gives_back:
                return self._make(make_batch)
            saved = [generator.save() for generator in self._watched]
            try:
                return self._make(make_batch)
            finally:
                for generator, state in zip(self._watched, saved, strict=True):
                    generator.restore(state)

    def _make(self, make_batch: Callable[[], T]) -> T:
        self._look()
        batch = make_batch()
        found = [
            generator
            for generator, then in zip(self._unused(), self._before, strict=True)
            if then != generator.glance()
        ]
        if not found:
            return batch
        self._used.update(found)
        return make_batch()

    def _unused(self) -> list[GlobalGenerator]:
        return [generator for generator in self._watched if generator not in self._used]

    def _look(self) -> None:
        """Remember what the generators look like that nobody is expected to draw from."""
        for generator in self._unused():
            generator.settle()
        self._before = [generator.glance() for generator in self._unused()]

    def over(self, keys: Iterable[Any]) -> Iterator[Any]:
        """The keys of a batch; what is drawn after one of them belongs to its sample, after the last to the batch."""
        position = self._start
        for key in keys:
            self._enter(f"sample {position}")
            if self._is_learning:
                before = [generator.glance() for generator in self._watched]
                yield key
                self._learn(before)
            else:
                yield key
            position += self._step
        self.enter_batch()

    def enter_batch(self) -> None:
        """What is drawn from here on belongs to the batch as a whole."""
        self._enter(f"batch {self._start}")

    def _enter(self, purpose: str) -> None:
        origin = (self._seed, self._epoch, purpose)
        enter_sample(origin)
        if self._used:
            key = derive_key(*origin)
            for generator in self._used:
                generator.seed(key)

    def _learn(self, before: list[Any]) -> None:
        self._used = {g for g, then in zip(self._watched, before, strict=True) if g.glance() != then}
        self._is_learning = False
        self._look()


class Draws:
    """The random numbers of something that is made bit by bit: each `with` goes on where the one before it stopped.

    Args:
        place: that the numbers are keyed by.
        gives_back: whether the global generators are left as they were, though they are not the training loop's.
    """

    def __init__(self, randomness: SampleRandomness, place: Place, *, gives_back: bool = False) -> None:
        self._randomness = randomness
        self._place = place
        self._gives_back = gives_back or randomness._gives_back
        self._outer: list[Any] = []
        self._own: list[Any] | None = None
        self._here: tuple[Key, Generator | None] = (None, None)
        self.is_over = False
        self.seen: Any = None

    def restart(self, place: Place) -> None:
        """From here on, numbers are keyed by another place; while it is entered."""
        randomness = self._randomness
        self._place = randomness._epoch, randomness._start, randomness._step = place
        randomness.enter_batch()

    def __enter__(self) -> None:
        randomness = self._randomness
        self._outer = [(_here.key, _here.generator)]
        if self._gives_back:
            self._outer += [generator.save() for generator in randomness._watched]
        if self._own is None:
            randomness._epoch, randomness._start, randomness._step = self._place
            randomness.enter_batch()
            return
        _here.key, _here.generator = self._here
        for generator, state in zip(randomness._watched, self._own, strict=True):
            generator.restore(state)

    def __exit__(self, *error: object) -> None:
        if not self.is_over:
            self._own = [generator.save() for generator in self._randomness._watched]
            self._here = (_here.key, _here.generator)
        (_here.key, _here.generator), *states = self._outer
        for generator, state in zip(self._randomness._watched, states, strict=False):
            generator.restore(state)

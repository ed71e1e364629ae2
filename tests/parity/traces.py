"""Runs a loader step by step and writes down everything that can be seen of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import strategies as st

import headrace

from .equality import Fingerprint, first_difference, outcome

_MOST_BATCHES = 100


@dataclass(frozen=True)
class Step:
    """Start, advance or use up one of two iterators over the same loader."""

    action: str
    slot: int


@dataclass
class Setting:
    """What a loader is built with: its library, and the generators whose states are watched.

    `exact_strides` is False for batches of workers, of which headrace sends no more than what can be read.
    """

    own: ModuleType
    generators: list[torch.Generator] = field(default_factory=list)
    exact_strides: bool = True

    def new_generator(self, seed: int | None) -> torch.Generator | None:
        if seed is None:
            return None
        generator = torch.Generator().manual_seed(seed)
        self.generators.append(generator)
        return generator


BuildLoader = Callable[[Setting], Any]


def _epochs_to_steps(epochs: list[int | None]) -> list[Step]:
    steps: list[Step] = []
    for batches in epochs:
        steps.append(Step("start", 0))
        steps += [Step("drain", 0)] if batches is None else [Step("next", 0)] * batches
    return steps


few_epochs = st.lists(st.sampled_from([None, None, 0, 1, 3]), min_size=1, max_size=3).map(_epochs_to_steps)
"""One to three epochs, whole or left in the middle: workers are slow to start."""

steps = st.lists(
    st.builds(Step, st.sampled_from(["start", "next", "next", "drain", "drain"]), st.sampled_from([0, 0, 0, 1])),
    min_size=1,
    max_size=8,
)


def assert_same_traces(build: BuildLoader, plan: list[Step]) -> None:
    """headrace's loader shows in every step exactly what torch's shows."""
    compare_traces(*(trace(build, Setting(own), plan) for own in (torch_data, headrace)))


def compare_traces(expected: list[tuple[Any, ...]], got: list[tuple[Any, ...]]) -> None:
    for place, (one, other) in enumerate(zip(expected, got, strict=False)):
        assert other == one, f"differs in step {place}, {one[0]}: {first_difference(one, other)}"
    assert len(got) == len(expected)


def trace(build: BuildLoader, setting: Setting, plan: list[Step]) -> list[tuple[Any, ...]]:
    """What construction, `len`, each step of the plan and the rest of the epoch gave, and the random states after."""
    _seed()
    seen: list[tuple[Any, ...]] = []
    loaders: list[Any] = []

    def note(name: str, action: Callable[[], Any]) -> Fingerprint:
        result = outcome(action, exact_strides=setting.exact_strides)
        seen.append((name, result, _random_states(setting)))
        return result

    note("construct", lambda: loaders.append(build(setting)))
    if not loaders:
        return seen
    loader = loaders[0]
    note("attributes", lambda: [loader.batch_size, loader.drop_last, loader.num_workers, loader.timeout])
    note("len", lambda: len(loader))
    iterators: dict[int, Any] = {}
    for step in _used([*plan, Step("drain", 0)]):
        if step.action == "start" or step.slot not in iterators:
            end_torchs_workers(iterators.pop(step.slot, None), loader)
            iterators[step.slot] = _start(loader)
        for _ in range({"start": 0, "next": 1, "drain": _MOST_BATCHES}[step.action]):
            result = note(f"next of {step.slot}", lambda slot=step.slot: next(iterators[slot]))
            if result[0] == "stopped":
                break
    for iterator in iterators.values():
        end_torchs_workers(iterator)
    return seen


def _used(plan: list[Step]) -> list[Step]:
    """Without iterators that nothing is taken from: torch draws for them, and headrace does not."""
    used: list[Step] = []
    taken: set[int] = set()
    for step in reversed(plan):
        if step.action != "start" or step.slot in taken:
            used.append(step)
        taken.discard(step.slot) if step.action == "start" else taken.add(step.slot)
    return used[::-1]


def _start(loader: Any) -> Any:
    """An iterator; what torch raises here, headrace raises with the first batch."""
    try:
        return iter(loader)
    except Exception as error:  # noqa: BLE001 (whatever it is)
        return _raise_once(error)


def _raise_once(error: Exception) -> Iterator[Any]:
    raise error
    yield


def end_torchs_workers(iterator: Any, loader: Any = None) -> None:
    """An error leaves torch's iterator to the garbage collector, which then waits five seconds for each worker."""
    if hasattr(iterator, "_shutdown_workers") and not getattr(loader, "persistent_workers", False):
        iterator._shutdown_workers()


def assert_same_epochs(build: BuildLoader, n_epochs: int) -> None:
    """headrace's loader gives in every epoch the batches of torch's, in whatever order."""
    expected, got = (whole_epochs(build, Setting(own), n_epochs) for own in (torch_data, headrace))
    assert got == expected


def whole_epochs(build: BuildLoader, setting: Setting, n_epochs: int) -> list[Any]:
    """What each epoch gave, sorted, and the random states before and after."""
    _seed()
    loader = build(setting)
    seen: list[Any] = []
    iterators: list[Any] = []
    for _ in range(n_epochs):
        iterators.append(_start(loader))
        results = iter(lambda: outcome(lambda: next(iterators[-1]), exact_strides=False), ("stopped", ()))
        seen.append(sorted(map(repr, results)))
        seen.append(_random_states(setting))
    return seen


def _seed() -> None:
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)


def _random_states(setting: Setting) -> tuple[str, ...]:
    numpy_state = np.random.get_state(legacy=True)
    states = [
        torch.get_rng_state().numpy().tobytes(),
        *(generator.get_state().numpy().tobytes() for generator in setting.generators),
        numpy_state[1].tobytes() + repr(numpy_state[2:]).encode(),
        repr(random.getstate()).encode(),
    ]
    return tuple(hashlib.blake2b(state, digest_size=8).hexdigest() for state in states)

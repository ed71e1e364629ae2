"""Runs a loader step by step and writes down everything that can be seen of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import strategies as st

import headrace

from .equality import Fingerprint, outcome

_MOST_BATCHES = 100


@dataclass(frozen=True)
class Step:
    """Start, advance or use up one of two iterators over the same loader."""

    action: str
    slot: int


@dataclass
class Setting:
    """What a loader is built with: its library, and the generators whose states are watched."""

    own: ModuleType
    generators: list[torch.Generator] = field(default_factory=list)

    def new_generator(self, seed: int | None) -> torch.Generator | None:
        if seed is None:
            return None
        generator = torch.Generator().manual_seed(seed)
        self.generators.append(generator)
        return generator


BuildLoader = Callable[[Setting], Any]
steps = st.lists(
    st.builds(Step, st.sampled_from(["start", "next", "next", "drain", "drain"]), st.sampled_from([0, 0, 0, 1])),
    min_size=1,
    max_size=8,
)


def assert_same_traces(build: BuildLoader, plan: list[Step]) -> None:
    """headrace's loader shows in every step exactly what torch's shows."""
    expected, got = (trace(build, Setting(own), plan) for own in (torch_data, headrace))
    for place, (one, other) in enumerate(zip(expected, got, strict=False)):
        assert other == one, f"differs in step {place}: {one[0]}"
    assert len(got) == len(expected)


def trace(build: BuildLoader, setting: Setting, plan: list[Step]) -> list[tuple[Any, ...]]:
    """What construction, `len`, each step of the plan and the rest of the epoch gave, and the random states after."""
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    seen: list[tuple[Any, ...]] = []
    loaders: list[Any] = []

    def note(name: str, action: Callable[[], Any]) -> Fingerprint:
        result = outcome(action)
        seen.append((name, result, _random_states(setting)))
        return result

    note("construct", lambda: loaders.append(build(setting)))
    if not loaders:
        return seen
    loader = loaders[0]
    note("attributes", lambda: [loader.batch_size, loader.drop_last, loader.num_workers, loader.timeout])
    note("len", lambda: len(loader))
    iterators: dict[int, Any] = {}
    for step in [*plan, Step("drain", 0)]:
        if step.action == "start" or step.slot not in iterators:
            note(f"start {step.slot}", lambda slot=step.slot: iterators.update({slot: iter(loader)}))
        for _ in range({"start": 0, "next": 1, "drain": _MOST_BATCHES}[step.action]):
            if step.slot not in iterators:
                break
            result = note(f"next of {step.slot}", lambda slot=step.slot: next(iterators[slot]))
            if result[0] == "stopped":
                break
    return seen


def _random_states(setting: Setting) -> tuple[str, ...]:
    numpy_state = np.random.get_state(legacy=True)
    states = [
        torch.get_rng_state().numpy().tobytes(),
        *(generator.get_state().numpy().tobytes() for generator in setting.generators),
        numpy_state[1].tobytes() + repr(numpy_state[2:]).encode(),
        repr(random.getstate()).encode(),
    ]
    return tuple(hashlib.blake2b(state, digest_size=8).hexdigest() for state in states)

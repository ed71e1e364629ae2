"""States: altered, damaged, and of other loaders. A loader refuses them as it loads them, or gives the same batches.

Nothing else will do: no other error, none that comes later, no other data, no waiting. A state of a former version has
no digest: if it was altered into another one that is legal, that is what it is.
"""

from __future__ import annotations

import json
import math
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from headrace import StateError
from headrace.testing import HandDrivenEngine
from tools.chaos.loaders import CONFIGURATION, Configuration, Way, draw_configuration, plain
from tools.chaos.trials import Part, WrongError, seed_generators

LONGEST_S = 20
_FEW = 12  # batches that are compared at most
_SINCE_FORMER = ("kind", "digest")  # what states of former versions do not have
# What only a user's own class knows is found when it is asked: that it takes no such state, or ends earlier.
_KNOWN_BY_USERS = ("could not load", "ends after")

_GARBAGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 100, 10**6, 2**31, 2**63 - 1, 2**63, 2**64, 2**200, -(2**70), 0.0, 0.5, 1.0,
    -1.5, 1e300, math.nan, math.inf, "", "x", "0", "3", "true", "AAAA", "é\ud800", [], [0], [0, 0], [[]], [None], [-1],
    ["a"], [[0, 0]], {}, {"": 0}, {"a": 1}, {"state": {}}, {"torch": "AAAA"}, {"0": 0}, [1, 2, 3], [{}], [[[[[[[]]]]]]],
]  # fmt: skip


@dataclass(frozen=True)
class States:
    """A loader, the state that it saved, and what is done to it.

    Attributes:
        after: how many batches; None before the first epoch was begun.
        epochs: that were over before.
        jumbled: whether batches were given out of order.
        ranks: whose states are loaded together, by one rank more; None for one state.
        former: whether the state is turned into one of a former version.
        other: the loader that the state is really of, if it is another one.
        n: how many altered states are tried.
    """

    configuration: Configuration = CONFIGURATION
    after: int | None = 1
    epochs: int = 0
    jumbled: bool = False
    ranks: int | None = None
    former: bool = False
    other: Configuration | None = None
    seed: int = 0
    n: int = 20

    def run(self, folder: Path) -> Counter[str]:
        text = self._save(self.configuration, folder)
        expected = self._resume(json.loads(text), folder)
        counts: Counter[str] = Counter()
        chance = random.Random(self.seed)
        for _ in range(self.n):
            if self.other is None:
                state = json.loads(text)
                state, change = _alter(chance, _former(state) if self.former else state, is_former=self.former)
            else:
                state, change = json.loads(self._save(self.other, folder)), "of another loader"
            counts[self._try(state, change, expected, folder)] += 1
            counts["states"] += 1
            if self.other is not None:
                break
        return counts

    def _save(self, configuration: Configuration, folder: Path) -> str:
        """The state as JSON, or a list of those of all ranks."""
        states = []
        ranks = self.ranks if configuration.kind == "stream" else None
        for rank in range(ranks or 1):
            seed_generators(3)
            others: dict[str, Any] = {}
            if self.jumbled and configuration.kind == "map":
                others = {"engine": HandDrivenEngine(random.Random(3).choice, 4), "in_order": False}
            shard = None if ranks is None else (rank, ranks)
            with replace(configuration, shard=shard).make(Way(), folder, **others) as loader:
                for _ in range(self.epochs):
                    for _ in islice(loader, 60):
                        pass
                if self.after is not None:
                    for _ in islice(batches := iter(loader), self.after):
                        pass
                states.append(json.loads(json.dumps(loader.state_dict())))
                if self.after is not None:
                    del batches
        return json.dumps(states[0] if ranks is None else states)

    def _resume(self, state: Any, folder: Path, loaded: list[bool] | None = None) -> list[str]:
        """The batches that follow a state, of this epoch and of the next one."""
        seed_generators(4)
        shard = None if self.ranks is None else (0, self.ranks + 1)
        with replace(self.configuration, shard=shard).make(Way(), folder) as loader, _limit(LONGEST_S):
            loader.load_state_dict(state)
            if loaded is not None:
                loaded.append(True)
            found = [repr(plain(batch)) for batch in islice(loader, _FEW)]
            if len(found) < _FEW:
                found += ["next", *(repr(plain(batch)) for batch in islice(loader, 3))]
            return found

    def _try(self, state: Any, change: str, expected: list[str], folder: Path) -> str:
        loaded: list[bool] = []
        may_differ = self.former or (self.other is not None and self.other.kind == self.configuration.kind)
        try:
            given = self._resume(state, folder, loaded)
        except StateError as error:
            if not loaded or (may_differ and any(words in str(error) for words in _KNOWN_BY_USERS)):
                return "refused"
            raise WrongError(f"{change}: only at iter: {error!r:.400}") from error
        except BaseException as error:
            raise WrongError(f"{change}: {'at iter' if loaded else 'at load'}: {error!r:.400}") from error
        if given == expected:
            return "same"
        if may_differ:
            return "another"
        raise WrongError(f"{change}: other data, {len(given)} batches of {len(expected)}: {given[:2]!r:.200}")


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"nothing after {seconds} s")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _former(state: Any) -> Any:
    if isinstance(state, list):
        return [_former(one) for one in state]
    return {name: value for name, value in state.items() if name not in _SINCE_FORMER}


# Alterations


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be altered: the keys and indices that lead there."""
    if isinstance(value, dict):
        inner = [(*path, key) for key in value]
    elif isinstance(value, list):
        inner = [(*path, i) for i in range(min(len(value), 8))]
    else:
        inner = []
    return [*inner, *(found for one in inner for found in _paths(value[one[-1]], one))]


def _at(state: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        state = state[key]
    return state


def _set(state: Any, path: tuple[Any, ...], value: Any) -> None:
    _at(state, path[:-1])[path[-1]] = value


def _alter(chance: random.Random, state: Any, *, is_former: bool) -> tuple[Any, str]:
    changes = []
    for _ in range(chance.choice([1, 1, 1, 1, 2, 3])):
        paths = [path for path in _paths(state) if not (is_former and _is_users(path))]
        if not paths:
            break
        # Most fields are deep in the description of the data.
        outer = [path for path in paths if "described" not in path]
        path = chance.choice(outer if outer and chance.random() < 0.7 else paths)
        state, change = _alter_at(chance, deepcopy(state), path, paths)
        changes.append(change)
    if chance.random() < 0.03:
        state, change = chance.choice([(deepcopy(chance.choice(_GARBAGE)), "garbage"), ([state], "in a list")])
        changes.append(change)
    return state, "; ".join(changes)


def _is_users(path: tuple[Any, ...]) -> bool:
    """Whether this is the state of a user's own class: without a digest, only that class can tell whether it is one."""
    return any(name in path for name in ("samplers", "dataset", "iterator")) or path[-3:-2] == ("marks",)


def _alter_at(chance: random.Random, state: Any, path: tuple[Any, ...], paths: Any) -> tuple[Any, str]:
    name, value = "/".join(map(str, path)), _at(state, path)
    match chance.choice(["delete", "garbage", "garbage", "garbage", "swap", "near", "near", "add"]):
        case "delete":
            del _at(state, path[:-1])[path[-1]]
            return state, f"{name} deleted"
        case "swap":
            other = chance.choice(paths)
            if path != other[: len(path)] and other != path[: len(other)]:
                there = _at(state, other)
                _set(state, path, deepcopy(there))
                _set(state, other, deepcopy(value))
            return state, f"{name} and {'/'.join(map(str, other))} swapped"
        case "near":
            near = _near(chance, value)
            _set(state, path, near)
            return state, f"{name} = {near!r:.60}"
        case "add" if isinstance(value, dict):
            key, garbage = chance.choice(["x", "ahead", "seek", "discard", "pool", "0"]), chance.choice(_GARBAGE)
            value[key] = deepcopy(garbage)
            return state, f"{name}/{key} = {garbage!r:.60}"
        case "add" if isinstance(value, list):
            value.append(deepcopy(chance.choice([*value, *_GARBAGE])))
            return state, f"{name} extended"
    garbage = deepcopy(chance.choice(_GARBAGE))
    _set(state, path, garbage)
    return state, f"{name} = {garbage!r:.60}"


def _near(chance: random.Random, value: Any) -> Any:
    """Something like it."""
    match value:
        case bool():
            return not value
        case int():
            return chance.choice([value + 1, value - 1, 2 * value + 3, value + 1000, float(value), str(value), -value])
        case float():
            return chance.choice([value + 1, -value, str(value)])
        case str() if value:
            at = chance.randrange(len(value))
            return chance.choice([value[:at], value + "A", value[:at] + "B" + value[at + 1 :]])
        case list() if value:
            return chance.choice([value[:-1], value[1:], [*value, value[-1]], value[::-1], dict(enumerate(value))])
        case dict() if value:
            return chance.choice([list(value), list(value.values()), dict.fromkeys(value)])
    return chance.choice(_GARBAGE)


def draw(chance: random.Random) -> States:
    configuration = replace(draw_configuration(chance), n_bytes=0)
    if configuration.seed is None:
        configuration = replace(configuration, draw="nothing")
    n_batches = configuration.n // (configuration.batch_size or 1)
    return States(
        configuration,
        after=chance.choice([None, 0, 1, 1, n_batches, chance.randint(0, n_batches + 1)]),
        epochs=chance.choice([0, 0, 0, 1]),
        jumbled=chance.random() < 0.3,
        ranks=chance.randint(1, 3) if configuration.kind == "stream" and chance.random() < 0.3 else None,
        former=chance.random() < 0.5,
        other=replace(draw_configuration(chance), n_bytes=0) if chance.random() < 0.25 else None,
        seed=chance.getrandbits(32),
    )


PART = Part("states", draw, per_process=20)

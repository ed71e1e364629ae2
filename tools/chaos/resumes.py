"""Resumes: loaders are stopped at random, saved, and resumed another way; no batch is lost, doubled or another."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.base.generators import GENERATORS
from tools.chaos.faults import compare
from tools.chaos.loaders import CONFIGURATION, INLINE, LANES, Configuration, Way, draw_configuration, draw_way, plain
from tools.chaos.trials import Part, WrongError, seed_generators


@dataclass(frozen=True)
class Stop:
    """Where a run stops, and how the next one goes on.

    Attributes:
        after: how many batches; 0 may be before the first epoch was begun.
        begins: whether the epoch is begun before the state is taken, if no batch was given.
        way: of the run that goes on.
        keeps: whether the global generators are restored with the training, too.
    """

    after: int = 0
    begins: bool = True
    way: Way = INLINE
    keeps: bool = True


@dataclass(frozen=True)
class Resumes:
    """A loader that is stopped a few times.

    Attributes:
        ranks: how many take part; each stops after the same number of batches.
    """

    configuration: Configuration = CONFIGURATION
    way: Way = INLINE
    stops: tuple[Stop, ...] = ()
    epochs: int = 2
    ranks: int | None = None

    def run(self, folder: Path) -> Counter[str]:
        counts: Counter[str] = Counter(resumes=0)
        for rank in range(self.ranks or 1):
            shard = None if self.ranks is None else (rank, self.ranks)
            self._run_rank(replace(self.configuration, shard=shard), folder, counts)
        return counts

    def _run_rank(self, configuration: Configuration, folder: Path, counts: Counter[str]) -> None:
        seed_generators(5)
        with configuration.make(self.way, folder) as loader:
            expected = list(_epochs(loader, configuration, 0, self.epochs))
        seed_generators(5)
        given: list[str] = []
        state, way = None, self.way
        for number, stop in enumerate([*self.stops, None]):
            loader = configuration.make(way, folder)
            with loader:
                first = 0
                if state is not None:
                    counts["resumes"] += 1
                    loader.load_state_dict(state)
                    if json.loads(json.dumps(loader.state_dict())) != state:
                        raise WrongError("The state that was loaded is not the state that is saved at once.")
                    first = state["epoch"]
                batches = _epochs(loader, configuration, first, self.epochs)
                if stop is None:
                    given += batches
                    break
                if stop.after:
                    given += islice(batches, stop.after)
                opened = iter(loader) if not stop.after and stop.begins and first < self.epochs else None
                state = json.loads(json.dumps(loader.state_dict()))
                del opened
                kept = [generator.save() for generator in GENERATORS]
                way = stop.way
            if stop.keeps:
                for generator, saved in zip(GENERATORS, kept, strict=True):
                    generator.restore(saved)
            else:
                seed_generators(100 + number)
        counts["batches"] += len(given)
        compare(given, expected, is_whole=True)


def _epochs(loader: Any, configuration: Configuration, first: int, end: int) -> Iterator[str]:
    """The batches of some epochs, the first of them perhaps from the middle on."""
    if _is_endless(configuration):
        if first < end:
            n_left = max(0, configuration.most - loader.state_dict()["batches"])
            yield from (f"{first}: {plain(batch)!r}" for batch in islice(loader, n_left))
        return
    epoch = first
    while epoch < end:
        batches = iter(loader)
        for batch in batches:
            epoch = batches.plan.epoch  # the next one, if the state was taken after the last batch
            if epoch == end:
                return
            yield f"{epoch}: {plain(batch)!r}"
        epoch += 1


def _is_endless(configuration: Configuration) -> bool:
    if configuration.kind == "lanes":
        return not LANES[configuration.form][2]
    return configuration.form == "mixed, never"


def draw(chance: random.Random) -> Resumes:
    configuration = draw_configuration(chance)
    kind, is_free = configuration.kind, configuration.seed is None
    if is_free and kind != "lanes":
        configuration = replace(configuration, draw="nothing")  # what is drawn then is up to the training
    engines = ("inline", "processes") if configuration.has_own_draws else ("inline", "inline", "threads", "processes")
    way = draw_way(chance, *engines)
    n_batches = configuration.n // (configuration.batch_size or 1)
    stops = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        after = chance.choice([0, 1, n_batches, chance.randint(0, n_batches + 1), chance.randint(0, 2 * n_batches)])
        stop = Stop(after, chance.random() < 0.6, draw_way(chance, *engines), chance.random() < 0.5)
        if kind == "iterable" or (is_free and kind == "map" and not after and not stop.begins):
            # Users' iterables see their workers. And in torch's order, it matters to an epoch if it begins with any.
            stop = replace(stop, keeps=True, way=replace(stops[-1].way if stops else way, prefetch=stop.way.prefetch))
        stops.append(stop)
    may_shard = kind in ("map", "stream") or (kind == "lanes" and (configuration.batch_size or 1) > 1)
    ranks = chance.randint(1, 2) if may_shard and not is_free and chance.random() < 0.2 else None
    # Without a seed, the generators of the training decide the order of the next epoch.
    return Resumes(configuration, way, tuple(stops), 1 if is_free and kind == "map" else 2, ranks)


PART = Part("resumes", draw, per_process=20)

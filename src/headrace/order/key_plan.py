"""The plan of an epoch whose batches are asked for by key: each task is a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from headrace.base.messages import Failed, Finished, Outcome, PackedIndices, PlacedKeys, Skipped, Task
from headrace.base.plan import Due, Plan
from headrace.base.user_classes import stands_in
from headrace.order.batch_order_sampler import BatchOrderSampler
from headrace.order.batch_sampler import BatchSampler
from headrace.order.distributed import DistributedSampler
from headrace.order.samplers import RandomSampler, SequentialSampler, WeightedRandomSampler
from headrace.order.seeded_samplers import SeededSampler
from headrace.order.worker_states import ToldStates


def plan_keys(index_sampler: Iterable[Any]) -> Iterator[Any]:
    """What a sampler or batch sampler yields, packed into arrays where it is headrace's own.

    Guarantees: a user's `__iter__` is called now, everything else as late as torch would.
    """
    if isinstance(index_sampler, (BatchSampler, BatchOrderSampler)) and stands_in(
        type(index_sampler), "packed", "__iter__"
    ):
        packed = index_sampler.packed()
        if packed is not None:
            return map(PackedIndices, packed)
    return iter(index_sampler)


def is_settled(index_sampler: Any) -> bool:
    """Whether all keys of an epoch are settled as soon as the first is drawn: nobody sees how early the others are."""
    if type(index_sampler) is not BatchSampler:
        return False
    sampler = index_sampler.sampler
    if isinstance(sampler, SeededSampler):
        sampler = sampler.inner
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) in (SequentialSampler, WeightedRandomSampler, DistributedSampler)


class KeyPlan(Plan):
    """Batches by key: what comes back is given out as it is.

    Args:
        keys: of the batches that are to be given, one after the other.
        start: see `Plan`; the numbers in its `ahead`, after `batches`, have been given.
        takes_turns: see `Plan`.
        batched: whether a key is a list of the keys of several samples.
        position: tells that of a plan.
        snapshot_every: after how many batches workers tell of their datasets and generators; 0 if they do not. A
            position in between is the one at the last of them, and how many batches to discard from there.

    Attributes:
        ahead: the numbers after `batches` that were given, too; only out of order are there any.
    """

    passes_on = True

    def __init__(
        self,
        keys: Iterator[Any],
        epoch: int = 0,
        start: Mapping[str, Any] | None = None,
        *,
        batches: int = 0,
        takes_turns: bool = True,
        batched: bool = True,
        position: Callable[[KeyPlan], dict[str, Any]] | None = None,
        snapshot_every: int = 0,
    ) -> None:
        super().__init__(epoch, start, batches=batches)
        self._told = ToldStates(self.start)
        self._snapshot_every = snapshot_every
        self._snapshot: tuple[int, dict[str, Any]] | None = None
        self.after = self._told.last_worker
        self.takes_turns = takes_turns
        self.source = keys
        self.ahead = {batches + number for number in self.start.get("ahead", ())}
        self._done = frozenset(self.ahead)
        self._number = batches  # of the next task
        self._batched = batched
        self._position = position
        self._has_ended = False

    @property
    def began_at(self) -> int:
        n_ahead = len(self.start.get("ahead", ()))
        return int(self.start.get("position", self.first)) + n_ahead

    def next_task(self, worker: int) -> Task | Failed | Due | None:
        if self._has_ended:
            return None
        try:
            keys = next(self.source)
        except StopIteration:
            self._has_ended = True
            return None
        except Exception as error:  # noqa: BLE001 (a sampler's error is raised when its batch is due)
            return Failed(self._take_number(), error)
        if self._done or self.skips:
            task = Task(self._take_number(), keys, worker)
            return (task, Skipped(task.number, ())) if self.is_skipped(task.number) else task
        self._number += 1
        return Task(self._number - 1, keys, worker)

    def _take_number(self) -> int:
        while self._number in self._done:
            self._number += 1
        self._number += 1
        return self._number - 1

    def give_one(self, task: Task, outcome: Outcome) -> int:
        self.latest = number = task.number
        if self._snapshot_every > 1 and self._snapshot is None:
            self._snapshot = self.batches, deepcopy(self._position_now())
        if number == self.batches and not self.ahead:
            self.batches += 1
        else:
            self._give_ahead(number)
        if self._snapshot_every:
            self._told.note(task.worker, outcome.state)
            if not self.ahead and self.batches % self._snapshot_every == 0 and self._snapshot_every > 1:
                self._snapshot = self.batches, deepcopy(self._position_now())
        if type(outcome) is not Finished:
            return 0
        keys = task.keys
        if type(keys) is PlacedKeys:
            keys = keys.keys
        if type(keys) is PackedIndices:
            keys = keys.array
        elif not self._batched or not hasattr(keys, "__len__"):
            return 1 - len(outcome.bad)
        return len(keys) - len(outcome.bad) if outcome.bad else len(keys)

    def _give_ahead(self, number: int) -> None:
        self.ahead.add(number)
        while self.batches in self.ahead:
            self.ahead.remove(self.batches)
            self.batches += 1

    def keys(self, mark: Any) -> Any:
        keys = mark.keys.keys if type(mark.keys) is PlacedKeys else mark.keys
        if isinstance(keys, PackedIndices):
            return keys.array
        if not self._batched or not hasattr(keys, "__len__"):  # an iterator is left for those who need it
            return (keys,)
        return keys

    def position(self) -> dict[str, Any]:
        if self._snapshot_every <= 1 or self._snapshot is None:
            return self._position_now()
        at, snapshot = self._snapshot
        return {**snapshot, "discard": self.batches - at} if self.batches > at else snapshot

    def _position_now(self) -> dict[str, Any]:
        saved = {} if self._position is None else self._position(self)
        if self._told:
            saved = {**saved, **self._told.listed(self.workers), "last_worker": self._told.last_worker}
        return saved

    def starts(self) -> tuple[Any, ...] | None:
        states = self.start.get("states")
        return None if states is None else tuple(states)

    def lasting(self) -> dict[str, Any]:
        return self._told.listed(self.workers) if self._told else {}

    def abandon(self) -> None:
        self._has_ended = True

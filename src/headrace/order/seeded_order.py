"""The batches of an epoch that a seed decides, from any position on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from headrace.base.errors import StateError
from headrace.base.generators import GENERATORS, derive_key
from headrace.base.messages import PackedIndices, Place, PlacedKeys
from headrace.base.plan import Plan
from headrace.base.provenance import origins_of_keys
from headrace.base.schema import MOST, anything, count, each, items, maybe, positive, record, refuse, whole
from headrace.base.state import check_equal
from headrace.base.user_classes import stands_in
from headrace.order import samplers
from headrace.order.balance import Balance
from headrace.order.batch_order_sampler import BatchOrderSampler
from headrace.order.batch_sampler import BatchSampler
from headrace.order.key_plan import KeyPlan
from headrace.order.order import BatchOrder, Order
from headrace.order.sampler_states import check_states, load_states, parts_of, states_of
from headrace.order.schedule import Schedule
from headrace.order.seeded_samplers import SeededSampler
from headrace.order.shard import Shard
from headrace.order.worker_states import KEPT, TOLD, Told, check_told

_CHUNK = 2**14  # positions that are looked up at a time
_DRAWN_AT_ONCE = 64  # keys of a user's sampler
_MOST_BATCHES = 2**31 - 1  # of an epoch of a batch sampler
_BATCH_POSITIONS = 2**32  # what a batch of a batch sampler takes of the positions that random numbers are keyed by


_COURSE = record(
    {"described": anything, "position": count},
    {"samplers": items(anything), "ahead": items(positive), "cut": each(maybe(count), count, positive)} | TOLD | KEPT,
)


class SeededOrder(Schedule):
    """What a loader with a seed gives in each epoch: a function of the seed, the epoch and the position alone.

    A position counts the items of all ranks: samples, or the batches of a batch sampler. What a state says is how many
    of them have been given; so it fits every rank, another number of ranks, and another batch size.

    Args:
        items: a sampler, or a batch sampler if `batches`.
        describe: tells what a saved place must agree with.
        batch_size: of the batches that are cut from a sampler; None for single keys.
        front: what trainers see as the sampler.
        told: what workers tell of themselves.
        balance: deals the samples of each step by their costs.

    Raises:
        ValueError: a sampler has a generator, too, or its samples cannot be balanced.
    """

    kind = "a dataset by key, with a seed"

    def __init__(
        self,
        items: Iterable[Any],
        describe: Callable[[], dict[str, Any]],
        *,
        batches: bool,
        batch_size: int | None,
        drop_last: bool,
        seed: int,
        shard: Shard,
        front: SeededSampler | None = None,
        told: Told | None = None,
        balance: Balance | None = None,
    ) -> None:
        self._told_by = told or Told()
        self._balance = balance
        self._items = items
        self.front = front
        self._describe = describe
        self._batches = batches
        self._batch_size = None if batches else batch_size
        self._drop_last = drop_last
        self._seed = seed
        self._shard = shard
        self._latest: tuple[int, Any] | None = None
        self._parts = parts_of(items)
        self._told = self._told_epochs()
        self.rank = shard.rank, shard.world
        sampler: Any = items if hasattr(items, "num_replicas") else getattr(items, "sampler", None)
        if shard.world == 1 and hasattr(sampler, "num_replicas"):  # it deals out the samples itself
            self.rank = sampler.rank, sampler.num_replicas
        if balance is not None and (batches or seeded_order(items, seed, 0) is None):
            raise ValueError(
                f"balance needs headrace's or torch's samplers, whose order is known ahead, got "
                f"{type(items).__name__}. A batch sampler makes its batches itself: BucketBatchSampler(lengths, "
                "max_tokens=...) makes them of about the same size."
            )
        for part in self._parts:
            if getattr(part, "generator", None) is not None:
                raise ValueError(
                    f"seed (which shard implies) is mutually exclusive with a generator, but {type(part).__name__} has "
                    "one. With a seed, the order is a function of the seed and the epoch alone."
                )

    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> KeyPlan:
        keys, samplers = self.keys_from(epoch, start)
        plan = KeyPlan(
            keys,
            epoch,
            start,
            batches=batches,
            takes_turns=self._told_by.snapshot_every > 0,
            batched=self._batches or self._batch_size is not None,
            position=partial(self._position_of, samplers),
            snapshot_every=self._told_by.snapshot_every,
        )
        if self.front is not None:
            self.front.follow(epoch, partial(is_running, weakref.ref(plan)))
        return plan

    def keys_from(self, epoch: int, start: Mapping[str, Any]) -> tuple[Iterator[PlacedKeys], list[Any]]:
        """The keys of an epoch from a position on, and the states of the samplers there."""
        _set_epoch(self._items, epoch)
        self._told = self._told_epochs()
        self._latest = None  # the data may have grown
        position, ahead = start.get("position", 0), set(start.get("ahead", ()))
        order, samplers = self._order(epoch), []
        if order is None:
            load_states(self._parts, start.get("samplers", ()))
            samplers = states_of(self._parts)
            keys = self._from_items(epoch, position)
        elif hasattr(order, "batch"):
            keys = self._from_batch_order(order, epoch, position)
        else:
            keys = self._from_order(order, epoch, position)
        return keys if not ahead else (key for i, key in enumerate(keys) if i not in ahead), samplers

    def chosen_epoch(self) -> int | None:
        epochs = self._told_epochs()
        changed = [new for new, old in zip(epochs, self._told, strict=True) if new != old]
        self._told = epochs
        if self.front is not None and self.front.chosen is not None:
            chosen, self.front.chosen = self.front.chosen, None
            return chosen
        return changed[0] if changed else None

    def _told_epochs(self) -> list[int | None]:
        """Trainers tell samplers which epoch it is, and not loaders."""
        told = [getattr(part, "epoch", None) for part in self._parts]
        return [epoch if isinstance(epoch, int) else None for epoch in told]

    def restore(self, start: Mapping[str, Any]) -> None:
        load_states(self._parts, start.get("samplers", ()))

    def edge(self) -> dict[str, Any]:
        return self._saved(0, [], states_of(self._parts))

    def _position_of(self, samplers: list[Any], plan: KeyPlan) -> dict[str, Any]:
        given = plan.batches - plan.first
        ahead = sorted(number - plan.batches for number in plan.ahead)
        return self._saved(plan.start.get("position", 0) + given * self._per_batch, ahead, samplers)

    def _saved(self, position: int, ahead: list[int], samplers: Sequence[Any] = ()) -> dict[str, Any]:
        saved: dict[str, Any] = {"described": self._described(), "position": position}
        if any(state is not None for state in samplers):
            saved["samplers"] = samplers
        if ahead:
            # Which batches these are depends on how they are cut.
            saved |= {"ahead": ahead, "cut": [self._batch_size, self._shard.rank, self._shard.world]}
        return saved

    def _described(self) -> dict[str, Any]:
        try:
            n = len(self._items)  # type: ignore[arg-type]
        except TypeError:
            n = None
        if isinstance(self._items, BatchOrderSampler):
            n = None  # it differs from epoch to epoch
        return {**self._describe(), "seed": self._seed, "sampler": type(self._items).__name__, "samples": n}

    def parse(self, course: Any) -> Any:
        return _COURSE(course, "course")

    def check(self, state: Mapping[str, Any], *, is_edge: bool) -> None:
        start, batches = state["course"], state["batches"]
        check_equal(start["described"], self._described())
        # Each batch takes one position or more.
        most = _MOST_BATCHES if self._batches else MOST
        whole(batches, most if batches else 0)(start["position"], "course.position")
        check_states(self._parts, start.get("samplers", ()))
        check_told(start, self._told_by)
        own = [self._batch_size, self._shard.rank, self._shard.world]
        if not start.get("ahead"):
            return
        if "cut" not in start:
            refuse("course", "a mapping with cut", start)
        if start["cut"] != own:
            raise StateError(
                "The state was taken with in_order=False, when later batches had been given before earlier ones: it "
                f"must be loaded with the same batch_size, rank and world, {start['cut']}, and they are {own}."
            )

    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        return self._saved(batch * self._per_batch, [])

    def origins(self, epoch: int, start: Mapping[str, Any], ahead: int, plan: Plan | None, *, read: bool) -> Any:
        position = start.get("position", 0) + ahead * self._per_batch
        order = seeded_order(self._items, self._seed, epoch)
        if order is None:
            placed = self._drawn_again(epoch, start.get("position", 0), ahead)
        elif hasattr(order, "batch"):
            placed = next(self._from_batch_order(order, epoch, position), None)
        else:
            placed = next(self._from_order(order, epoch, position), None)
        if placed is None:
            raise IndexError("The epoch has no such batch: it ends before.")
        keys = placed.keys.array.tolist() if isinstance(placed.keys, PackedIndices) else placed.keys
        return origins_of_keys(keys if self._batches or self._batch_size is not None else [keys])

    def _drawn_again(self, epoch: int, position: int, ahead: int) -> PlacedKeys | None:
        """A batch of a user's own sampler, which is gone through once more."""
        if any(state is not None for state in states_of(self._parts)):
            raise ValueError(
                "Where batches come from is not known with a sampler that has a state: it cannot be gone through "
                "again without moving it."
            )
        told = self._told_epochs()
        try:
            _set_epoch(self._items, epoch)
            return next(islice(self._from_items(epoch, position), ahead, None), None)
        finally:
            for part, before in zip(self._parts, told, strict=True):
                if before is not None and callable(set_epoch := getattr(part, "set_epoch", None)):
                    set_epoch(before)

    def leads_to(self, batches: int, start: Mapping[str, Any]) -> bool:
        return bool(start.get("position", 0) == batches * self._per_batch)

    def expected(self, plan: Plan) -> Any:
        from headrace.order.expected import DealtOrder

        order, position = self._order(plan.epoch), plan.start.get("position", 0)
        if order is None:
            return None
        n = len(order)
        if position > n:  # the last batches had been given, and were not full, or filled up
            shares = self._shares(n)
            return DealtOrder(order, min(position, sum(shares)), (0,) * len(shares), is_guess=True)
        return DealtOrder(order, position, self._shares(n - position), has_gaps=bool(plan.start.get("ahead")))

    def _shares(self, n: int) -> tuple[int, ...]:
        """How many of n items each rank gets."""
        size = self._batch_size or 1
        shares = [replace(self._shard, rank=rank).size(n, size) for rank in range(self._shard.world)]
        if self._drop_last and self._batch_size is not None:
            shares = [share - share % size for share in shares]
        return tuple(shares)

    @property
    def _per_batch(self) -> int:
        """How many items all ranks have in one batch each."""
        return (self._batch_size or 1) * self._shard.world

    def _order(self, epoch: int) -> Any:
        if self._latest is None or self._latest[0] != epoch:
            self._latest = (epoch, seeded_order(self._items, self._seed, epoch))
        return self._latest[1]

    def __len__(self) -> int:
        """The number of batches in the epoch that was begun last."""
        return self.n_batches(0 if self._latest is None else self._latest[0])

    def n_batches(self, epoch: int) -> int:
        order = self._order(epoch) if isinstance(self._items, BatchOrderSampler) else None
        n = len(self._items if order is None else order)  # type: ignore[arg-type]
        return self._cut(n)[1]

    def _cut(self, n: int) -> tuple[int, int]:
        """How many of n items this rank has, and in how many batches."""
        size = self._batch_size or 1
        n_own = self._shard.size(n, size)
        if self._drop_last and self._batch_size is not None:
            n_own -= n_own % size
        return n_own, -(-n_own // size)

    def _from_order(self, order: Order, epoch: int, position: int) -> Iterator[PlacedKeys]:
        if self._balance is not None:
            order = self._balance.order(order, self._shard, position)
        n, size = len(order), self._batch_size or 1
        world, first = self._shard.world, position + self._shard.rank
        n_own, _ = self._cut(max(0, n - position))
        at_once = max(1, getattr(order, "at_once", _CHUNK) // size) * size
        for start in range(0, n_own, at_once):
            own = np.arange(start, min(start + at_once, n_own), dtype=np.int64)
            indices = order.at((first + own * world) % n)  # "pad" and "repeat" go round again
            for i in range(0, len(own), size):
                place = Place(epoch, first + (start + i) * world, world)
                if self._batch_size is None:
                    yield PlacedKeys(int(indices[i]), place)
                else:
                    yield PlacedKeys(PackedIndices(indices[i : i + size]), place)

    def _from_batch_order(self, order: BatchOrder, epoch: int, position: int) -> Iterator[PlacedKeys]:
        n, world = len(order), self._shard.world
        for i in range(self._shard.size(max(0, n - position))):
            number = position + self._shard.rank + i * world
            yield PlacedKeys(PackedIndices(order.batch(number % n)), Place(epoch, number * _BATCH_POSITIONS, 1))

    def _from_items(self, epoch: int, position: int) -> Iterator[PlacedKeys]:
        """From a user's own sampler, whose keys can only be had one after the other."""
        drawn = _isolated(self._items, derive_key(self._seed, epoch, "sampler"))
        size = 1 if self._batches else self._batch_size or 1
        own = _deal(drawn, self._shard, position, size)
        if self._batches or self._batch_size is None:
            step = _BATCH_POSITIONS if self._batches else 1
            for number, key in own:
                yield PlacedKeys(key, Place(epoch, number * step, 1))
            return
        while batch := list(islice(own, size)):
            if len(batch) == size or not self._drop_last:
                yield PlacedKeys([key for _, key in batch], Place(epoch, batch[0][0], self._shard.world))


def _deal(items: Iterator[Any], shard: Shard, position: int, batch_size: int) -> Iterator[tuple[int, Any]]:
    """This rank's items with their positions, in one pass over those of all ranks."""
    goes_round = shard.even in ("pad", "repeat")
    first: list[Any] = []
    own: tuple[int, Any] | None = None
    n = n_own = 0
    for n, item in enumerate(items, 1):
        if goes_round and len(first) < shard.world * batch_size:
            first.append(item)
        turn = (n - 1 - position) % shard.world
        if n <= position:
            continue
        if turn == shard.rank:
            own = (n - 1, item)
        # A round in which not every rank gets something is for the end.
        if own is not None and turn == (shard.rank if shard.even == "allow" else shard.world - 1):
            yield own
            own, n_own = None, n_own + 1
    if not goes_round or n <= position:
        return
    if own is not None:
        yield own
        n_own += 1
    for i in range(n_own, shard.size(n - position, batch_size)):
        place = position + i * shard.world + shard.rank
        yield place, first[(place - n) % n]


def _isolated(items: Iterable[Any], key: int) -> Iterator[Any]:
    """The items of a user's sampler, which finds the global generators seeded, and everybody else as they were."""
    own: list[Any] | None = None
    iterator: Iterator[Any] | None = None
    while True:
        others = [generator.save() for generator in GENERATORS]
        try:
            for i, generator in enumerate(GENERATORS):
                generator.seed(key) if own is None else generator.restore(own[i])
            if iterator is None:
                iterator = iter(items)
            drawn, failure = _draw(iterator, _DRAWN_AT_ONCE)
            own = [generator.save() for generator in GENERATORS]
        finally:
            for generator, state in zip(GENERATORS, others, strict=True):
                generator.restore(state)
        yield from drawn
        if failure is not None:
            raise failure
        if len(drawn) < _DRAWN_AT_ONCE:
            return


def _draw(keys: Iterator[Any], n: int) -> tuple[list[Any], Exception | None]:
    """The next n keys, or fewer at the end, or until an error, which comes after them."""
    drawn: list[Any] = []
    try:
        drawn.extend(islice(keys, n))
    except Exception as error:  # noqa: BLE001 (whatever the user's sampler raises)
        return drawn, error
    return drawn, None


def is_running(plan: weakref.ref[Any], epoch: int) -> bool:
    """Whether the epoch of a plan is this one, and not over."""
    running = plan()
    return running is not None and not running.is_over and running.epoch == epoch


def _set_epoch(items: Any, epoch: int) -> None:
    """Tell samplers that count epochs, directly or in a batch sampler."""
    for sampler in (items, getattr(items, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def seeded_order(items: Any, seed: int, epoch: int) -> Any:
    """The `Order` or `BatchOrder` that a seed makes of a sampler or batch sampler; None if it is a user's own."""
    kind = type(items)
    if kind.__module__ == "torch.utils.data.sampler":
        items = _as_ours(items)
        kind = type(items)
    plain = [name for name in ("__iter__", "chunks", "packed") if hasattr(kind, name)]
    if not callable(getattr(items, "seeded", None)) or not stands_in(kind, "seeded", *plain):
        return None
    return items.seeded(seed, epoch)


def _as_ours(sampler: Any) -> Any:
    """Torch's own samplers, which can do everything but this."""
    match type(sampler).__name__:
        case "SequentialSampler":
            return samplers.SequentialSampler(sampler.data_source)
        case "RandomSampler":
            return samplers.RandomSampler(
                sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator
            )
        case "SubsetRandomSampler":
            return samplers.SubsetRandomSampler(sampler.indices, sampler.generator)
        case "WeightedRandomSampler":
            return samplers.WeightedRandomSampler(
                sampler.weights, sampler.num_samples, sampler.replacement, sampler.generator
            )
        case _:
            return sampler


def order_by_seed(
    index_sampler: Any,
    sampler: Any,
    batch_size: int | None,
    drop_last: bool,
    seed: int,
    shard: Shard,
    describe: Callable[[], dict[str, Any]],
    told: Told | None = None,
    balance: Balance | None = None,
) -> SeededOrder:
    """The order of a loader: from its sampler, or from a batch sampler that cuts no sampler of its own."""
    front = None
    if batch_size is None and type(index_sampler).__name__ == "BatchSampler" and _cuts_a_sampler(type(index_sampler)):
        sampler, batch_size, drop_last = index_sampler.sampler, index_sampler.batch_size, index_sampler.drop_last
        index_sampler = None
    if isinstance(sampler, SeededSampler):
        front = sampler
        index_sampler = sampler.inner if index_sampler is sampler else index_sampler
        sampler = sampler.inner
    batches = batch_size is None and index_sampler is not sampler and index_sampler is not None
    return SeededOrder(
        index_sampler if batches else sampler,
        describe,
        batches=batches,
        batch_size=batch_size,
        drop_last=drop_last,
        seed=seed,
        shard=shard,
        front=front,
        told=told,
        balance=balance,
    )


def _cuts_a_sampler(kind: type) -> bool:
    return kind is BatchSampler or kind.__module__ == "torch.utils.data.sampler"

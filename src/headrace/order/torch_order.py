"""torch's order: samplers draw as they do in torch. To go on in the middle, they draw again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from headrace.base.errors import StateError, warn_user
from headrace.base.generators import GENERATORS
from headrace.base.messages import PackedIndices
from headrace.base.plan import Plan
from headrace.base.provenance import origins_of_keys
from headrace.base.schema import MOST, anything, count, flag, items, maybe, positive, record, refuse, variants, whole
from headrace.base.state import (
    check_equal,
    load_generator,
    load_generators,
    parse_generators,
    parse_own_generators,
    save_generator,
    save_generators,
)
from headrace.order.key_plan import KeyPlan, is_settled, plan_keys
from headrace.order.sampler_states import check_states, load_states, parts_of, states_of
from headrace.order.schedule import Schedule
from headrace.order.worker_states import KEPT, TOLD, Told, check_told

_END = object()
_SNAPSHOT = record({"global": parse_generators, "own": items(anything)})
_REPLAY = record(
    {
        "at_iter": maybe(_SNAPSHOT),
        "at_first": _SNAPSHOT,
        "epochs": items(maybe(count)),
        "samplers": items(anything),
        "given": count,
        "drawn": count,
        "has_ended": flag,
    }
)


_COURSE = variants(
    {
        "replay": record({"described": anything, "replay": _REPLAY, "ahead": items(positive)}, TOLD),
        "seek": record({"described": anything, "seek": count}),
    },
    record(
        {
            "described": anything,
            "generators": items(anything),
            "epochs": items(maybe(count)),
            "samplers": items(anything),
        },
        KEPT,
    ),
)


class TorchOrder(Schedule):
    """The keys that a sampler or batch sampler yields.

    A sampler with `state_dict` and `load_state_dict` is asked for its state after each batch. Of others, it is noted
    which random numbers they found; they find the same again, and what they drew before is drawn and left out.

    Args:
        index_sampler: what is iterated in each epoch.
        generator: of the user's, that it may draw from, besides those that samplers have themselves.
        describe: tells what a saved place must agree with.
        told: what workers tell of themselves.
    """

    kind = "a dataset by key, in torch's order"

    def __init__(
        self,
        index_sampler: Any,
        generator: Any,
        describe: Callable[[], dict[str, Any]],
        *,
        batched: bool = True,
        told: Told | None = None,
    ) -> None:
        self._told_by = told or Told()
        self._index_sampler = index_sampler
        self._batched = batched
        self._parts = parts_of(index_sampler)
        own = [generator, *(getattr(part, "generator", None) for part in self._parts)]
        self._generators = list({id(generator): generator for generator in own if generator is not None}.values())
        self._describe = describe
        sampler: Any = index_sampler if hasattr(index_sampler, "num_replicas") else self._sampler_of(index_sampler)
        if hasattr(sampler, "num_replicas"):  # it deals out the samples itself
            self.rank = sampler.rank, sampler.num_replicas

    @staticmethod
    def _sampler_of(index_sampler: Any) -> Any:
        return getattr(index_sampler, "sampler", None)

    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> KeyPlan:
        keys = FollowedKeys(self, start) if start.get("replay") is None else self._replay(start)
        plan = KeyPlan(
            keys,
            epoch,
            start,
            batches=batches,
            batched=self._batched,
            position=self._position_of,
            snapshot_every=self._told_by.snapshot_every,
        )
        keys.follow(plan)
        return plan

    def restore(self, start: Mapping[str, Any]) -> None:
        for generator, saved in zip(self._generators, start.get("generators", ()), strict=False):
            load_generator(generator, saved)
        self._set_epochs(start.get("epochs", ()))
        load_states(self._parts, start.get("samplers", ()))

    def _replay(self, start: Mapping[str, Any]) -> FollowedKeys:
        """Draw what was drawn, for the eyes of the sampler only: the global generators are left as they are now."""
        replay = start["replay"]
        given, ahead = replay["given"], {replay["given"] + number for number in start.get("ahead", ())}
        live = save_generators()
        try:
            self._set_generators(replay["at_iter"] or replay["at_first"])
            self._set_epochs(replay["epochs"])
            load_states(self._parts, replay["samplers"])
            if self._has_given_all(replay):
                self._end(replay["samplers"])
                return FollowedKeys(self, start, known=replay, keys=iter(()))
            keys = FollowedKeys(self, start, known=replay)
            self._set_generators(replay["at_first"])
            if any(state is not None for state in replay["samplers"]):
                keys.drawn = given
                n_pending = max(ahead, default=given - 1) + 1 - given
            else:
                self._skip(keys, given)
                n_pending = replay["drawn"] - given
            if not replay["drawn"] and live != replay["at_first"]["global"]:
                n_pending = 1  # what decides the order is drawn with the first key, and must be what the state says
            drawn = list(islice(keys, n_pending + replay["has_ended"]))  # a last batch that is dropped is drawn, too
            keys.pending = iter([key for i, key in enumerate(drawn, given) if i not in ahead])
            return keys
        finally:
            load_generators(live)

    @staticmethod
    def _skip(keys: Iterator[Any], given: int) -> None:
        n = sum(1 for _ in islice(keys, given))
        if n < given:
            raise StateError(
                f"The state was taken after {given} batches, and the sampler ends after {n} now. Start the epoch anew, "
                "without the state."
            )

    def _end(self, states: list[Any]) -> None:
        """Let samplers find that their epoch is over, as it would have gone on, unless they tell of the next one."""
        keys = self.iterate()
        if next(keys, _END) is not _END:
            del keys  # a generator that is given up may still write to its sampler
            load_states(self._parts, states)

    def _set_generators(self, saved: Mapping[str, Any]) -> None:
        load_generators(saved["global"])
        for generator, state in zip(self._generators, saved["own"], strict=True):
            load_generator(generator, state)

    def _set_epochs(self, epochs: Any) -> None:
        for part, epoch in zip(self._parts, epochs, strict=False):
            if epoch is not None:
                part.set_epoch(epoch)

    def _has_given_all(self, replay: Mapping[str, Any]) -> bool:
        """Whether the epoch has nothing left; a sampler that knows its state may tell that of the next one by then."""
        try:
            return bool(replay["samplers"]) and replay["given"] >= len(self._index_sampler)
        except TypeError:
            return bool(replay["has_ended"]) and replay["given"] == replay["drawn"]

    def sampler_states(self) -> list[Any]:
        """What the samplers tell of themselves; None for those that know no state."""
        return states_of(self._parts)

    def snapshot(self) -> dict[str, Any]:
        """The generators that a sampler may draw from, as they are now."""
        return {"global": save_generators(), "own": self._own_generators()}

    def _own_generators(self) -> list[Any]:
        return [save_generator(generator) for generator in self._generators]

    def epochs(self) -> list[int | None]:
        """The epochs that samplers were told, where they were."""
        return [
            part.epoch if hasattr(part, "set_epoch") and isinstance(getattr(part, "epoch", None), int) else None
            for part in self._parts
        ]

    def edge(self) -> dict[str, Any]:
        return {
            "described": self._describe(),
            "generators": self._own_generators(),
            "epochs": self.epochs(),
            "samplers": self.sampler_states(),
        }

    def _position_of(self, plan: KeyPlan) -> dict[str, Any]:
        ahead = sorted(number - plan.batches for number in plan.ahead)
        keys: Any = plan.source
        return {"described": self._describe(), "replay": keys.replay(plan.batches), "ahead": ahead}

    def parse(self, course: Any) -> Any:
        return _COURSE(course, "course")

    def check(self, state: Mapping[str, Any], *, is_edge: bool) -> None:
        start, batches = state["course"], state["batches"]
        check_equal(start["described"], self._describe())
        check_told(start, self._told_by)
        if "seek" in start:
            whole(batches, batches)(start["seek"], "course.seek")
        elif "replay" in start:
            self._check_replay(start["replay"], batches)
        elif is_edge:
            parse_own_generators(start["generators"], self._generators, "course.generators")
            self._check_samplers(start)
        else:
            refuse("course", "a mapping with replay", start)

    def _check_replay(self, replay: Mapping[str, Any], batches: int) -> None:
        most = len(self._index_sampler) if self.is_settled else MOST
        whole(batches, batches)(replay["given"], "course.replay.given")
        whole(batches, most)(replay["drawn"], "course.replay.drawn")
        for name in ("at_iter", "at_first"):
            if replay[name] is not None:
                parse_own_generators(replay[name]["own"], self._generators, f"course.replay.{name}.own")
        self._check_samplers(replay)

    def _check_samplers(self, saved: Mapping[str, Any]) -> None:
        check_states(self._parts, saved["samplers"])
        items(anything, len(self._parts))(saved["epochs"], "epochs")
        for part, epoch in zip(self._parts, saved["epochs"], strict=True):
            if epoch is not None and not hasattr(part, "set_epoch"):
                refuse("epochs", f"None for {type(part).__name__}, which has no set_epoch", saved["epochs"])

    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        return {"described": self._describe(), "seek": batch}

    def origins(self, epoch: int, start: Mapping[str, Any], ahead: int, plan: Plan | None, *, read: bool) -> Any:
        """Of the latest epoch, whose draws are known; of samplers that draw nothing, of any."""
        batch = ahead + (0 if plan is None or not start else plan.first)
        live, own, epochs = save_generators(), self._own_generators(), self.epochs()
        try:
            if not _draws_nothing(self._index_sampler):
                self._go_back(plan)
            key = next(islice(self.iterate(), batch, None), _END)
        finally:
            self._set_generators({"global": live, "own": own})
            self._set_epochs(epochs)
        if key is _END:
            raise IndexError("The epoch has no such batch: it ends before.")
        keys: Any = key.array.tolist() if isinstance(key, PackedIndices) else key
        return origins_of_keys(keys if self._batched else [keys])

    def _go_back(self, plan: Plan | None) -> None:
        """Set all generators as they were when the epoch began."""
        keys: Any = getattr(plan, "source", None)
        known = None if keys is None or plan is None else keys.replay(plan.batches)
        if known is None or "seek" in plan.start:  # type: ignore[union-attr]
            raise ValueError(
                "Without seed=, the order of an epoch is drawn when it begins: only batches of the latest epoch are "
                "known. Pass seed= to know those of all epochs."
            )
        if known["samplers"] or known["at_iter"] is not None:
            raise ValueError("Where batches come from is not known with a sampler that has a state. Pass seed=.")
        self._set_generators(known["at_first"])
        self._set_epochs(known["epochs"])

    def n_batches(self, epoch: int) -> int:
        return len(self._index_sampler)

    def expected(self, plan: Plan) -> Any:
        from headrace.order.expected import KnownKeys, settled_keys

        keys = settled_keys(self._index_sampler)
        return None if keys is None else KnownKeys(keys, starts=plan.began_at == 0)

    def iterate(self) -> Iterator[Any]:
        """A new iteration over the sampler."""
        return plan_keys(self._index_sampler)

    @property
    def is_settled(self) -> bool:
        """Whether all draws of an epoch are done with its first key."""
        return is_settled(self._index_sampler)


def _draws_nothing(index_sampler: Any) -> bool:
    """Whether a sampler yields the same in every epoch."""
    if type(index_sampler).__name__ == "BatchSampler":
        index_sampler = index_sampler.sampler
    known = ("headrace.order.samplers", "torch.utils.data.sampler")
    return type(index_sampler).__name__ == "SequentialSampler" and type(index_sampler).__module__ in known


class FollowedKeys:
    """The keys of one epoch, and what is needed to draw them again.

    Args:
        known: what was noted of the epoch when it began, before it was resumed.
        keys: instead of those of the sampler.
    """

    def __init__(
        self,
        order: TorchOrder,
        start: Mapping[str, Any],
        known: Mapping[str, Any] | None = None,
        keys: Iterator[Any] | None = None,
    ) -> None:
        self._order = order
        self._plan: weakref.ref[KeyPlan] | None = None
        self._epochs = order.epochs() if known is None else known["epochs"]
        before = order.snapshot()
        self._keys = order.iterate() if keys is None else keys
        self._to_skip = start.get("seek", 0)
        # Most samplers draw nothing before the first key is asked for.
        self._at_iter = (before if before != order.snapshot() else None) if known is None else known["at_iter"]
        self._at_first = None if known is None else known["at_first"]
        self.pending: Iterator[Any] = iter(())
        self.drawn = 0
        self._has_ended = False
        states = order.sampler_states()
        self._states: deque[tuple[int, list[Any]]] | None = None
        if any(state is not None for state in states):
            self._states = deque([(0 if known is None else known["given"], states)])
        self._watch = None if order.is_settled or self._states is not None else _DrawWatch()

    def follow(self, plan: KeyPlan) -> None:
        """Know how far the plan has come that asks for these keys."""
        self._plan = weakref.ref(plan)  # which has these keys: a cycle would keep the dataset alive

    def __iter__(self) -> FollowedKeys:
        return self

    def __next__(self) -> Any:
        for key in self.pending:
            return key
        while self._to_skip:
            self._to_skip -= 1
            self._draw()
        return self._draw()

    def _draw(self) -> Any:
        if self._at_first is None:
            self._at_first = self._order.snapshot()
        try:
            key = next(self._keys) if self._watch is None else self._watch.follow(self._keys)
        except StopIteration:
            self._has_ended = True
            raise
        self.drawn += 1
        if self._states is not None:
            self._states.append((self.drawn, self._order.sampler_states()))
            plan = None if self._plan is None else self._plan()
            while len(self._states) > 1 and plan is not None and self._states[0][0] < plan.batches:
                self._states.popleft()  # nobody will ask for it
        return key

    def replay(self, given: int) -> dict[str, Any]:
        """What brings the drawing to where so many batches were given."""
        if self._watch is not None:
            self._watch.tell()
        return {
            "at_iter": self._at_iter,
            "at_first": self._order.snapshot() if self._at_first is None else self._at_first,
            "epochs": self._epochs,
            "samplers": self._states_at(given),
            "given": given,
            "drawn": max(self.drawn, given),
            "has_ended": self._has_ended,
        }

    def _states_at(self, batch: int) -> list[Any]:
        if self._states is None:
            return []
        return next(states for drawn, states in self._states if drawn == batch)


class _DrawWatch:
    """Finds out if a sampler draws as it goes from generators that others use, too: then it cannot be replayed."""

    def __init__(self) -> None:
        self._left: list[Any] | None = None
        self._is_disturbed = False
        self._has_told = False

    def follow(self, keys: Iterator[Any]) -> Any:
        found = [generator.glance() for generator in GENERATORS]
        key = next(keys)
        left = [generator.glance() for generator in GENERATORS]
        if self._left is not None:
            trios = zip(self._left, found, left, strict=True)
            self._is_disturbed |= any(before != then and then != after for before, then, after in trios)
        self._left = left
        return key

    def tell(self) -> None:
        if self._is_disturbed and not self._has_told:
            self._has_told = True
            warn_user(
                "The sampler draws random numbers as it goes, from a generator that others draw from in between: a "
                "state cannot bring it back to the same place. Pass seed=, or give the sampler state_dict() and "
                "load_state_dict(), or a generator of its own."
            )

"""The epochs of a stream: where a rank begins and goes on, how many batches it gives, and what its state says."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.base.errors import StateError, WarnOnce
from headrace.base.schema import anything, count, each, items, number, positive, record, refuse, variants, whole
from headrace.base.state import check_equal
from headrace.order.samplers import EpochChoice
from headrace.order.schedule import Schedule
from headrace.order.seeded_order import is_running
from headrace.streams.audited import ExpectedRows
from headrace.streams.counts import RowCounts
from headrace.streams.fetch import StreamJob
from headrace.streams.origins import Origins, rows_after
from headrace.streams.plan import StreamPlan
from headrace.streams.rank_split import Item, Pool, left_over
from headrace.streams.rank_windows import Loading, RankWindows, UnknownCountError, refuse_to_count
from headrace.streams.state_signature import (
    check_described,
    describe,
    has_other_weights,
    parse_described,
    saved_weights,
)
from headrace.streams.windows import Share

_MANY = 0.1  # of the rows of a rank
_MANY_ROWS = 100
_PLACE = each(count, count)
_SHARD = each(count, whole(1, 2**16))  # the deals of all ranks are compared, where their number changes
_POOL = record({"left": items(each(count, count, positive, count)), "frontier": count})
_REWEIGHED = record({"since": count, "before": items(each(count, items(number)))})
_LIVE = record({"positions": record({}, others=anything), "row": count, "rows": count, "epoch": count})
_DISPATCHED = record({"row": count}, {"dataset": anything, "iterator": anything})


_COURSE = variants(
    {
        "discard": record({"described": parse_described, "discard": count}),
        "place": record(
            {"described": parse_described, "shard": _SHARD, "place": _PLACE},
            {"stretch": _PLACE, "pool": _POOL, "iterator": _DISPATCHED, "reweighed": _REWEIGHED, "live": _LIVE},
        ),
    },
    record({"described": parse_described, "shard": _SHARD}),
)


class StreamSchedule(Schedule):
    """The windows of one rank, epoch by epoch.

    Args:
        size: rows in a batch.
        front: what trainers see as the sampler.
    """

    kind = "a stream"

    def __init__(self, loading: Loading, size: int, front: EpochChoice | None = None) -> None:
        self.loading = loading
        self.front = front
        self.rank = loading.shard.rank, loading.shard.world
        self.shares_seed = loading.shard.world > 1  # ranks must agree how many rows there are
        self._size = size
        self.counts = RowCounts(loading.recipe, skips=loading.skips)
        self._live = loading.open_live()
        self._warn_of_files = WarnOnce()
        self._warn_of_drops = WarnOnce()

    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> StreamPlan:
        if workers:
            self.loading.recipe.look()
        if self._live is not None:
            start = self._live.begin(start, workers)
        index, _ = start.get("place", (0, 0))
        loading = self._loading_of(start)
        shares = RankWindows(loading, self.counts, epoch, _pool_of(start), index, self._live)
        shares.on_dropped = self._tell_dropped
        if shares.dispatcher is not None and start.get("iterator") is not None:
            shares.dispatcher.go_to(start["iterator"])
        plan = StreamPlan(
            shares,
            loading,
            epoch,
            start,
            size=self._size,
            batches=batches,
            known_rows=self.counts.known if self.loading.tells_rows else None,
            note_rows=self.counts.note if self._live is None else self._live.note_rows,
            locate=partial(self._position_of, start, shares),
        )
        if self.front is not None:
            self.front.follow(epoch, partial(is_running, weakref.ref(plan)))
        return plan

    def chosen_epoch(self) -> int | None:
        return None if self.front is None else self.front.take_choice()

    def _loading_of(self, start: Mapping[str, Any]) -> Loading:
        """How the epoch is loaded that a position is of: its mix may have begun with other weights."""
        reweighed = start.get("reweighed")
        if reweighed is None:
            return self.loading
        source = self.loading.recipe.source
        source = source.with_weights(source.weights.after(reweighed["before"], reweighed["since"]))
        return replace(self.loading, recipe=replace(self.loading.recipe, source=source))

    def reader(self, config: Any) -> StreamJob:
        recipe = self.loading.recipe
        recipe = replace(recipe, draws_in_collate=config.may_draw_in_collate or bool(recipe.packed_steps))
        cuts_later = (
            config.collates_by_default
            and recipe.as_columns
            and recipe.tells_rows
            and config.batch_size is not None
            and not config.skips
            and not config.is_moved  # ahead of the loop, so it must be made ahead
        )
        return StreamJob(recipe, config.batched, cuts_later)

    def expected(self, plan: Any) -> ExpectedRows | None:
        return None if self._live is not None else ExpectedRows(plan.shares, self.loading, plan.start)

    def _tell_dropped(self, n_dropped: int, n_given: int) -> None:
        if n_dropped >= max(_MANY_ROWS, _MANY * (n_given + n_dropped)):
            self._warn_of_drops(
                f"To make ranks even, rank {self.loading.shard.rank} leaves out {n_dropped:,} rows or more, and gives "
                f"{n_given:,}: others have no more, since windows have very different numbers of rows. Pass "
                'even="pad", or a smaller block_bytes for more and smaller windows.'
            )

    def n_batches(self, epoch: int) -> int:
        """How many batches this rank gives.

        Raises:
            TypeError: it is not known without reading, or there is no end.
        """
        shares, loading = self._unread(epoch), self.loading
        try:
            if shares.windows.n_windows is None:
                raise UnknownCountError
            n_rows = sum(shares.count(list(shares.even(loading.shard.rank))))
        except UnknownCountError:
            raise TypeError(
                "The number of rows of this stream is not known without reading it: count() does that."
            ) from None
        packing = loading.recipe.packing
        if packing is not None and packing.drops_rest:
            n_rows -= n_rows % packing.length
        return n_rows // loading.batch_rows if loading.drop_last else -(-n_rows // loading.batch_rows)

    def edge(self) -> dict[str, Any]:
        edge = {"described": self._described(), "shard": list(self.rank)}
        return edge if self._live is None else {**edge, **self._live.state_after()}

    def restore(self, start: Mapping[str, Any]) -> None:
        if self._live is not None:
            self._live.go_to(start)

    def commit(self, course: Mapping[str, Any]) -> None:
        if self._live is not None and "live" in course:
            self._live.commit(course["live"])

    def close(self) -> None:
        if self._live is not None:
            self._live.close()

    def _position_of(
        self, start: Mapping[str, Any], shares: RankWindows, place: tuple[int, int] | None, stretch: Any = None
    ) -> dict[str, Any]:
        saved = self.edge()
        if place is None:
            return saved
        if self._live is not None:
            return {**saved, **self._live.state_after(place)}
        saved["place"] = list(place)
        if stretch is not None:
            saved["stretch"] = list(stretch)  # where reading begins
        saved.update({name: start[name] for name in ("pool", "reweighed") if name in start})
        state = None if shares.dispatcher is None else shares.dispatcher.state_at(place[0])
        return saved if state is None else {**saved, "iterator": state}

    def _described(self) -> dict[str, Any]:
        return {"seed": self.loading.seed, "skips": self.loading.skips, **describe(self.loading.recipe)}

    def parse(self, course: Any) -> Any:
        return _COURSE(course, "course")

    def check(self, state: Mapping[str, Any], *, is_edge: bool) -> None:
        start, batches = state["course"], state["batches"]
        own = self._described()
        check_described(start["described"], own, self._warn_of_files)
        if "place" not in start and "discard" in start and has_other_weights(start["described"], own):
            check_equal({"weights": saved_weights(start["described"])}, {"weights": saved_weights(own)})
        if "place" not in start:
            if batches:
                refuse("course", "a mapping with place", start)
            return
        if not batches and "live" not in start and (start["place"] != [0, 0] or "pool" in start):
            refuse("batches", "at least 1 at this place", batches)
        shard = self.loading.shard
        if start["shard"] != [shard.rank, shard.world]:
            raise StateError(
                f"The state is that of rank {start['shard'][0]} of {start['shard'][1]}, and this is rank {shard.rank} "
                f"of {shard.world}. Pass the states of all ranks, as a list: then what is left is dealt anew."
            )
        self._check_places(start, state["epoch"])

    def _check_places(self, start: Mapping[str, Any], epoch: int) -> None:
        """See that there are such windows and rows, as far as that is known without reading."""
        shares, pool = self._unread(epoch, self._loading_of(start)), _pool_of(start)
        shard, (index, row) = self.loading.shard, start["place"]
        try:
            n_windows = shares.windows.n_windows
        except UnknownCountError:
            return
        if n_windows is not None and pool is not None:
            whole(0, n_windows)(pool.frontier, "course.pool.frontier")
            whole(0, n_windows - 1)(max((item.place for item in pool.left), default=0), "a place in course.pool.left")
        if n_windows is None or shard.world > 1 or pool is not None:
            return
        whole(0, n_windows)(index, "course.place[0]")
        known = self.counts.known(Share(shares.windows.window(index))) if index < n_windows else 0
        if known is not None and self.loading.tells_rows and self.loading.recipe.packing is None:
            whole(0, known)(row, "course.place[1]")

    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        """Found by arithmetic, if the numbers of rows are known."""
        shares = self._unread(epoch)
        shard, rows = self.loading.shard, batch * self.loading.batch_rows
        found = {"described": self._described(), "shard": [shard.rank, shard.world]}
        try:
            index = 0
            for index, share in enumerate(shares.even(shard.rank)):
                [n_rows] = shares.count([share])
                if rows < n_rows:
                    return {**found, "place": [index, rows]}
                rows -= n_rows
        except UnknownCountError:
            return {"described": self._described(), "discard": batch}
        return {**found, "place": [index + 1, 0]}

    def origins(self, epoch: int, start: Mapping[str, Any], ahead: int, plan: Any, *, read: bool) -> Any:
        loading = self.loading
        if loading.skips:
            raise ValueError(
                'Where batches come from is not known with on_error="skip": only reading tells which rows are left out.'
            )
        shares = RankWindows(loading, self.counts, epoch, _pool_of(start))
        if not read:
            shares.ask = refuse_to_count
        origins = Origins(loading.recipe, self.counts, shares.ask)
        n_before, size = ahead * loading.batch_rows, loading.batch_rows
        try:
            spans = list(rows_after(shares, loading.shard.rank, start.get("place", (0, 0)), n_before, size))
            found = [one for share, rows in spans for one in origins.of_share(share, rows)]
        except UnknownCountError:
            raise ValueError(
                "How many rows the parts of this stream have is not known before they are read. Pass read=True to "
                "count them now."
            ) from None
        if not found or (loading.drop_last and sum(len(rows) for _, rows in spans) < size):
            raise IndexError("The epoch has no such batch: it ends before.")
        return found

    def leads_to(self, batches: int, start: Mapping[str, Any]) -> bool:
        return "pool" not in start

    def gather(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The state of this rank; where there were more or fewer ranks, its part of what all of them have left.

        Guarantees: every row that no rank had given is given once.

        Raises:
            StateError: the states are not those of all ranks of one run, or of another stream.
        """
        shard, world = self.loading.shard, len(states)
        courses = [state["course"] for state in states]
        known = ([0, 1], [shard.rank, shard.world], None)
        if world == 1 and courses[0].get("shard") not in known:
            return self._of_other_rank(states[0])
        if world == 1 and courses[0].get("shard") != [0, 1]:
            return states[0] if not self._is_reweighed(courses) else self._of_other_rank(states[0])
        if self._live is not None and world != shard.world:
            raise StateError(
                f"A live stream resumes on as many ranks as before: the states are those of {world}, and there are "
                f"{shard.world}. Restart with {world}; or begin without states, where a consumer group left off."
            )
        _check_ranks(states)
        courses.sort(key=lambda course: course["shard"])
        for course in courses:
            check_described(course["described"], self._described(), self._warn_of_files)
        if self._is_reweighed(courses):
            return {**_joined(states), "course": self._reweighed(courses, states[0]["epoch"])}
        if world == shard.world:
            return next(state for state in states if state["course"]["shard"][0] == shard.rank)
        return {**_joined(states), "course": self._left_of(courses, states[0]["epoch"])}

    def _is_reweighed(self, courses: Sequence[Mapping[str, Any]]) -> bool:
        own = self._described()
        return any("place" in course and has_other_weights(course["described"], own) for course in courses)

    def _reweighed(self, courses: Sequence[Mapping[str, Any]], epoch: int) -> dict[str, Any]:
        """What the courses of all ranks have left, where the weights of a mix are others now.

        All that a rank has begun, and what lies before, stays as it was drawn; the rest is drawn with the new weights.

        Raises:
            StateError: it cannot be said from which position on.
        """
        recipe, described = self.loading.recipe, courses[0]["described"]
        before = saved_weights(described)
        if before is None or recipe.shuffle is not None or recipe.limits or recipe.rounds != 1:
            why = "they were a function" if before is None else "the mix is shuffled, limited or repeated"
            raise StateError(
                f"The state was taken with other weights of the mix, and {why}, so it is not known where the new ones "
                "begin. Load it with the weights it was taken with, and change them with the next epoch."
            )
        earlier = courses[0].get("reweighed")
        if earlier is not None:  # they have changed before, in this epoch
            since = earlier["since"]
            held = max(start for start, _ in before if start <= since)
            before = [
                *earlier["before"],
                *([since if start == held else start, given] for start, given in before if start >= held),
            ]
        old = {"before": before, "since": 2**62}
        left = self._left_of([{**course, "reweighed": old} for course in courses], epoch)
        if "pool" not in left:
            return left  # nothing was given yet
        windows = RankWindows(self._loading_of({"reweighed": old}), self.counts, epoch)
        since = windows.first_position(left["pool"]["frontier"])
        kept = [pair for pair in before if pair[0] < since] or before[:1]
        return {**left, "reweighed": {"before": kept, "since": since}}

    def _of_other_rank(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state of this rank, of that of another one which had given as many batches, as in lockstep.

        Raises:
            StateError: the places of the other ranks do not follow from it.
        """
        course, shard = state["course"], self.loading.shard
        if self._live is not None:
            raise StateError(f"The state is that of rank {course['shard'][0]}. Pass that of rank {shard.rank}.")
        check_described(course["described"], self._described(), self._warn_of_files)
        if self._is_reweighed([course]):
            raise StateError(
                "The state is that of one rank, taken with other weights of the mix. Pass the states of all ranks, as "
                "a list: only these tell from which position on the new weights hold."
            )
        own = {"described": self._described(), "shard": [shard.rank, shard.world]}
        if "place" not in course:  # the beginning of an epoch
            return {**state, "course": own}
        rank, world = course["shard"]
        if not 0 <= rank < world or "iterator" in course or self.loading.skips:
            raise StateError(
                f"The state is that of rank {rank} of {world}, and those of others do not follow from it, since "
                f"{'rows may be left out' if self.loading.skips else 'an iterable knows its own place only'}. Pass the "
                "states of all ranks, as a list."
            )
        pool = {name: course[name] for name in ("pool", "reweighed") if name in course}
        given = self._rows_before(course, rank, world, state["epoch"])
        if shard.even == "allow" and given % self.loading.batch_rows:
            raise StateError(
                f"The state is that of rank {rank} of {world}, which has no rows left, and others may have. Pass the "
                "states of all ranks, as a list."
            )
        courses = []
        for other in range(world):
            place = course["place"] if other == rank else self._place_after(given, pool, other, world, state["epoch"])
            courses.append({"described": own["described"], "shard": [other, world], "place": list(place), **pool})
        if world == shard.world:
            return {**state, "course": courses[shard.rank]}
        return {**state, "course": self._left_of(courses, state["epoch"])}

    def _shares_of(self, pool: Mapping[str, Any], rank: int, world: int, epoch: int) -> Iterator[tuple[int, int]]:
        """The numbers of the shares of a rank and how many rows they have, which are counted if nobody knows."""
        shard = replace(self.loading.shard, rank=rank, world=world)
        shares = RankWindows(replace(self._loading_of(pool), shard=shard), self.counts, epoch, _pool_of(pool))
        for index, share in enumerate(shares.even(rank)):
            [n_rows] = shares.count([share])
            yield index, n_rows

    def _rows_before(self, course: Mapping[str, Any], rank: int, world: int, epoch: int) -> int:
        """How many rows a rank had given."""
        at, row = course["place"]
        given = 0
        for index, n_rows in self._shares_of(course, rank, world, epoch):
            if index >= at:
                break
            given += n_rows
        return given + int(row)

    def _place_after(self, rows: int, pool: Mapping[str, Any], rank: int, world: int, epoch: int) -> tuple[int, int]:
        """Where a rank is that has given so many rows."""
        index = -1
        for index, n_rows in self._shares_of(pool, rank, world, epoch):
            if rows < n_rows:
                return index, rows
            rows -= n_rows
        return index + 1, 0

    def _left_of(self, courses: Sequence[Mapping[str, Any]], epoch: int) -> dict[str, Any]:
        """What the courses of all ranks have left."""
        shard, world = self.loading.shard, len(courses)
        left = {"described": self._described(), "shard": [shard.rank, shard.world]}
        places = [course.get("place", [0, 0]) for course in courses]
        if places == [[0, 0]] * world and "pool" not in courses[0]:
            return left
        loading = replace(self._loading_of(courses[0]), shard=replace(shard, rank=0, world=world))
        if "reweighed" in courses[0]:
            left["reweighed"] = courses[0]["reweighed"]
        pool = _pool_of(courses[0]) or Pool()
        shares = RankWindows(loading, self.counts, epoch, pool)
        rest = left_over(pool, [shares.deal(rank) for rank in range(world)], places)
        return {**left, "place": [0, 0], "pool": {"left": list(map(list, rest.left)), "frontier": rest.frontier}}

    def _unread(self, epoch: int, loading: Loading | None = None) -> RankWindows:
        """The shares of an epoch, for somebody who must not read."""
        shares = RankWindows(loading or self.loading, self.counts, epoch)
        shares.ask = refuse_to_count
        return shares


def _pool_of(start: Mapping[str, Any]) -> Pool | None:
    pool = start.get("pool")
    return None if pool is None else Pool(tuple(Item(*item) for item in pool["left"]), pool["frontier"])


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks as one, but for their courses."""
    return {
        **states[0],
        "errors": sum(state["errors"] for state in states),
        "batches": max(state["batches"] for state in states),
    }


def _check_ranks(states: Sequence[Mapping[str, Any]]) -> None:
    ranks = sorted(state["course"].get("shard", []) for state in states)
    if ranks != [[rank, len(states)] for rank in range(len(states))]:
        raise StateError(f"There must be one state of each rank, got those of [rank, number of ranks] {ranks}.")
    if len({state["epoch"] for state in states}) > 1:
        raise StateError(f"The ranks are in different epochs: {[state['epoch'] for state in states]}.")
    if any(state["course"].get("pool") != states[0]["course"].get("pool") for state in states):
        raise StateError("The states are of different runs: what was left to be dealt differs.")

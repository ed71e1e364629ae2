"""The epochs of a loader: starts them, one after the other or in the middle, and saves how far they have come."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from headrace.base.errors import StateError, warn_user
from headrace.base.generators import derive_key
from headrace.base.messages import BadSample
from headrace.base.optional import loaded
from headrace.base.plan import Plan
from headrace.base.provenance import Provenance
from headrace.base.state import VERSION, check_seal, parse_header, seal
from headrace.config import LoaderConfig, Reports
from headrace.data.dataset import is_datapipe
from headrace.deliver.agreeing import AgreedBatches, Agreement, leave
from headrace.deliver.device import DEPTH, plan_delivery
from headrace.deliver.iterator import EpochBatches, LoaderIterator, PromisedLength
from headrace.deliver.pinning import pin_function
from headrace.deliver.quarantine import Quarantine
from headrace.deliver.skipped import SkippedSamples
from headrace.engines.duplicates import DuplicateWatch
from headrace.engines.engine import Engine, Job
from headrace.engines.worker import loop_workplace
from headrace.flow import Account, Flow
from headrace.frameworks.framework import random_source
from headrace.order.schedule import Schedule
from headrace.order.shard import find_rank
from headrace.preparing import PreparingEngine

_SEED_BITS = 2**63 - 1


@dataclass
class _Running:
    """Persistent workers, and the one iterator that they have."""

    iterator: LoaderIterator
    engine: Engine
    flow: Flow
    duplicates: DuplicateWatch | None
    finish: Callable[[Any], Any] | None


class Orders(Protocol):
    """Makes the schedule of a loader."""

    def ranks(self) -> Any:
        """What the schedule depends on that may not be known when the loader is made."""

    def schedule(self) -> Schedule:
        """With the ranks as they are known by now."""

    def check_ranks(self, rank: tuple[int, int]) -> None:
        """Warn of an epoch that begins on several ranks, if each of them gets all of it."""


class Epochs:
    """The epochs of one loader.

    It does not hold the loader, so that both are gone as soon as nobody uses them.

    Args:
        orders: makes the schedule, as far as ranks are known.

    Attributes:
        next: the number of the next epoch.
        reports: hears of what is seen on the way.
    """

    def __init__(self, orders: Orders, reports: Reports) -> None:
        self._orders = orders
        self._ranks = orders.ranks()
        self._schedule = orders.schedule()
        self._has_begun = False
        self.reports = reports
        self.next = 0
        self._latest: Plan | None = None
        self._opened: weakref.ref[LoaderIterator] | None = None  # the latest iterator
        self._loaded: dict[str, Any] | None = None
        self._running: _Running | None = None
        self._errors_before = 0
        self._skips: dict[int, list[tuple[int, int]]] = {}  # ranges of batches of epochs
        self._job: Job | None = None  # of the latest workers
        self._agreement: Agreement | None = None  # of all ranks

    @property
    def schedule(self) -> Schedule:
        """Makes the plans of the epochs. Until the first one begins, ranks may become known, or others."""
        if not self._has_begun and self._orders.ranks() != self._ranks:
            self._ranks, self._schedule = self._orders.ranks(), self._orders.schedule()
        return self._schedule

    def count_next(self) -> int:
        """How many batches the next epoch has."""
        return self.schedule.n_batches(self.next)

    def _hear(self) -> None:
        """Trainers choose epochs at the sampler."""
        chosen = self.schedule.chosen_epoch()
        if chosen is not None and chosen != self.next:
            self.set_next(chosen)

    @property
    def number(self) -> int:
        """Of the epoch that is running, or else of the next."""
        plan = self._current
        if plan is None or plan.is_over:
            self._hear()
        return self.next if plan is None or plan.is_over else plan.epoch

    @property
    def _current(self) -> Plan | None:
        """The latest epoch, unless there is an iterator that waits to begin the next."""
        return self._latest if self._waiting is None else None

    @property
    def _waiting(self) -> LoaderIterator | None:
        iterator = None if self._opened is None else self._opened()
        return iterator if iterator is not None and iterator.is_waiting else None

    def set_next(self, epoch: int) -> None:
        """Choose the next epoch. One that a loaded state is in the middle of goes on there."""
        if self._loaded is None or self._loaded["epoch"] != epoch:
            self._loaded = self._latest = None
        self.next = epoch

    def save(self) -> dict[str, Any]:
        """Where the latest epoch is; after its end, at the beginning of the next.

        An iterator that waits, and would draw its order from generators that may be others by the time the state is
        loaded, begins now: so the order is in the state.
        """
        waiting = self._waiting
        if waiting is not None and waiting.draws:
            waiting.begin_now()
        if self._current is None or self._current.is_over:  # one that runs is not given up
            self._hear()
        if self._loaded is not None:
            return seal({**deepcopy(self._loaded), **self._saved_skips()})
        plan = self._current
        if plan is not None:
            plan.catch_up()
        is_edge = plan is None or plan.is_over
        course = self._edge() if plan is None or is_edge else plan.position()
        state = {
            "headrace": VERSION,
            "kind": self.schedule.kind,
            "epoch": self.next if plan is None else plan.epoch + plan.is_over,
            "batches": 0 if plan is None or is_edge else plan.batches - course.get("discard", 0),
            "errors": self._errors_before + len(self.reports.errors),
            "base_seed": 0 if plan is None else plan.base_seed,
            "shared_seed": None if plan is None else plan.shared_seed,
            "course": deepcopy(course),
        }
        return seal(state | self._saved_skips())

    def _saved_skips(self) -> dict[str, Any]:
        ranges = [[epoch, first, end] for epoch in sorted(self._skips) for first, end in self._skips[epoch]]
        return {"skips": ranges} if ranges else {}

    def _edge(self) -> dict[str, Any]:
        """The position between two epochs. Persistent workers, and the loop's process, keep their datasets."""
        plan, edge = self._current, self.schedule.edge()
        if plan is None or (plan.workers and self._running is None):
            return edge
        lasting = plan.lasting()
        return {**edge, "kept": lasting} if lasting else edge

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next epoch begin where a state was taken, or the states of all ranks.

        Raises:
            StateError: it is no state, or it does not fit.
        """
        states: list[Any] = list(state) if isinstance(state, (list, tuple)) else [state]
        try:
            parsed = self.schedule.gather([self._parse(one) for one in states or [state]])
            self.schedule.check(parsed, is_edge=_is_edge(parsed))
            self._loaded = {**deepcopy(dict(parsed)), "kind": self.schedule.kind}
        except RecursionError:
            raise StateError("The state is damaged: it is nested without end. Pass what state_dict() gave.") from None
        self.next, self._errors_before = parsed["epoch"], parsed["errors"]
        self._skips = {}
        for epoch, first, end in parsed.get("skips", ()):
            self._skips.setdefault(epoch, []).append((first, end))
        self._latest = None
        self.stop_running()
        self.reports.errors.clear()  # the state counts those that it had

    def _parse(self, state: Any) -> dict[str, Any]:
        """A state as its schema says that it must be.

        Raises:
            StateError: it is not, or it was altered.
        """
        header = parse_header(self.schedule.upgrade(state), self.schedule.kind)
        header["course"] = self.schedule.parse(header["course"])
        check_seal(header)
        return header

    def commit(self, state: Mapping[str, Any] | None) -> None:
        """Acknowledge what a state covers; without one, what the loop has been given."""
        parsed = self._parse(self.save() if state is None else state)
        self.schedule.check(parsed, is_edge=_is_edge(parsed))
        self.schedule.commit(parsed["course"])

    def seek(self, batch: int) -> None:
        """Let the next epoch begin before batch number `batch`."""
        course = self.schedule.seek(self.next, batch)
        self._loaded = {
            "headrace": VERSION,
            "kind": self.schedule.kind,
            "epoch": self.next,
            "batches": 0 if "discard" in course else batch,  # what is discarded is counted on the way
            "errors": self._errors_before,
            "base_seed": None,  # to be drawn, as at the beginning of an epoch
            "shared_seed": None,
            "course": course,
        }
        self._latest = None
        self.stop_running()

    def skip(self, first: int, end: int, epoch: int | None) -> None:
        """Leave out the batches from number `first` up to `end`, of an epoch.

        Raises:
            ValueError: there are none, or some of them were given already.
        """
        epoch = self.number if epoch is None else epoch
        given = self._given_of(epoch)
        if end <= first:
            raise ValueError(f"end must be greater than first, got {first} and {end}.")
        if given is None or first < given:
            shown = "is over" if given is None else f"has given {given} batches"
            raise ValueError(f"first must be the number of a batch to come, got {first}: epoch {epoch} {shown}.")
        self._skips.setdefault(epoch, []).append((first, end))
        plan = self._current
        if plan is not None and plan.epoch == epoch:
            plan.skips = tuple(self._skips[epoch])
            iterator = None if self._opened is None else self._opened()
            flow = plan.flow()
            if iterator is not None and flow is not None:
                flow.ready = None
                iterator.ask_for_each()

    def provenance(self, batch: int, epoch: int | None, *, read: bool) -> Provenance:
        """Where the samples of a batch come from."""
        epoch = self.number if epoch is None else epoch
        plan = self._latest if self._latest is not None and self._latest.epoch == epoch else None
        first, start = (0, {}) if plan is None else (plan.first, plan.start)
        if plan is None and self._loaded is not None and self._loaded["epoch"] == epoch:
            first, start = self._loaded["batches"], self._loaded["course"]
        if "discard" in start:
            first, start = 0, {}
        if batch < first and not self.schedule.leads_to(first, start):
            raise ValueError(
                f"The epoch was resumed at batch {first} with another batch size, or on another number of ranks: where "
                "batches before that come from is known to loaders with the former ones only."
            )
        course, ahead = (start, batch - first) if batch >= first else ({}, batch)
        samples = self.schedule.origins(epoch, course, ahead, plan, read=read)
        return Provenance(epoch, batch, *self.schedule.rank, tuple(samples))

    def _given_of(self, epoch: int) -> int | None:
        """How many batches an epoch has given; None if it is over."""
        plan = self._current
        if plan is not None and plan.epoch == epoch and not plan.is_over:
            plan.catch_up()
            return plan.batches
        if self._loaded is not None and self._loaded["epoch"] == epoch:
            return int(self._loaded["batches"])
        return None if epoch < self.next else 0

    def stop_running(self) -> None:
        """End persistent workers."""
        running, self._running = self._running, None
        if running is not None:
            running.flow.close()

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_latest", "_opened", "_running", "_job", "_agreement")
        return {**self.__dict__, **dict.fromkeys(gone)}

    def open(self, config: LoaderConfig) -> LoaderIterator:
        """The iterator of the next epoch, which begins as soon as its first batch is asked for.

        Persistent workers have one iterator, as in torch: it starts over.
        """
        iterator = None if self._running is None else self._running.iterator
        if iterator is None and config.persistent_workers:
            iterator = self._waiting
        if iterator is None:
            iterator = LoaderIterator()
        draws = config.seed is None and not self.schedule.shares_seed
        iterator.wait(partial(self._begin, config), self.count_next, draws=draws)
        self._opened = weakref.ref(iterator)
        return iterator

    def _begin(self, config: LoaderConfig, iterator: LoaderIterator) -> None:
        """Start the next epoch."""
        self._hear()
        self._orders.check_ranks(self.schedule.rank)
        leave(self._agreement)  # that of an epoch that was given up
        if config.agrees and self._agreement is None:
            self._agreement = _agreement_of_ranks(self.schedule.rank[1])
        self._has_begun = True
        # Where a state was taken after the last batch, the epoch is over; seeking to the end means no batches.
        was_taken = self._loaded is not None and self._loaded["base_seed"] is not None
        state, self._loaded = self._loaded, None
        lasting: Mapping[str, Any] = {}
        if state is not None and _is_edge(state):
            self.schedule.restore(state["course"])
            lasting, state = self._lasting(config, state["course"]), None
        if self._latest is not None:
            self._latest.catch_up()
        run = self.reports.recorder.begin(self.next)
        start: Mapping[str, Any] = lasting if state is None else state["course"]
        batches, shared_seed = (0, None) if state is None else (state["batches"], state.get("shared_seed"))
        plan = self._make_plan(config, start, batches, shared_seed)
        if self._running is not None:
            self._begin_next(config, plan, self._running)
        else:
            self._begin_first(config, plan, None if state is None else state["base_seed"], iterator)
        self.next += 1
        self._latest = plan = iterator.plan
        if config.promised_samples is not None:
            iterator.promise = PromisedLength(config.dataset, config.promised_samples)
        if was_taken and state is not None:
            iterator.on_empty = partial(self._begin_after, config)
        iterator.discard(start.get("discard", 0))
        if run is not None:
            if start.get("discard"):
                plan.catch_up()
                run.samples = 0
            run.ready()
            iterator.timer = run

    @staticmethod
    def _lasting(config: LoaderConfig, course: Mapping[str, Any]) -> Mapping[str, Any]:
        """What workers that keep their datasets over epochs begin with."""
        kept = course.get("kept")
        if kept is None:
            return {}
        keeps = config.num_workers == 0 or config.persistent_workers
        if keeps and kept["workers"] == config.num_workers:
            return {"states": kept["states"]}
        warn_user(
            f"The state has what {kept['workers']} persistent workers, or the loop's own process, knew of their "
            f"dataset at the end of an epoch; this loader has {config.num_workers} workers"
            f"{'' if config.persistent_workers else ' that are not persistent'}, which begin anew."
        )
        return {}

    def _begin_after(self, config: LoaderConfig, iterator: LoaderIterator) -> bool:
        """Start the epoch after one that a state was taken at the very end of; not if its rest was left out."""
        uneven = self.schedule.rank[1] > 1 and getattr(self._ranks, "even", None) == "allow" and self._agreement is None
        if self.reports.errors or uneven:  # other ranks may have some left: all are to be in the same epoch
            return False
        self._begin(config, iterator)
        return True

    def _make_plan(
        self, config: LoaderConfig, start: Mapping[str, Any], batches: int, shared_seed: int | None = None
    ) -> Plan:
        # The iterations of so many workers cannot become those of others: this epoch ends as it began.
        workers = start.get("workers", config.num_workers)
        shared_seed = _seed_datapipe(config, shared_seed) if is_datapipe(config.dataset) else None
        plan = self.schedule.begin(self.next, start, batches=batches, workers=workers)
        plan.workers, plan.shared_seed = workers, shared_seed
        plan.skips = tuple(self._skips.get(self.next, ()))
        return plan

    def _begin_first(self, config: LoaderConfig, plan: Plan, base_seed: int | None, iterator: LoaderIterator) -> None:
        pin = pin_function(config.pin_memory_device) if config.pin_memory else None
        plan.base_seed = drawn_seed = self._base_seed(config, plan, base_seed)
        if plan.replays:
            warn_user(
                f"The dataset {type(config.dataset).__name__} is iterated again up to where the state was taken, "
                "because it has no state_dict() and load_state_dict(). Give them to the dataset or to its iterator, "
                "and it can go there at once."
            )
        engine = config.make_engine(plan.workers, self.reports.on_restart)
        if hasattr(engine, "pids"):
            self.reports.recorder.follow(cast("Any", engine))
        if plan.workers > 0 and base_seed is None:
            if config.prefetch_factor == 0:
                raise AssertionError("prefetch_factor must be at least 1 with workers, got 0.")
            # torch asks twice, too: the first seed of a DataPipe counts, and the second answer of a sampler.
            shared_seed = plan.shared_seed
            plan = self._make_plan(config, plan.start, plan.batches)
            plan.base_seed, plan.shared_seed = drawn_seed, shared_seed
        reader = self.schedule.reader(config)
        timed = self.reports.recorder.is_on
        self._job = job = config.make_job(
            base_seed=plan.base_seed, shared_seed=plan.shared_seed, starts=plan.starts(), reader=reader, timed=timed
        )
        engine.start(job)
        try:
            delivery = plan_delivery(pin, config.device)  # after the start: CUDA, once initialised, does not fork
        except BaseException:
            engine.close()
            raise
        duplicates, finish = None, delivery.at_once
        if plan.workers > 0 and config.iterable:
            duplicates = DuplicateWatch(config.dataset, self.reports.warn_of_duplicates)
        if plan.workers > 0 and not plan.makes_batches:
            finish = delivery.finish
            if delivery.prepare is not None:
                moves = config.device is not None
                depth = DEPTH if moves else engine.depth
                tell, in_order = self.reports.recorder.prepared, moves and config.in_order
                engine = PreparingEngine(engine, delivery, depth, tell, in_order=in_order)
        stays = config.persistent_workers and plan.workers == config.num_workers > 0
        skipped = self._count_skips(config) if config.skips else None
        flow = self._make_flow(config, plan, engine, duplicates, skipped)
        iterator.begin(self._agreed(flow), self.schedule, skipped, stays=stays, finish=finish)
        if plan.workers > 0:
            flow.fill()
        if stays:
            self._running = _Running(iterator, engine, flow, duplicates, finish)

    def _begin_next(self, config: LoaderConfig, plan: Plan, running: _Running) -> None:
        """Let the persistent workers start over. Their iterator is the same in all epochs, as torch's is."""
        running.flow.abandon()
        running.engine.begin_epoch(plan.shared_seed)
        skipped = self._count_skips(config) if config.skips else None
        running.flow = self._make_flow(config, plan, running.engine, running.duplicates, skipped)
        running.flow.fill()
        batches = self._agreed(running.flow)
        running.iterator.begin(batches, self.schedule, skipped, stays=True, finish=running.finish)

    def _agreed(self, flow: Flow) -> EpochBatches:
        return flow if self._agreement is None else AgreedBatches(flow, self._agreement)

    def _make_flow(
        self,
        config: LoaderConfig,
        plan: Plan,
        engine: Engine,
        duplicates: DuplicateWatch | None,
        skipped: SkippedSamples | None,
    ) -> Flow:
        reports = self.reports
        if self._job is not None and self._job.reader is not None:
            plan.prepare(self._job.reader, loop_workplace(self._job, plan.spans))
        return Flow(
            plan,
            engine,
            in_order=config.in_order,
            on_bad=None if skipped is None else partial(_note_bad, reports.quarantine, skipped),
            on_first=None if duplicates is None else duplicates.tell,
            account=None if reports.audit is None else self._open_account(reports.audit, plan, config),
            run=reports.recorder.latest,
        )

    def _base_seed(self, config: LoaderConfig, plan: Plan, saved: int | None) -> int:
        if config.seed is not None or self.schedule.shares_seed:
            return derive_key(config.seed or 0, plan.epoch, "workers") & _SEED_BITS
        if saved is None:
            # Drawn in every epoch, needed or not: torch does, and its generator must be left in the same state.
            return random_source(config.generator, config.library).draw_seed()
        if plan.replays or config.saves_generators or not (plan.batches or plan.start.get("ahead")):
            return saved
        # What the workers drew until then is gone; they must not draw the same again.
        return derive_key(saved, plan.batches, "workers, gone on") & _SEED_BITS

    def _count_skips(self, config: LoaderConfig) -> SkippedSamples:
        budget = None if config.max_errors is None else config.max_errors - self._errors_before
        return SkippedSamples(self.reports.errors, budget, self.reports.warn_of_skips)

    def _open_account(self, audit: Any, plan: Plan, config: LoaderConfig) -> Account:
        from headrace.insight.audit import Part
        from headrace.order.expected import KnownKeys

        if audit.expect is None:
            expected: Any = self.schedule.expected(plan)
        else:
            expected = KnownKeys(audit.expect, starts=plan.began_at == 0)
        account: Account = audit.begin(
            plan.epoch, Part(plan.began_at, *self.schedule.rank), expected, streams=config.iterable
        )
        return account


def _note_bad(quarantine: Quarantine | None, skipped: SkippedSamples, bad: tuple[BadSample, ...]) -> None:
    if quarantine is not None:
        quarantine.note(bad)
    skipped.note(bad)


def _seed_datapipe(config: LoaderConfig, saved: int | None) -> int | None:
    from headrace.frameworks.torch_datapipes import begin_epoch

    return begin_epoch(config.dataset, config.generator, shard=config.num_workers == 0, seed=saved)


def _agreement_of_ranks(world: int) -> Agreement | None:
    """Of all ranks of `torch.distributed`; None if there is only one.

    Raises:
        RuntimeError: nobody knows how to reach the others.
    """
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        from headrace.frameworks.torch_ranks import TorchAgreement

        return TorchAgreement() if distributed.get_world_size() > 1 else None
    if max(world, find_rank()[1]) > 1:
        raise RuntimeError(
            'even="agree" needs torch.distributed, over which ranks agree: call torch.distributed.init_process_group() '
            "before the first epoch."
        )
    return None


def _is_edge(state: Mapping[str, Any]) -> bool:
    """Whether a state is of the beginning of an epoch, of which nothing was drawn yet."""
    course = state["course"]
    return not state["batches"] and not any(course.get(name) for name in ("ahead", "discard", "replay"))

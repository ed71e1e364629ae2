"""Starts the epochs of a loader, one after the other or in the middle, and tells how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.errors import StateError
from headrace.base.keys import derive_key
from headrace.base.optional import loaded
from headrace.base.progress import LaneProgress, Progress
from headrace.base.state import VERSION, check_counts
from headrace.base.warning import warn_user
from headrace.batch.collate import default_collate, default_convert, taught_types
from headrace.data.dataset import is_datapipe
from headrace.deliver.device import plan_delivery
from headrace.deliver.iterator import LoaderIterator, PromisedLength
from headrace.deliver.pinning import pin_function
from headrace.deliver.skipped import SkippedSamples
from headrace.engines.duplicates import DuplicateWatch
from headrace.engines.engine import Engine, Job
from headrace.engines.inline import InlineEngine
from headrace.engines.threads import ThreadEngine
from headrace.flow import Flow
from headrace.frameworks.framework import random_source, resolve_output
from headrace.insight.audit import Audit, EpochAccount
from headrace.insight.epoch_audit import Part
from headrace.order.course import Course
from headrace.order.expected import KnownKeys, expected_keys
from headrace.order.seeded_course import SeededCourse
from headrace.order.stream_course import StreamCourse
from headrace.preparing import PreparingEngine

if TYPE_CHECKING:
    from headrace.loader import DataLoader

_SEED_BITS = 2**63 - 1


@dataclass
class _Running:
    """Persistent workers, and the one iterator that they have."""

    iterator: LoaderIterator
    engine: Engine
    flow: Flow
    duplicates: DuplicateWatch | None


class Epochs:
    """The epochs of one loader.

    It does not hold the loader, so that both are gone as soon as nobody uses them.
    """

    def __init__(self, course: Course) -> None:
        self.course = course
        self.next = 0  # the number of the next epoch
        self.audit: Audit | None = None
        self._latest: Progress | None = None
        self._loaded: dict[str, Any] | None = None
        self._running: _Running | None = None
        self._errors_before = 0

    @property
    def number(self) -> int:
        """Of the epoch that is running, or else of the next."""
        return self.next if self._latest is None or self._latest.is_over else self._latest.epoch

    def set_next(self, epoch: int) -> None:
        """Choose the next epoch. One that a loaded state is in the middle of goes on there."""
        if self._loaded is None or self._loaded["epoch"] != epoch:
            self._loaded = self._latest = None
        self.next = epoch

    def save(self, n_errors: int) -> dict[str, Any]:
        """Where the latest epoch is; after its end, at the beginning of the next."""
        if self._loaded is not None:
            return deepcopy(self._loaded)
        progress = Progress(self.next - 1, is_over=True) if self._latest is None else self._latest
        return {
            "headrace": VERSION,
            "epoch": progress.epoch + 1 if progress.is_over else progress.epoch,
            "batches": 0 if progress.is_over else progress.batches,
            "errors": self._errors_before + n_errors,
            "base_seed": progress.base_seed,
            "shared_seed": progress.shared_seed,
            "course": deepcopy(self.course.save(progress)),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Let the next epoch begin where a state was taken.

        Raises:
            StateError: it is no state, or it does not fit.
        """
        if not isinstance(state, Mapping) or state.get("headrace") != VERSION:
            raise StateError(
                f"This is no state of a loader, of version {VERSION}: {state!r:.200}. Pass what state_dict() gave."
            )
        check_counts(state, "epoch", "batches", "errors", "base_seed")
        try:
            self.course.check(state["course"], is_edge=_is_edge(state))
        except (AttributeError, KeyError, TypeError) as error:
            raise StateError(f"The state is damaged: {error!r}. Pass what state_dict() gave.") from error
        self._loaded = deepcopy(dict(state))
        self.next, self._errors_before = state["epoch"], state["errors"]
        self._latest = None
        self.stop_running()

    def seek(self, batch: int) -> None:
        """Let the next epoch begin before batch number `batch`."""
        course = self.course.seek(batch)
        self._loaded = {
            "headrace": VERSION,
            "epoch": self.next,
            "batches": 0 if "discard" in course else batch,  # what is discarded is counted on the way
            "errors": self._errors_before,
            "base_seed": None,  # to be drawn, as at the beginning of an epoch
            "shared_seed": None,
            "course": course,
        }
        self._latest = None
        self.stop_running()

    def stop_running(self) -> None:
        """End persistent workers."""
        running, self._running = self._running, None
        if running is not None:
            running.iterator.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "audit": None, "_latest": None, "_running": None}

    def begin(self, loader: DataLoader[Any]) -> LoaderIterator:
        """Start the next epoch."""
        state, self._loaded = self._loaded, None
        if state is not None and _is_edge(state):
            self.course.restore(state["course"])
            state = None
        progress = _progress_of(self.next, state, loader)
        self.next += 1
        if self._running is not None:
            iterator = self._begin_next(loader, self._running, progress)
        else:
            iterator = self._begin_first(loader, progress, state)
        self._latest = progress
        for _ in range(progress.start.get("discard", 0)):
            next(iterator, None)
        return iterator

    def _begin_first(
        self, loader: DataLoader[Any], progress: Progress, state: Mapping[str, Any] | None
    ) -> LoaderIterator:
        pin = pin_function(loader.pin_memory_device) if loader.pin_memory else None
        goes_on = state is not None and state["base_seed"] is not None
        progress.shared_seed = _seed_datapipe(
            loader, state.get("shared_seed") if state is not None and goes_on else None
        )
        progress.keys = keys = self.course.begin(progress)
        progress.base_seed = _base_seed(loader, progress, state["base_seed"] if state is not None else None)
        engine = make_engine(loader, progress.workers)
        if progress.workers > 0 and not goes_on:
            if loader.prefetch_factor == 0:
                raise AssertionError("prefetch_factor must be at least 1 with workers, got 0.")
            # torch asks twice, too: the first seed of a DataPipe counts, and the second answer of a sampler.
            _seed_datapipe(loader)
            progress.keys = keys = self.course.begin(progress)
        starts = None
        if isinstance(self.course, StreamCourse):
            starts = self.course.starts(progress.epoch, progress.start)
        engine.start(make_job(loader, progress, starts))
        try:
            delivery = plan_delivery(pin, loader.device)  # after the start: CUDA, once initialised, does not fork
        except BaseException:
            engine.close()
            raise
        skipped = self._account_of_skips(loader)
        if progress.workers == 0:
            flow = _make_flow(loader, keys, engine, progress, None, skipped)
            return LoaderIterator(flow, _sized(loader), _promise(loader), skipped, progress, finish=delivery.at_once)
        duplicates = DuplicateWatch(loader.dataset, loader._warn_of_duplicates) if loader._iterable else None
        if delivery.prepare is not None:
            engine = PreparingEngine(engine, delivery, depth=engine.depth if loader.device is None else 2)
        flow = _make_flow(loader, keys, engine, progress, duplicates, skipped)
        flow.submit_tasks()
        stays = loader.persistent_workers and progress.workers == loader.num_workers
        iterator = LoaderIterator(
            flow,
            _sized(loader),
            _promise(loader),
            skipped,
            progress,
            workers=progress.workers,
            stays=stays,
            finish=delivery.finish,
        )
        if stays:
            self._running = _Running(iterator, engine, flow, duplicates)
        return iterator

    def _begin_next(self, loader: DataLoader[Any], running: _Running, progress: Progress) -> LoaderIterator:
        """Let the persistent workers start over. Their iterator is the same in all epochs, as torch's is."""
        progress.shared_seed = _seed_datapipe(loader)
        progress.keys = keys = self.course.begin(progress)
        running.flow.abandon()
        running.engine.begin_epoch(progress.shared_seed)
        skipped = self._account_of_skips(loader)
        running.flow = _make_flow(loader, keys, running.engine, progress, running.duplicates, skipped)
        running.flow.submit_tasks()
        running.iterator.begin(running.flow, _promise(loader), skipped, progress)
        return running.iterator

    def _account_of_skips(self, loader: DataLoader[Any]) -> SkippedSamples | None:
        if loader.on_error != "skip":
            return None
        budget = None if loader.max_errors is None else loader.max_errors - self._errors_before
        return SkippedSamples(loader.errors, budget, loader._warn_of_skips)


def _is_edge(state: Mapping[str, Any]) -> bool:
    """Whether a state is of the beginning of an epoch."""
    course = state["course"]
    return not state["batches"] and not course.get("ahead") and "discard" not in course


def _progress_of(epoch: int, state: Mapping[str, Any] | None, loader: DataLoader[Any]) -> Progress:
    if state is None:
        return Progress(epoch, follows_lanes=loader._iterable, workers=loader.num_workers)
    start, batches = state["course"], state["batches"]
    lanes = {
        number: LaneProgress(lane["batches"], lane["state"], lane["has_ended"])
        for number, lane in enumerate(start.get("lanes", ()))
    }
    if any(lane.batches and lane.state is None and not lane.has_ended for lane in lanes.values()):
        warn_user(
            f"The stream {type(loader.dataset).__name__} is iterated again up to where the state was taken, because it "
            "has no state_dict() and load_state_dict(). Give them to the dataset or to its iterator, and it can go "
            "there at once."
        )
    return Progress(
        epoch,
        first=batches,
        batches=batches,
        ahead={batches + number for number in start.get("ahead", ())},
        lanes=lanes,
        last_lane=start.get("last_lane"),
        start=start,
        follows_lanes=loader._iterable,
        # The streams of so many workers cannot become those of others in the middle: this epoch ends as it began.
        workers=start.get("workers", loader.num_workers),
    )


def _base_seed(loader: DataLoader[Any], progress: Progress, saved: int | None) -> int:
    if loader.seed is not None:
        return derive_key(loader.seed, progress.epoch, "workers") & _SEED_BITS
    if saved is None:
        # Drawn in every epoch, needed or not: torch does, and its generator must be left in the same state.
        return random_source(loader.generator, loader._random_library).draw_seed()
    if loader._iterable:
        return saved
    # What the workers drew until then is gone; they must not draw the same again.
    return derive_key(saved, progress.batches, "workers, gone on") & _SEED_BITS


def _seed_datapipe(loader: DataLoader[Any], saved: int | None = None) -> int | None:
    if not is_datapipe(loader.dataset):
        return None
    from headrace.frameworks.torch_datapipes import begin_epoch

    return begin_epoch(loader.dataset, loader.generator, shard=loader.num_workers == 0, seed=saved)


def _sized(loader: DataLoader[Any]) -> Any:
    """What the length of an iterator is that of: not the loader, which may hold the iterator."""
    course = loader._epochs.course
    return course if isinstance(course, SeededCourse) else loader._index_sampler


def _promise(loader: DataLoader[Any]) -> PromisedLength | None:
    return None if loader._promised_samples is None else PromisedLength(loader.dataset, loader._promised_samples)


def _make_flow(
    loader: DataLoader[Any],
    keys: Iterator[Any],
    engine: Engine,
    progress: Progress,
    duplicates: DuplicateWatch | None,
    skipped: SkippedSamples | None,
) -> Flow:
    return Flow(
        keys,
        engine,
        in_order=loader.in_order,
        takes_turns=loader.seed is None or loader._iterable,
        progress=progress,
        tell_bad=None if skipped is None else skipped.note,
        tell_first=None if duplicates is None else duplicates.tell,
        account=_open_account(loader, progress),
    )


def _open_account(loader: DataLoader[Any], progress: Progress) -> EpochAccount | None:
    audit, course = loader._epochs.audit, loader._epochs.course
    if audit is None:
        return None
    first = progress.start.get("position", progress.batches)
    if audit.expect is None:
        expected = expected_keys(course, progress.epoch, first)
    else:
        expected = KnownKeys(audit.expect, starts=first == 0)
    return audit.begin(
        progress.epoch,
        Part(first, *_rank_of(loader)),
        expected,
        batched=loader.batch_sampler is not None,
        streams=loader._iterable,
    )


def _rank_of(loader: DataLoader[Any]) -> tuple[int, int]:
    """The rank of this loader and how many there are, also if its sampler deals out the samples itself."""
    if loader.shard is not None:
        return loader.shard.rank, loader.shard.world
    sampler: Any = loader.sampler
    return (sampler.rank, sampler.num_replicas) if hasattr(sampler, "num_replicas") else (0, 1)


def make_engine(loader: DataLoader[Any], workers: int) -> Engine:
    """What runs the tasks of a loader."""
    if not isinstance(loader.engine, str):
        return loader.engine
    if workers == 0:
        if loader.timeout != 0 and loader.num_workers == 0:
            raise AssertionError(f"timeout must be 0 without workers to wait for, got {loader.timeout}.")
        return InlineEngine()
    prefetch = loader.prefetch_factor or 2
    if loader.engine == "threads":
        return ThreadEngine(workers, prefetch, loader.timeout)
    from headrace.engines.launch import default_context  # multiprocessing is slow to import
    from headrace.engines.processes import ProcessEngine

    return ProcessEngine(
        workers,
        prefetch,
        context=loader.multiprocessing_context or default_context(resolve_output(loader.output)),
        timeout=loader.timeout,
        restart=loader.on_worker_death == "restart",
        tell_restart=loader._warn_of_restarts,
        deepens=loader._may_deepen(),
    )


def make_job(loader: DataLoader[Any], progress: Progress, starts: Any) -> Job:
    """What the workers of a loader are told."""
    batched = loader.batch_sampler is not None
    is_default = _is_default(loader.collate_fn, "default_collate" if batched else "default_convert")
    return Job(
        dataset=loader.dataset,
        iterable=loader._iterable,
        batched=batched,
        drop_last=loader.drop_last,
        collate_fn=None if is_default else loader.collate_fn,
        output=resolve_output(loader.output),
        convert=loader.output != "auto",
        init_fn=_worker_init(loader),
        base_seed=progress.base_seed,
        shared_seed=progress.shared_seed,
        skip_errors=loader.on_error == "skip",
        seed=loader.seed,
        starts=starts,
        taught=taught_types(),
    )


def _worker_init(loader: DataLoader[Any]) -> Callable[[int], None] | None:
    if loader.num_workers == 0 or not is_datapipe(loader.dataset):
        return loader.worker_init_fn
    from headrace.frameworks.torch_datapipes import sharding_init

    return sharding_init(loader.worker_init_fn)


def _is_default(collate_fn: Any, name: str) -> bool:
    """Whether `collate_fn` is headrace's or torch's function of that name."""
    if collate_fn is (default_collate if name == "default_collate" else default_convert):
        return True
    torch_data = loaded("torch.utils.data")
    return torch_data is not None and collate_fn is getattr(torch_data, name)

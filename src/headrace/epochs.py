"""Starts the epochs of a loader, one after the other or in the middle, and tells how far they have come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.assembly import base_seed_of, make_engine, make_flow, make_job, promised_length, seed_datapipe, sized
from headrace.base.errors import StateError
from headrace.base.progress import LaneProgress, Progress
from headrace.base.state import VERSION, check_counts
from headrace.base.warning import warn_user
from headrace.deliver.device import plan_delivery
from headrace.deliver.iterator import LoaderIterator
from headrace.deliver.pinning import pin_function
from headrace.deliver.skipped import SkippedSamples
from headrace.engines.duplicates import DuplicateWatch
from headrace.engines.engine import Engine
from headrace.flow import Flow
from headrace.order.course import Course
from headrace.order.stream_course import StreamCourse
from headrace.preparing import PreparingEngine

if TYPE_CHECKING:
    from headrace.insight.audit import Audit
    from headrace.loader import DataLoader
    from headrace.window_flow import WindowFlow


@dataclass
class _Running:
    """Persistent workers, and the one iterator that they have."""

    iterator: LoaderIterator
    engine: Engine
    flow: Flow | WindowFlow
    duplicates: DuplicateWatch | None


class Epochs:
    """The epochs of one loader.

    It does not hold the loader, so that both are gone as soon as nobody uses them.

    Args:
        reads_windows: whether the course is that of a `Stream`.
    """

    def __init__(self, course: Course, *, reads_windows: bool) -> None:
        self.course = course
        self._windows: Any = course if reads_windows else None
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

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next epoch begin where a state was taken, or the states of all ranks.

        Raises:
            StateError: it is no state, or it does not fit.
        """
        states: list[Any] = list(state) if isinstance(state, (list, tuple)) else [state]
        for one in states or [state]:
            _check_header(one)
        try:
            state = self._gathered(states)
            self.course.check(state["course"], is_edge=_is_edge(state))
        except (AttributeError, KeyError, TypeError) as error:
            raise StateError(f"The state is damaged: {error!r}. Pass what state_dict() gave.") from error
        self._loaded = deepcopy(dict(state))
        self.next, self._errors_before = state["epoch"], state["errors"]
        self._latest = None
        self.stop_running()

    def _gathered(self, states: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        """One state, of those of all ranks."""
        if self._windows is not None:
            gathered: Mapping[str, Any] = self._windows.gather(states)
            return gathered
        if len(states) != 1:
            raise StateError("Only streams need the states of all ranks. Pass that of one of them.")
        return states[0]

    def seek(self, batch: int) -> None:
        """Let the next epoch begin before batch number `batch`."""
        course = self.course.seek(batch) if self._windows is None else self._windows.seek_in(self.next, batch)
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
        size = None if self._windows is None else loader.batch_size or 1
        run = loader._recorder.begin(progress.epoch, size)
        self.next += 1
        if self._running is not None:
            iterator = self._begin_next(loader, self._running, progress)
        else:
            iterator = self._begin_first(loader, progress, state)
        self._latest = progress
        for _ in range(progress.start.get("discard", 0)):
            next(iterator, None)
        if run is not None:
            run.ready()
            iterator.time(run)
        return iterator

    def _begin_first(
        self, loader: DataLoader[Any], progress: Progress, state: Mapping[str, Any] | None
    ) -> LoaderIterator:
        pin = pin_function(loader.pin_memory_device) if loader.pin_memory else None
        base_seed, shared_seed = (None, None) if state is None else (state["base_seed"], state.get("shared_seed"))
        progress.shared_seed = seed_datapipe(loader, shared_seed)
        progress.keys = keys = self.course.begin(progress)
        progress.base_seed = base_seed_of(loader, progress, base_seed)
        engine = make_engine(loader, progress.workers)
        if progress.workers > 0 and base_seed is None:
            if loader.prefetch_factor == 0:
                raise AssertionError("prefetch_factor must be at least 1 with workers, got 0.")
            # torch asks twice, too: the first seed of a DataPipe counts, and the second answer of a sampler.
            seed_datapipe(loader)
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
            flow = make_flow(loader, keys, engine, progress, None, skipped)
            return LoaderIterator(
                flow, sized(loader), promised_length(loader), skipped, progress, finish=delivery.at_once
            )
        duplicates = DuplicateWatch(loader.dataset, loader._warn_of_duplicates) if progress.follows_lanes else None
        if delivery.prepare is not None:
            depth = engine.depth if loader.device is None else 2
            engine = PreparingEngine(engine, delivery, depth, loader._recorder.prepared)
        flow = make_flow(loader, keys, engine, progress, duplicates, skipped)
        flow.submit_tasks()
        stays = loader.persistent_workers and progress.workers == loader.num_workers
        iterator = LoaderIterator(
            flow,
            sized(loader),
            promised_length(loader),
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
        progress.shared_seed = seed_datapipe(loader)
        progress.keys = keys = self.course.begin(progress)
        running.flow.abandon()
        running.engine.begin_epoch(progress.shared_seed)
        skipped = self._account_of_skips(loader)
        running.flow = make_flow(loader, keys, running.engine, progress, running.duplicates, skipped)
        running.flow.submit_tasks()
        running.iterator.begin(running.flow, promised_length(loader), skipped, progress)
        return running.iterator

    def _account_of_skips(self, loader: DataLoader[Any]) -> SkippedSamples | None:
        if loader.on_error != "skip":
            return None
        budget = None if loader.max_errors is None else loader.max_errors - self._errors_before
        return SkippedSamples(loader.errors, budget, loader._warn_of_skips)


def _check_header(state: Any) -> None:
    """See that this is a state of a loader.

    Raises:
        StateError: it is not.
    """
    if not isinstance(state, Mapping) or state.get("headrace") != VERSION:
        raise StateError(
            f"This is no state of a loader, of version {VERSION}: {state!r:.200}. Pass what state_dict() gave."
        )
    check_counts(state, "epoch", "batches", "errors")
    if state.get("base_seed", "") is not None:
        check_counts(state, "base_seed")


def _is_edge(state: Mapping[str, Any]) -> bool:
    """Whether a state is of the beginning of an epoch, of which nothing was drawn yet."""
    course = state["course"]
    return not state["batches"] and not any(course.get(name) for name in ("ahead", "discard", "replay"))


def _progress_of(epoch: int, state: Mapping[str, Any] | None, loader: DataLoader[Any]) -> Progress:
    follows_lanes = isinstance(loader._epochs.course, StreamCourse)
    if state is None:
        return Progress(epoch, follows_lanes=follows_lanes, workers=loader.num_workers)
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
        follows_lanes=follows_lanes,
        # The streams of so many workers cannot become those of others in the middle: this epoch ends as it began.
        workers=start.get("workers", loader.num_workers),
    )

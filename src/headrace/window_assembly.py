"""Puts together what an epoch of a stream needs, where `assembly` leaves off; imported when there is a stream."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.base.messages import BadSample
from headrace.base.progress import Progress
from headrace.engines.engine import Engine, Job
from headrace.engines.worker import Worker
from headrace.insight.epoch_audit import Part
from headrace.order.shard import Shard, resolve_shard
from headrace.streams.audited import ExpectedRows, RowAccount
from headrace.streams.course import WindowCourse
from headrace.streams.shares import Loading
from headrace.window_flow import WindowFlow

if TYPE_CHECKING:
    from headrace.loader import DataLoader
    from headrace.streams.recipe import Ask


def make_window_course(loader: DataLoader[Any]) -> WindowCourse:
    """What decides the batches of a stream."""
    shard = resolve_shard("auto", loader.even) if loader.shard is None else loader.shard
    skips = loader.on_error == "skip"
    recipe = loader.dataset.recipe.lenient() if skips else loader.dataset.recipe
    batch_rows = (loader.batch_size or 1) * (1 if recipe.packing is None else recipe.packing.length)
    return WindowCourse(Loading(recipe, batch_rows, loader.drop_last, loader.seed, shard or Shard(), skips))


def make_window_flow(
    loader: DataLoader[Any],
    job: Job,
    shares: Any,
    engine: Engine,
    progress: Progress,
    tell_bad: Callable[[tuple[BadSample, ...]], None] | None,
) -> WindowFlow:
    """The loop that reads the windows of an epoch."""
    course: Any = loader._epochs.course
    packing = course.loading.recipe.packing
    worker = Worker(job)
    flow = WindowFlow(
        shares,
        engine,
        progress,
        size=loader.batch_size or 1,
        drop_last=loader.drop_last,
        join=worker.join,
        finish=worker.finish_columns if job.cuts_later else None,
        place=progress.start.get("place", (0, 0)),
        row_length=1 if packing is None else packing.length,
        drops_rest=packing is not None and packing.drops_rest,
        known_rows=course.counts.known if course.loading.tells_rows else None,
        note_rows=course.counts.note,
        most_empty=shares.most_empty,
        tell_bad=tell_bad,
        account=_open_account(loader, course, shares, progress),
        timekeeper=loader._recorder.latest,
    )
    shares.ask = _weakly(flow.count_rows, shares.ask)
    return flow


def _weakly(ask: Ask, otherwise: Ask) -> Ask:
    """Asks the loop as long as it is there: a cycle of references would keep workers alive that nobody wants."""
    method = weakref.WeakMethod(ask)
    return lambda requests: (method() or otherwise)(requests)


def _open_account(loader: DataLoader[Any], course: WindowCourse, shares: Any, progress: Progress) -> RowAccount | None:
    audit, loading = loader._epochs.audit, course.loading
    if audit is None:
        return None
    part = Part(progress.batches, loading.shard.rank, loading.shard.world)
    return RowAccount(audit.begin(progress.epoch, part, ExpectedRows(shares, loading, progress.start)), loading)

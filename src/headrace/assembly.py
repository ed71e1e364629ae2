"""Puts together what an epoch of a loader needs: the engine, what its workers are told, and the flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from headrace.base.keys import derive_key
from headrace.base.messages import BadSample
from headrace.base.optional import loaded
from headrace.base.progress import Progress
from headrace.batch.collate import default_collate, default_convert, taught_types
from headrace.data.dataset import is_datapipe
from headrace.deliver.iterator import PromisedLength
from headrace.deliver.quarantine import Quarantine
from headrace.deliver.skipped import SkippedSamples
from headrace.engines.duplicates import DuplicateWatch
from headrace.engines.engine import Engine, Job
from headrace.engines.inline import InlineEngine
from headrace.flow import Flow
from headrace.frameworks.framework import random_source, resolve_output
from headrace.insight.recorder import Recorder
from headrace.order.seeded_course import SeededCourse

if TYPE_CHECKING:
    from headrace.insight.audit import EpochAccount
    from headrace.loader import DataLoader
    from headrace.window_flow import WindowFlow

_SEED_BITS = 2**63 - 1


def is_stream(dataset: Any) -> bool:
    """Whether it is a `Stream`; whoever has one has imported its module."""
    streams = loaded("headrace.streams.stream")
    return streams is not None and isinstance(dataset, streams.Stream)


def base_seed_of(loader: DataLoader[Any], progress: Progress, saved: int | None) -> int:
    if loader.seed is not None:
        return derive_key(loader.seed, progress.epoch, "workers") & _SEED_BITS
    course: Any = loader._epochs.course
    if loader._is_stream and course.loading.shard.world > 1:
        return derive_key(0, progress.epoch, "workers") & _SEED_BITS  # ranks must agree how many rows there are
    if saved is None:
        # Drawn in every epoch, needed or not: torch does, and its generator must be left in the same state.
        return random_source(loader.generator, loader._random_library).draw_seed()
    if loader._iterable:
        return saved
    # What the workers drew until then is gone; they must not draw the same again.
    return derive_key(saved, progress.batches, "workers, gone on") & _SEED_BITS


def seed_datapipe(loader: DataLoader[Any], saved: int | None = None) -> int | None:
    if not is_datapipe(loader.dataset):
        return None
    from headrace.frameworks.torch_datapipes import begin_epoch

    return begin_epoch(loader.dataset, loader.generator, shard=loader.num_workers == 0, seed=saved)


def sized(loader: DataLoader[Any]) -> Any:
    """What the length of an iterator is that of: not the loader, which may hold the iterator."""
    course = loader._epochs.course
    return course if isinstance(course, SeededCourse) else loader._index_sampler


def promised_length(loader: DataLoader[Any]) -> PromisedLength | None:
    return None if loader._promised_samples is None else PromisedLength(loader.dataset, loader._promised_samples)


def make_flow(
    loader: DataLoader[Any],
    keys: Iterable[Any],
    engine: Engine,
    progress: Progress,
    duplicates: DuplicateWatch | None,
    skipped: SkippedSamples | None,
) -> Flow | WindowFlow:
    tell_bad = None if skipped is None else partial(_tell_bad, loader._quarantine, skipped)
    if loader._is_stream:
        from headrace.window_assembly import make_window_flow

        return make_window_flow(loader, make_job(loader, progress, None), keys, engine, progress, tell_bad)
    return Flow(
        iter(keys),
        engine,
        in_order=loader.in_order,
        takes_turns=loader.seed is None or loader._iterable,
        progress=progress,
        tell_bad=tell_bad,
        tell_first=None if duplicates is None else duplicates.tell,
        account=_open_account(loader, progress),
        timekeeper=loader._recorder.latest,
    )


def _tell_bad(quarantine: Quarantine | None, skipped: SkippedSamples, bad: tuple[BadSample, ...]) -> None:
    if quarantine is not None:
        quarantine.note(bad)
    skipped.note(bad)


def _open_account(loader: DataLoader[Any], progress: Progress) -> EpochAccount | None:
    audit, course = loader._epochs.audit, loader._epochs.course
    if audit is None:
        return None
    from headrace.insight.epoch_audit import Part
    from headrace.order.expected import KnownKeys, expected_keys

    position, n_ahead = progress.start.get("position", progress.batches), len(progress.ahead)
    if audit.expect is None:
        expected = expected_keys(course, progress.epoch, position, has_gaps=n_ahead > 0)
    else:
        expected = KnownKeys(audit.expect, starts=position + n_ahead == 0)
    return audit.begin(
        progress.epoch,
        Part(position + n_ahead, *_rank_of(loader)),
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


def import_engine(loader: DataLoader[Any]) -> None:
    """Import what will run the tasks of a loader now, so that its first batch does not wait for it."""
    if loader.num_workers > 0 and loader.engine in ("processes", "threads"):
        import_module(f"headrace.engines.{loader.engine}")


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
        from headrace.engines.threads import ThreadEngine

        return ThreadEngine(workers, prefetch, loader.timeout)
    from headrace.engines.launch import default_context  # multiprocessing is slow to import
    from headrace.engines.processes import ProcessEngine

    engine = ProcessEngine(
        workers,
        prefetch,
        context=loader.multiprocessing_context or default_context(resolve_output(loader.output)),
        timeout=loader.timeout,
        restart=loader.on_worker_death == "restart",
        tell_restart=partial(_tell_restart, loader._recorder, loader._warn_of_restarts),
        deepens=loader._may_deepen(),
    )
    loader._recorder.follow(engine)
    return engine


def _tell_restart(recorder: Recorder, warn: Callable[[str], None], text: str) -> None:
    recorder.restarts += 1
    warn(text)


def make_job(loader: DataLoader[Any], progress: Progress, starts: Any) -> Job:
    """What the workers of a loader are told."""
    batched = loader.batch_sampler is not None
    is_stream = loader._is_stream
    is_default = _is_default(loader.collate_fn, "default_collate" if batched else "default_convert")
    taught = taught_types()
    draws = bool(taught) or not (is_default or _is_known(loader.collate_fn))
    return Job(
        dataset=loader.dataset,
        iterable=loader._iterable and not is_stream,
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
        recipe=replace(_recipe_of(loader), draws_in_collate=draws) if is_stream else None,
        taught=taught,
        timed=loader._recorder.is_on,
        cuts_later=is_stream and is_default and _cuts_later(loader),
    )


def _recipe_of(loader: DataLoader[Any]) -> Any:
    course: Any = loader._epochs.course
    return course.loading.recipe


def _cuts_later(loader: DataLoader[Any]) -> bool:
    """Whether workers need only read the columns of a stream, of which the loop makes batches."""
    recipe = _recipe_of(loader)
    is_moved = loader.pin_memory or loader.device is not None  # ahead of the loop, so it must be made ahead
    return (
        recipe.as_columns
        and recipe.tells_rows
        and loader.batch_size is not None
        and loader.on_error != "skip"
        and not is_moved
    )


def _is_known(collate_fn: Any) -> bool:
    """Whether nobody can draw random numbers in a collate function, because it is ours, or as good as."""
    kind = collate_fn if isinstance(collate_fn, (type, FunctionType)) else type(collate_fn)
    return kind in (list, tuple) or kind.__module__.partition(".")[0] == "headrace"


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

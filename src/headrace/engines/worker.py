"""The work on one task, the same in every engine. Here the stages that run in workers meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.base.messages import Exhausted, Failed, Finished, Outcome, Task
from headrace.batch.collate import Collator, FrameworkCollate, default_collate_into
from headrace.batch.fetch import EndOfStream, IterableFetcher, MapFetcher
from headrace.data.take import find_take
from headrace.engines.engine import Job
from headrace.frameworks.framework import framework_of


class Worker:
    """Makes the batches of a job, one task at a time."""

    def __init__(self, job: Job) -> None:
        collate, take = _collation_of(job)
        self._fetcher: MapFetcher | IterableFetcher
        if job.iterable:
            self._fetcher = IterableFetcher(job.dataset, collate, drop_last=job.drop_last)
        else:
            self._fetcher = MapFetcher(job.dataset, collate, batched=job.batched, take=take)

    def work(self, task: Task) -> Outcome:
        """Make the batch of a task. Whatever the user's code raises is part of the outcome."""
        try:
            return Finished(task.number, self._fetcher.fetch(task.keys))
        except EndOfStream:
            return Exhausted(task.number)
        except StopIteration as error:
            # It would end the epoch without a word, as it does inside a generator.
            failure = RuntimeError("A dataset or collate_fn raised StopIteration.")
            failure.__cause__ = error
            return Failed(task.number, failure)
        except Exception as error:  # noqa: BLE001 (any error of the user's code is told to the user)
            return Failed(task.number, error)


def _collation_of(job: Job) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None]:
    """What makes batches of samples, and what takes whole batches from the dataset, if it can."""
    collate_fn = job.collate_fn
    if collate_fn is not None and not job.convert and not isinstance(collate_fn, FrameworkCollate):
        return collate_fn, None
    collator = Collator(framework_of(job.output))
    if isinstance(collate_fn, FrameworkCollate):
        return partial(collate_fn.collate_into, collator=collator), None
    if collate_fn is not None:
        return lambda samples: collator.convert(collate_fn(samples), tuples_to_lists=False), None
    if not job.batched:
        return collator.convert, None
    collate = default_collate_into(collator)
    can_take = collate is collator and not job.iterable
    return collate, find_take(job.dataset, collator.framework, collator.convert) if can_take else None

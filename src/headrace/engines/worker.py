"""The work on one task, the same in every engine. Here the stages that run in workers meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.base.messages import Exhausted, Failed, Finished, Outcome, Task
from headrace.batch.collate import Collator, FrameworkCollate, default_collate_into, is_torch_taught
from headrace.batch.fetch import EndOfStream, IterableFetcher, MapFetcher
from headrace.data.take import find_take
from headrace.engines.engine import Job
from headrace.frameworks.framework import framework_of


class Worker:
    """Makes the batches of a job, one task at a time."""

    def __init__(self, job: Job) -> None:
        collate = _collate_of(job)
        self._fetcher: MapFetcher | IterableFetcher
        if job.iterable:
            self._fetcher = IterableFetcher(job.dataset, collate, drop_last=job.drop_last)
        else:
            self._fetcher = MapFetcher(job.dataset, collate, batched=job.batched, take=_take_of(job))

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


def _collate_of(job: Job) -> Callable[[Any], Any]:
    collate_fn = job.collate_fn
    if collate_fn is None:
        collator = Collator(framework_of(job.output))
        return default_collate_into(collator) if job.batched else collator.convert
    if isinstance(collate_fn, FrameworkCollate):
        return partial(collate_fn.collate_into, collator=Collator(framework_of(job.output)))
    if not job.convert:
        return collate_fn
    convert = Collator(framework_of(job.output)).convert
    return lambda samples: convert(collate_fn(samples), tuples_to_lists=False)


def _take_of(job: Job) -> Callable[[Any], Any] | None:
    if not job.batched or job.collate_fn is not None or is_torch_taught():
        return None
    collator = Collator(framework_of(job.output))
    return find_take(job.dataset, collator.framework, collator.convert)

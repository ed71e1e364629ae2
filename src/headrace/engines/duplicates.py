"""Notices workers that give the same data: an iterable dataset that does not ask which worker it is in."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from typing import Any

from headrace.base.errors import warn_user
from headrace.base.messages import Finished, Outcome
from headrace.engines.engine import Job

_COMPARED_BATCHES = 2
_COMPARED_BYTES = 2**16  # of each array


class Fingerprints:
    """Stamps the first batches of an iterable with what tells their contents apart."""

    def __init__(self, job: Job, workers: int) -> None:
        self._missing = _COMPARED_BATCHES if job.iterable and workers > 1 else 0

    def stamp(self, outcome: Outcome) -> Outcome:
        if not self._missing or not isinstance(outcome, Finished):
            return outcome
        self._missing -= 1
        return outcome._replace(fingerprint=fingerprint_of(outcome.batch))


def fingerprint_of(batch: Any) -> int | None:
    """A number that equal batches share, and others hardly ever; None if the batch cannot be read."""
    from headrace.transport.encoding import pickle_parts

    buffers: list[pickle.PickleBuffer] = []
    try:
        checksum = zlib.crc32(b"".join(pickle_parts(batch, buffers.append)))
        for buffer in buffers:
            raw = buffer.raw()
            checksum = zlib.crc32(raw[:_COMPARED_BYTES], checksum ^ raw.nbytes)
    except Exception:  # noqa: BLE001 (a batch that cannot be pickled is nothing to worry about here)
        return None
    return checksum


class DuplicateWatch:
    """Compares the first batches of all workers, and warns once if two workers give the same.

    An iterable whose batches are all alike says nothing, so a worker's first two batches must differ.

    Args:
        warn: called with the text; a loader gives one that warns once for all its epochs.
    """

    def __init__(self, dataset: Any, warn: Callable[[str], None] = warn_user) -> None:
        self._dataset = dataset
        self._warn = warn
        self._seen: dict[int, list[int]] = {}
        self._warned = False

    def tell(self, worker: int, fingerprint: int) -> None:
        """Hear of the next of this worker's first batches."""
        mine = self._seen.setdefault(worker, [])
        mine.append(fingerprint)
        if self._warned or len(set(mine)) < _COMPARED_BATCHES:
            return
        twins = [other for other, theirs in self._seen.items() if other != worker and theirs == mine]
        if twins:
            self._warned = True
            self._warn(self._text(sorted([twins[0], worker])))

    def _text(self, workers: list[int]) -> str:
        name = type(self._dataset).__name__
        return (
            f"Workers {workers[0]} and {workers[1]} return the same batches: every worker iterates over its own copy "
            f"of {name}, so all data comes once from each. Pass headrace.Stream.from_iterable(dataset) to the "
            f"DataLoader, and each sample comes once; or let each worker read its own part: in {name}.__iter__ ask "
            "info = headrace.get_worker_info(), and go on with itertools.islice(samples, info.id, None, "
            "info.num_workers); or cut the data in a worker_init_fn."
        )

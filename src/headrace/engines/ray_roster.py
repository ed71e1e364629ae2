"""Where an engine has its actors from: its own, or those of a pool."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Any

import ray

from headrace.engines.ray_cluster import Request, connect, end_actor, start_actor
from headrace.engines.ray_worker import WorkerPlace, ask_to_stop


class OwnActors:
    """Actors of one engine, which end with it.

    Args:
        least: how many there are to be, and `most` how many there may be.
    """

    def __init__(self, request: Request, least: int, most: int) -> None:
        connect(request.address)
        self.request = request
        self.least, self.most = least, most

    def hire(self, slot: int) -> Any:
        return start_actor(self.request)

    def lost(self, slot: int, handle: Any) -> None:
        end_actor(handle)  # it may only be out of reach

    def dismiss(self, actors: list[tuple[Any, WorkerPlace | None]], grace_s: float) -> None:
        for _, place in actors:
            if place is not None and place.is_here:
                ask_to_stop(place)
        end_actors([handle for handle, _ in actors], grace_s)


class SharedActors:
    """Actors of a pool: one in each slot, for all engines."""

    def __init__(self, request: Request, workers: int) -> None:
        connect(request.address)
        self.request = request
        self.least = self.most = workers
        self._changing = threading.Lock()
        self._handles: dict[int, Any] = {}
        self._close = weakref.finalize(self, _end_all, self._handles)

    def hire(self, slot: int) -> Any:
        with self._changing:
            if slot not in self._handles:
                self._handles[slot] = start_actor(self.request)
            return self._handles[slot]

    def lost(self, slot: int, handle: Any) -> None:
        with self._changing:
            if self._handles.get(slot) is handle:  # else another engine has noticed it before
                del self._handles[slot]
        end_actor(handle)

    def dismiss(self, actors: list[tuple[Any, WorkerPlace | None]], grace_s: float) -> None:
        """They stay for the others."""

    def close(self) -> None:
        self._close()


def end_actors(handles: list[Any], grace_s: float) -> None:
    """End actors: after the sample they are at, if that does not take too long."""
    if not ray.is_initialized():  # they are gone with it, and a call would start it anew
        return
    retiring = []
    for handle in handles:
        with suppress(Exception):
            retiring.append(handle.retire.remote())
    with suppress(Exception):
        ray.wait(retiring, num_returns=len(retiring), timeout=grace_s, fetch_local=False)
    for handle in handles:
        end_actor(handle)


def _end_all(handles: dict[int, Any]) -> None:
    end_actors(list(handles.values()), 1.0)
    handles.clear()

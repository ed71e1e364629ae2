"""Where an engine has its actors from: its own, or those of a pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import ray

from headrace.base.endings import Keeper, Patience
from headrace.engines.ray_cluster import Request, connect, end_actor, start_actor
from headrace.engines.ray_worker import PING_S, WorkerPlace, ask_to_stop

_NAMESPACE = "headrace"


class OwnActors:
    """Actors of one engine, which end with it.

    Args:
        least: how many there are to be, and `most` how many there may be.
    """

    client = 0

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
    """Actors of a pool: one in each slot, for all engines of this process, which end with the pool."""

    client = 0

    def __init__(self, request: Request, workers: int) -> None:
        connect(request.address)
        self.request = request
        self.least = self.most = workers
        self._slots = _Slots()
        self._keeper = Keeper(self, partial(_end_slots, self._slots))

    def hire(self, slot: int) -> Any:
        return self._slots.get(slot, lambda _: start_actor(self.request))

    def lost(self, slot: int, handle: Any) -> None:
        self._slots.drop(slot, handle)
        end_actor(handle)

    def dismiss(self, actors: list[tuple[Any, WorkerPlace | None]], grace_s: float) -> None:
        """They stay for the others."""

    def close(self) -> None:
        self._keeper.close()


class NamedActors:
    """Actors of a pool that several processes use, by its name.

    Each process says every few seconds that it is there. An actor drops what belongs to one that is silent, and ends
    with the last of them. A lost actor is replaced under a name of its own, once for all: whoever notices the loss
    first starts it, the others find it.
    """

    def __init__(self, request: Request, workers: int, name: str) -> None:
        connect(request.address)
        self.request = request
        self.least = self.most = workers
        self.client = int.from_bytes(os.urandom(7), "little") + 1
        self._name = name
        self._slots = _Slots()
        self._is_over = threading.Event()
        thread = threading.Thread(
            target=_stay, args=(self._slots, self.client, self._is_over), name="headrace-pool", daemon=True
        )
        self._keeper = Keeper(self, partial(_part, self._slots, self.client, self._is_over, thread))
        thread.start()

    def hire(self, slot: int) -> Any:
        return self._slots.get(slot, partial(self._find, slot))

    def _find(self, slot: int, generation: int) -> Any:
        """The latest actor of a slot that is not lost, or a new one."""
        prefix = f"{self._name}/{slot}/"
        known = ray.util.list_named_actors(all_namespaces=True)
        names = [one["name"] for one in known if one["namespace"] == _NAMESPACE and one["name"].startswith(prefix)]
        generation = max([generation, *(int(name.rpartition("/")[2]) for name in names)])
        self._slots.generations[slot] = generation
        handle = start_actor(
            self.request, name=f"{prefix}{generation}", namespace=_NAMESPACE, lifetime="detached", get_if_exists=True
        )
        handle.join.remote(self.client)
        return handle

    def lost(self, slot: int, handle: Any) -> None:
        """It is not ended: others may still reach it."""
        self._slots.drop(slot, handle)

    def dismiss(self, actors: list[tuple[Any, WorkerPlace | None]], grace_s: float) -> None:
        """They stay for the others."""

    def close(self) -> None:
        self._keeper.close()


class _Slots:
    """The actors of a pool by slot, for the threads of several engines.

    Attributes:
        generations: how often the actor of a slot was replaced.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._handles: dict[int, Any] = {}
        self.generations: dict[int, int] = {}

    def get(self, slot: int, start: Callable[[int], Any]) -> Any:
        with self._changing:
            if slot not in self._handles:
                self._handles[slot] = start(self.generations.get(slot, 0))
            return self._handles[slot]

    def drop(self, slot: int, handle: Any) -> None:
        """An actor is lost; perhaps another engine has noticed it before."""
        with self._changing:
            if self._handles.get(slot) is handle:
                del self._handles[slot]
                self.generations[slot] = self.generations.get(slot, 0) + 1

    def all(self) -> list[Any]:
        with self._changing:
            return list(self._handles.values())


def _end_slots(slots: _Slots, patience: Patience) -> None:
    end_actors(slots.all(), min(1.0, patience.grace_s))


def _stay(slots: _Slots, client: int, is_over: threading.Event) -> None:
    """Tell the actors of a named pool that this process is there."""
    while not is_over.wait(PING_S):
        for handle in slots.all():
            with suppress(Exception):
                if ray.is_initialized():
                    handle.ping.remote(client)


def _part(slots: _Slots, client: int, is_over: threading.Event, thread: threading.Thread, patience: Patience) -> None:
    is_over.set()
    thread.join()
    for handle in slots.all() if ray.is_initialized() else ():
        with suppress(Exception):
            handle.part.remote(client)


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

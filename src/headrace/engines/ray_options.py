"""What users say of workers on a Ray cluster: `RayEngine`, and `RayPool` for workers that several loaders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from headrace.base.errors import check_count
from headrace.base.optional import is_installed, missing_extra
from headrace.engines.engine import Engine, EngineOptions

if TYPE_CHECKING:
    from headrace.engines.ray_cluster import Request
    from headrace.engines.ray_roster import NamedActors, SharedActors

_MOST_SEATS = 64  # of a loader that was not told how many workers it has
_PLACEMENTS = ("spread", "pack", "local")


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Workers that are Ray actors: `DataLoader(..., engine=RayEngine(...), num_workers=8)`.

    `engine="ray"` is the same with all defaults. Batches, their order and states are those of worker processes. Ray is
    started on this machine if this process is not connected to a cluster and none is found.

    Args:
        num_cpus: CPUs that each worker takes from the cluster.
        memory: bytes that each worker takes; None asks for none.
        resources: other resources that each worker takes, by their names.
        placement: "spread" workers over the nodes, "pack" them onto few, or "local": only on the node of the loop.
        node_labels: labels that a node must have.
        runtime_env: what Ray is to bring to the nodes: `working_dir`, `py_modules`, `pip`, `env_vars` and so on.
        min_workers: with this or `max_workers`, there are at first and at least so many actors, by default 1; their
            number then follows how long the loop waits for batches. Batches stay the same: there are `num_workers`
            seats all the time, and several share an actor.
        max_workers: at most so many actors, by default `num_workers`.
        address: of the cluster to connect to; None for the one that this process uses, or else the one Ray finds.
        start_timeout: seconds after which it is an error that the cluster has no room for any worker.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    num_cpus: float = 1
    memory: int | None = None
    resources: Mapping[str, float] | None = None
    placement: Literal["spread", "pack", "local"] = "spread"
    node_labels: Mapping[str, str] | None = None
    runtime_env: Mapping[str, Any] | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    address: str | None = None
    start_timeout: float = 10.0

    def __post_init__(self) -> None:
        check_ray()
        if self.placement not in _PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(map(repr, _PLACEMENTS))}, got {self.placement!r}.")
        if self.num_cpus < 0:
            raise ValueError(f"num_cpus must not be negative, got {self.num_cpus}.")
        for name, count in (("min_workers", self.min_workers), ("max_workers", self.max_workers)):
            if count is not None:
                check_count(name, count, 1)
        if self.min_workers is not None and self.max_workers is not None and self.min_workers > self.max_workers:
            raise ValueError(f"min_workers={self.min_workers} must not exceed max_workers={self.max_workers}.")

    def make_engine(self, options: EngineOptions) -> Engine:
        """The engine of one epoch, or of several with persistent workers."""
        from headrace.engines.ray_engine import RayActorEngine
        from headrace.engines.ray_roster import OwnActors

        hire = partial(OwnActors, _request(self), *self._limits(options.workers))
        return _make(RayActorEngine, hire, options)

    def _limits(self, workers: int) -> tuple[int, int]:
        """The least and the most actors for so many seats."""
        if self.min_workers is None and self.max_workers is None:
            return workers, workers
        most = min(workers, self.max_workers or workers)
        return min(self.min_workers or 1, most), most

    def lanes(self, num_workers: int | Literal["auto"] | None) -> int:
        """How many seats a loader has that was given this `num_workers`.

        "auto" means as many as the cluster has room for, and actors as they are needed.
        """
        if isinstance(num_workers, int) and num_workers > 0:
            return num_workers
        if self.max_workers is not None:
            return self.max_workers
        if num_workers != "auto":
            return self.min_workers or 0
        from headrace.engines.ray_cluster import connect, count_places

        connect(self.address)
        return max(1, min(_MOST_SEATS, count_places(_request(self), now=False)))


class RayPool:
    """Actors that several loaders share: `DataLoader(..., engine=pool, num_workers=4)`.

    Each loader has `num_workers` seats on the actors of the pool, which take turns between the loaders that have work
    for them. What a loader gives does not depend on the others. The actors start with the first epoch of the first
    loader, and end with `close()`, or with the process.

    With a `name`, all processes of the cluster that make a pool of that name share its actors: ranks, or jobs. They end
    with the last of these processes. Processes that fail take nothing from the others.

    Args:
        workers: how many actors the pool has; the same in all processes.
        name: of a pool that several processes share.
        others: as for `RayEngine`.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, workers: int, *, name: str | None = None, **others: Any) -> None:
        check_count("workers", workers, 1)
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise ValueError(f"name must be a string that is not empty and has no '/', got {name!r}.")
        self.workers = workers
        self.name = name
        self._options = RayEngine(**others)
        self._others = others
        self._actors: SharedActors | NamedActors | None = None

    def make_engine(self, options: EngineOptions) -> Engine:
        """The engine of one epoch of one loader, or of several with persistent workers."""
        from headrace.engines.ray_engine import RayActorEngine

        return _make(RayActorEngine, self._shared, options)

    def lanes(self, num_workers: int | Literal["auto"] | None) -> int:
        """How many seats a loader has that was given this `num_workers`: as many as there are actors by default."""
        return num_workers if isinstance(num_workers, int) and num_workers > 0 else self.workers

    def _shared(self) -> SharedActors | NamedActors:
        from headrace.engines.ray_roster import NamedActors, SharedActors

        if self._actors is None:
            request = _request(self._options)
            self._actors = (
                SharedActors(request, self.workers)
                if self.name is None
                else NamedActors(request, self.workers, self.name)
            )
        return self._actors

    def close(self) -> None:
        """End the actors, or leave them to the other processes that share them.

        Loaders that still use them raise, or start others if they are to restart workers.
        """
        actors, self._actors = self._actors, None
        if actors is not None:
            actors.close()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RayPool(workers={self.workers}{'' if self.name is None else f', name={self.name!r}'})"

    def __reduce__(self) -> Any:
        if self.name is None:
            raise TypeError(
                "A RayPool without a name cannot be sent to another process: its actors belong to this one. Pass name=."
            )
        return partial(RayPool, self.workers, name=self.name, **self._others), ()


def check_ray() -> None:
    """Raise if Ray is not installed.

    Raises:
        MissingExtraError: it is not.
    """
    if not is_installed("ray"):
        raise missing_extra("ray", "engine='ray'")


def settle_workers(engine: Any, num_workers: Any) -> tuple[Any, Any]:
    """The engine and `num_workers` of a loader, where the engine knows better how many there are."""
    if engine == "ray" and num_workers == "auto":
        engine = RayEngine(min_workers=1)
    lanes = getattr(engine, "lanes", None)
    return engine, num_workers if lanes is None else lanes(num_workers)


def _request(options: RayEngine) -> Request:
    from headrace.engines.ray_cluster import Request

    return Request(
        num_cpus=options.num_cpus,
        memory=options.memory,
        resources=options.resources,
        placement=options.placement,
        node_labels=options.node_labels,
        runtime_env=options.runtime_env,
        address=options.address,
        start_timeout=options.start_timeout,
    )


def _make(kind: Callable[..., Engine], hire: Any, options: EngineOptions) -> Engine:
    return kind(
        hire,
        options.workers,
        options.prefetch_factor,
        timeout=options.timeout,
        restart=options.restart,
        max_restarts=options.max_restarts,
        on_restart=options.on_restart,
        deepens=options.deepens,
    )

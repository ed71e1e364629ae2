"""The Ray cluster that workers run on: how it is reached, where actors are placed, what it has, and what it tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.engines.ray_worker import RayWorker, WorkerPlace, forget, look, machine_id

if TYPE_CHECKING:
    import ray
    import ray.exceptions
    from ray.util import scheduling_strategies
else:
    ray = import_extra("ray", "ray", "engine='ray'")
    import_extra("ray.exceptions", "ray", "engine='ray'")
    scheduling_strategies = import_extra("ray.util.scheduling_strategies", "ray", "engine='ray'")

_STORE_SHARE = 4  # of the smallest object store, this part may be filled with batches on their way
_LEAST_ROOM = 2**20
_LOOK_S = 10.0


@dataclass(frozen=True)
class Request:
    """What each worker asks the cluster for.

    Attributes:
        num_cpus: CPUs that it takes; `memory` bytes, and `resources` of other kinds by their names.
        placement: "spread" over the nodes, "pack" onto few of them, or "local" for the node of the loop.
        node_labels: which nodes will do, by the labels they have.
        runtime_env: Ray's description of the files and packages that workers need.
        address: of the cluster; None for the one that this process is connected to, or the one Ray finds.
        start_timeout: seconds after which it is an error that the cluster has no room for any worker.
    """

    num_cpus: float = 1
    memory: int | None = None
    resources: Mapping[str, float] | None = None
    placement: str = "spread"
    node_labels: Mapping[str, str] | None = None
    runtime_env: Mapping[str, Any] | None = None
    address: str | None = None
    start_timeout: float = 10.0

    @property
    def amounts(self) -> dict[str, float]:
        """What it takes of each kind of resource."""
        amounts = {"CPU": float(self.num_cpus), **(self.resources or {})}
        if self.memory is not None:
            amounts["memory"] = float(self.memory)
        return {kind: amount for kind, amount in amounts.items() if amount}

    def describe(self) -> str:
        """What is asked for, in words."""
        parts = [_amount(kind, amount) for kind, amount in self.amounts.items()]
        if self.node_labels:
            parts.append("the labels " + ", ".join(f"{name}={value}" for name, value in self.node_labels.items()))
        if self.placement == "local":
            parts.append("a place on the loop's own node")
        return " and ".join(parts) or "nothing"


def connect(address: str | None) -> None:
    """Be connected to a cluster: the one that this process uses already, the one that Ray finds, or a new one here."""
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="warning")


def start_actor(request: Request, **options: Any) -> Any:
    """A handle of a new actor; it is pending until the cluster has room for it.

    Restarts and retries are ours: Ray's are at-least-once, and may change the order.
    """
    options |= {"num_cpus": request.num_cpus, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}
    if request.memory is not None:
        options["memory"] = request.memory
    if request.resources:
        options["resources"] = dict(request.resources)
    if request.node_labels:
        options["label_selector"] = dict(request.node_labels)
    if request.runtime_env:
        options["runtime_env"] = dict(request.runtime_env)
    if request.placement == "spread":
        options["scheduling_strategy"] = "SPREAD"
    elif request.placement == "local":
        node = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(RayWorker).options(**options).remote()


def end_actor(handle: Any) -> None:
    """End an actor at once, wherever it is."""
    with suppress(Exception):  # the actor is gone
        if ray.is_initialized():
            ray.kill(handle, no_restart=True)


def alive_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def room_for_batches() -> int:
    """How many bytes of batches may be in the object stores at once, so that none of them has to spill to disk."""
    stores = [node["Resources"].get("object_store_memory", 0) for node in alive_nodes()]
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # each has a loader of its own, as a rule
    return max(_LEAST_ROOM, int(min(filter(None, stores), default=2**30)) // _STORE_SHARE // max(ranks, 1))


def count_places(request: Request, *, now: bool) -> int:
    """How many such workers the cluster has room for: now, or if nobody else used it."""
    free = _free_by_node() if now else {node["NodeID"]: node["Resources"] for node in alive_nodes()}
    return sum(_fits(request, free.get(node["NodeID"], {})) for node in alive_nodes() if _is_fit(request, node))


def _fits(request: Request, resources: Mapping[str, float]) -> int:
    if not request.amounts:
        return 2**20
    return min(int(resources.get(kind, 0) / amount + 1e-9) for kind, amount in request.amounts.items())


def _is_fit(request: Request, node: Mapping[str, Any]) -> bool:
    """Whether a worker may run there, if there is room."""
    if request.placement == "local" and node["NodeID"] != ray.get_runtime_context().get_node_id():
        return False
    labels = node.get("Labels") or {}
    return all(labels.get(name) == value for name, value in (request.node_labels or {}).items())


def _free_by_node() -> dict[str, dict[str, float]]:
    from ray._private.state import available_resources_per_node  # public is only the sum over all nodes

    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def describe_cluster() -> str:
    """What there is, node by node, in words."""
    free = _free_by_node()
    lines = []
    for node in alive_nodes():
        has, left = node["Resources"], free.get(node["NodeID"], {})
        kinds = [kind for kind in has if not kind.startswith(("node:", "object_store"))]
        parts = [f"{_amount(kind, left.get(kind, 0.0))} of {_amount(kind, has[kind])} free" for kind in sorted(kinds)]
        labels = {k: v for k, v in (node.get("Labels") or {}).items() if not k.startswith("ray.io/")}
        told = ", ".join([*parts, *([f"labels {labels}"] if labels else [])])
        lines.append(f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]}): {told}")
    return "; ".join(lines) or "no node that is alive"


def _amount(kind: str, amount: float) -> str:
    if kind == "memory":
        return f"{amount / 2**30:,.1f} GiB of memory"
    return f"{amount:g} {kind}"


def describe_place(place: WorkerPlace | None) -> str:
    """Where a worker is, in words."""
    return "not placed yet" if place is None else f"pid {place.pid} on node {place.host} ({place.node[:8]})"


def look_at(place: WorkerPlace, *, stack: bool) -> tuple[list[int], str] | None:
    """The board of an actor, and its stack if that is wanted; None if its node does not answer in time."""
    pid = place.pid if stack else 0
    try:
        if place.machine == machine_id():
            return look(place.board, place.stacks, pid)
        if place.node not in {node["NodeID"] for node in alive_nodes()}:
            return None
        return ray.get(_there(look, place).remote(place.board, place.stacks, pid), timeout=_LOOK_S)  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001 (the node is gone, or busy: then it is not known)
        return None


def tidy_up(place: WorkerPlace) -> None:
    """Delete the files of an actor that has died; without waiting, where it was elsewhere."""
    with suppress(Exception):
        if place.machine == machine_id():
            forget(place.board, place.stacks)
        elif place.node in {node["NodeID"] for node in alive_nodes()}:
            _there(forget, place).remote(place.board, place.stacks)


def _there(function: Any, place: WorkerPlace) -> Any:
    strategy = scheduling_strategies.NodeAffinitySchedulingStrategy(place.node, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)


def describe_cause(error: BaseException) -> str:
    """Why an actor is gone, from what Ray raised, in a sentence."""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "OOM" in text.partition("Some common causes")[0]:
        return "Ray killed it, because its node ran out of memory: use fewer workers, or smaller batches"
    if getattr(error, "preempted", False):
        return "its node was preempted"
    if isinstance(error, ray.exceptions.NodeDiedError) or "node has died" in text or "node died" in text.lower():
        return "its node has died"
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "its node cannot be reached"
    if isinstance(error, ray.exceptions.ObjectLostError):
        return "what it had made was lost with its node"
    if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        return f"its runtime_env cannot be set up: {text}"
    if "ray.kill" in text:
        return "it was killed by ray.kill"
    if "died unexpectedly" in text or "worker process has died" in text:
        return "its process was killed, crashed, or left: see its log in Ray's session directory"
    return " ".join(text.split())[:400]

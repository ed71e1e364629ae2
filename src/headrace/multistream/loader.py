"""The MultiStreamDataLoader: checks its arguments, and lets a plan of lanes run on the flow that all loaders share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from headrace.arguments import (
    check_callables,
    check_destination,
    check_policies,
    check_quarantine,
    check_workers,
    checked_context,
    warn_of_many_workers,
)
from headrace.base.errors import warn_user
from headrace.config import LoaderConfig
from headrace.deliver.device import check_device
from headrace.engines.engine import Engine, EngineMaker
from headrace.engines.ray_options import settle_workers
from headrace.frameworks.framework import Output
from headrace.loader_base import Loader
from headrace.multistream.assign import Assign
from headrace.multistream.plan import LaneSchedule
from headrace.multistream.positions import Layout, PositionMap, count_datasets, map_positions, shown
from headrace.order.samplers import EndlessSampler
from headrace.order.shard import Shard, find_rank, resolve_shard

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from headrace.insight.figures import LoaderKind

_MEASURED_S = 0.15
_FEWEST_BATCHES = 3


class MultiStreamDataLoader(Loader):
    """Batches for models that keep a state: position i of each batch goes on where position i of the last one stopped.

    Guarantees: batches are a function of the sequences, the arguments, the seed and the epoch: the same for any number
    and kind of workers and for any number of ranks. With `cycle=False`, nothing is lost. `with` ends all workers.

    Args:
        sequences: a list, array or dataset of sequences; with `assign="offset"`, one long sequence. A sequence is an
            array or tensor, a list, a dict of them (columns), a `Stream`, a dataset, an iterable, or a function that
            makes one of these. Without `batch_size`: datasets that each give their part of every batch.
        batch_size: how many positions there are, over all ranks.
        seq_len: give chunks of so many steps; None gives single steps.
        assign: "shuffle": every position reads all sequences, in its own order, another one in each cycle.
            "partition": the sequences are dealt to the positions, so that all have about as much to read. "offset":
            the positions start at places that lie evenly in the one sequence.
        cycle: go on for ever. If False, an epoch ends when all positions have read their share; those that are done
            earlier are empty, which the mask tells.
        read: makes a sequence of what `sequences` holds, in the workers: of a path, for instance, the tokens of a file.
        lengths: of the sequences, where only you know them; so that they can be partitioned well, and `len` is known.
        targets: give the item that follows each one, too; `ignore_index` after the last one of a sequence.
        is_first: tell where sequences begin.
        batch_first: chunks of (positions, steps) instead of (steps, positions).
        seed: decides the orders, and what your own sequences draw.
        num_workers: how many workers read; None is 0, or one for each of the datasets. "auto" chooses, from a moment's
            measuring.
        collate_fn: makes the data of a batch of a list: of the item of each position, or with `seq_len` of its items.
        on_error: "raise", or "skip" to leave out the rest of a sequence that raises, and go on with the next one.
        shard: (rank, world), "auto" to ask torch.distributed or the launcher, or a mesh, as in `DataLoader`: this
            rank's part of the positions.
        even: "allow", or "agree" to end the epoch on all ranks as soon as the positions of one are done; they agree
            over torch.distributed.

    The others are those of `DataLoader`; `prefetch_factor` counts blocks of many steps.

    Raises:
        ValueError, TypeError: an argument is wrong, or there is nothing to read.

    Examples:
        >>> from itertools import islice
        >>> loader = MultiStreamDataLoader([range(10, 14), range(20, 23)], 2, assign="partition")
        >>> [batch.tolist() for batch in islice(loader, 4)]
        [[10, 20], [11, 21], [12, 22], [13, 20]]
    """

    def __init__(
        self,
        sequences: Any,
        batch_size: int | None = None,
        *,
        seq_len: int | None = None,
        assign: Assign = "shuffle",
        cycle: bool = True,
        read: Callable[[Any], Any] | None = None,
        lengths: Iterable[int] | int | None = None,
        targets: bool = False,
        ignore_index: int = -100,
        is_first: bool = False,
        batch_first: bool = False,
        seed: int = 0,
        num_workers: int | Literal["auto"] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shard: Any = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        output: Output = "auto",
        engine: Literal["processes", "threads", "ray"] | Engine | EngineMaker = "processes",
        device: Any = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | None = None,
        on_worker_death: Literal["raise", "restart"] = "raise",
        max_restarts: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        even: Literal["allow", "agree"] = "allow",
    ) -> None:
        if even not in ("allow", "agree"):
            raise ValueError(f"even must be 'allow' or 'agree', got {even!r}.")
        if not isinstance(engine, str) or (engine == "ray" and num_workers == "auto"):
            engine, num_workers = settle_workers(engine, num_workers)
        if num_workers == "auto":
            arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__", "num_workers")}
            num_workers = _choose_workers(arguments)
        if num_workers is None:
            num_workers = 0 if batch_size is not None else count_datasets(sequences)
        check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        check_policies(engine, on_error, max_errors, on_worker_death, max_restarts)
        check_callables(collate_fn, worker_init_fn)
        check_destination(device, output)
        check_device(device)
        check_quarantine(quarantine, on_error)
        has_mask = not cycle and batch_size is not None
        layout = Layout(seq_len, batch_first, targets, ignore_index, is_first, has_mask)
        if lengths is not None and not isinstance(lengths, int):
            lengths = list(lengths)  # they are needed again if ranks become known later
        self.sampler = EndlessSampler()
        orders = _Orders(
            partial(
                map_positions,
                sequences,
                batch_size,
                assign,
                read=read,
                lengths=lengths,
                layout=layout,
                seed=seed,
                cycle=cycle,
                shard=shard,
                num_workers=num_workers,
            ),
            shard,
            self.sampler,
        )
        self._start(orders, quarantine)
        positions = self._positions
        self.sequences = sequences
        self.batch_size = positions.batch_size
        self.num_workers = len(positions.parts) if num_workers else 0
        self.engine = engine
        self.in_order = True
        self.persistent_workers = persistent_workers
        self._options = LoaderConfig(
            dataset=None,
            batched=True,
            batch_size=positions.batch_size,
            collate_fn=collate_fn,
            num_workers=self.num_workers,
            engine=engine,
            context=checked_context(multiprocessing_context, num_workers, engine),
            prefetch_factor=2 if num_workers and prefetch_factor is None else prefetch_factor,
            persistent_workers=persistent_workers,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
            seed=positions.seed,
            output=output,
            pin_memory=pin_memory,
            pin_memory_device=pin_memory_device,
            device=device,
            on_error=on_error,
            max_errors=max_errors,
            on_worker_death=on_worker_death,
            max_restarts=max_restarts,
            agrees=even == "agree",
        )
        self.shard = shard
        self._options.import_ahead()
        self.even = even
        warn_of_many_workers(num_workers, engine)

    def _config(self) -> LoaderConfig:
        if not self.num_workers:
            return self._options
        return self._options._replace(num_workers=len(self._positions.parts))

    @property
    def _positions(self) -> PositionMap:
        """Those of this rank, as far as that is known."""
        schedule: Any = self._epochs.schedule
        positions: PositionMap = schedule.positions
        return positions

    @property
    def _kind(self) -> LoaderKind:
        return "multistream"

    def __len__(self) -> int:
        """The number of batches of an epoch.

        Raises:
            TypeError: it never ends, or the lengths of the sequences are not known.
        """
        return self._epochs.schedule.n_batches(self._epochs.number)

    def __repr__(self) -> str:
        return shown(self.sequences, self._positions, self.num_workers, self.engine)


@dataclass(frozen=True)
class _Orders:
    """What decides which positions this rank reads."""

    map_positions: Callable[[], PositionMap]
    shard: Any
    sampler: EndlessSampler

    def ranks(self) -> Shard:
        return resolve_shard(self.shard, "drop") or Shard()

    def schedule(self) -> LaneSchedule:
        own = self.ranks()
        return LaneSchedule(self.map_positions(), (own.rank, own.world), self.sampler)

    def check_ranks(self, rank: tuple[int, int]) -> None:
        if self.shard is not None or rank[1] > 1:
            return
        _, world = find_rank()
        if world > 1:
            warn_user(
                f"Each of the {world} ranks gets all of the positions, since the MultiStreamDataLoader has no shard. "
                'Pass shard="auto" to give every rank its part, or shard=(0, 1) if all are to get everything.'
            )


def _choose_workers(arguments: dict[str, Any]) -> int:
    """How many workers are worth starting, from a moment's measuring with one."""
    from headrace.tuning.machine import this_machine

    left_out = {"num_workers": 1, "persistent_workers": False, "device": None, "pin_memory": False, "on_error": "raise"}
    one = {**arguments, **left_out, "max_errors": None, "quarantine": None}
    begun = 0.0
    with MultiStreamDataLoader(**one) as loader:
        try:
            for n_batches, _ in enumerate(loader, 1):
                begun = begun or perf_counter()  # without the start
                if n_batches >= _FEWEST_BATCHES and perf_counter() - begun > _MEASURED_S:
                    break
        except Exception:  # noqa: BLE001 (the loop will meet it, and without workers its traceback is plain)
            return 0
        read_s = sum(loader.stats()["stages"].values())
    if read_s < _WORTH_A_WORKER_S and not arguments["prefetch_factor"]:
        return 0
    return max(1, min(this_machine().cores - 1, loader.batch_size))


_WORTH_A_WORKER_S = 1e-3  # of reading for a batch

"""The DataLoader: torch's signature; it checks its arguments, puts a flow together, and leaves the work to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from headrace.arguments import (
    check_callables,
    check_destination,
    check_iterable,
    check_order,
    check_policies,
    check_quarantine,
    check_snapshots,
    check_workers,
    checked_context,
    checked_seed,
    shown,
    warn_of_many_workers,
)
from headrace.base.errors import WarnOnce
from headrace.base.interrupts import hold_interrupts
from headrace.base.optional import loaded
from headrace.base.own_states import knows_state
from headrace.base.typevars import Batch_co
from headrace.base.user_classes import Adoptable, adopted
from headrace.batch.collate import default_collate, default_convert
from headrace.config import LoaderConfig
from headrace.data.dataset import SupportsGetItem, is_datapipe, is_iterable_dataset
from headrace.deliver.device import check_device
from headrace.engines.engine import Engine, EngineMaker
from headrace.engines.ray_options import settle_workers
from headrace.frameworks.framework import Output, resolve_output
from headrace.loader_base import Loader
from headrace.order.balance import Balance, Costs
from headrace.order.batch_sampler import BatchSampler
from headrace.order.iterables import IterableOrder
from headrace.order.key_plan import is_settled
from headrace.order.samplers import EndlessSampler, RandomSampler, SequentialSampler
from headrace.order.schedule import Schedule
from headrace.order.seeded_order import order_by_seed
from headrace.order.seeded_samplers import RankSampler, SeededSampler, SeededSequentialSampler
from headrace.order.shard import Even, Shard, find_rank, resolve_shard
from headrace.order.torch_order import TorchOrder
from headrace.order.worker_states import Told

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from headrace.insight.figures import LoaderKind

T_co = TypeVar("T_co", covariant=True)

_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


@adopted("torch.utils.data.dataloader")
class DataLoader(Loader[Batch_co], Adoptable[T_co], Generic[T_co, Batch_co]):
    """Batches of a dataset: everything `torch.utils.data.DataLoader` does, with its arguments and its results.

    Guarantees: the same arguments and the same state of torch's random generator give the same batches as torch, bit
    for bit, and leave the generator in the same state. `with DataLoader(...) as loader:` ends all workers at the end.

    Args:
        dataset: any object with `__getitem__` (and mostly `__len__`), or an `IterableDataset`, headrace's or torch's.
        batch_size: samples per batch; None gives single samples.
        shuffle: a new random order each epoch.
        sampler: an iterable of keys, instead of `shuffle`.
        batch_sampler: an iterable of lists of keys, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
        num_workers: how many workers load ahead of the loop; 0 loads in this process, when asked. "auto" chooses, from
            a moment's measuring in a worker process: see `headrace.tune` for a thorough choice.
        collate_fn: makes a batch of a list of samples (or, with `batch_size=None`, of one); see `default_collate`.
        pin_memory: copy the batch into page-locked memory, if there is an accelerator.
        drop_last: leave out a last batch that is not full.
        timeout: seconds to wait for a batch of the workers before an error; 0 waits for ever.
        worker_init_fn: called with its number in each worker, before the first sample.
        multiprocessing_context: how worker processes start: "fork", "spawn", "forkserver" or a context.
        generator: a torch or NumPy generator for shuffling and for the workers' seeds.
        prefetch_factor: batches that each worker loads ahead; by default 2, and more while they are quick and small.
        persistent_workers: keep the workers, and their copies of the dataset, from one epoch to the next.
        in_order: give batches in the order of the sampler; else as they are ready.
        output: "torch", "numpy" or "jax" arrays; "auto" is torch if it is installed, else NumPy. What a `collate_fn`
            returns is converted too, except with "auto". JAX has 32-bit numbers only, unless `jax_enable_x64` is set.
        engine: what the workers are: "processes", "threads" for work that releases the GIL, or "ray" for actors on a
            Ray cluster (see `RayEngine` and `RayPool`); or an engine of your own (see `headrace.testing`).
        device: move batches of torch tensors there, ahead of the loop; what `torch.device` takes.
        balance: with `shard`, what each sample costs, by its index: an array, or a function. Of the samples of each
            step, every rank gets a part that costs about as much as those of others, in place of every `world`-th one.
        on_error: "raise", or "skip" to leave out samples that raise and go on; they are listed in `errors`, and the
            first one is told in a warning. An epoch that gives no batch because of them ends with an error.
        max_errors: with "skip", how many samples may be left out before an error; None for any number.
        on_worker_death: "raise", or "restart" to replace a worker process that was killed or crashed, and let the new
            one do its batches again. A sample at which two workers crash, or three are killed, is treated as one
            that raises.
        max_restarts: with "restart", how many workers are replaced in a row, with no batch in between, before an error;
            None is 30 and one for each worker, and of those that die as they start one for each worker.
        quarantine: with "skip", a file that samples that are left out are written to, each once, as JSON lines.
        snapshot_every_n_steps: after how many batches a dataset with `state_dict` is asked for it. A state in between
            is exact, too: the batches since are loaded again when it is resumed.
        save_generators: keep the workers' random generators in the state, some 13 kB for each worker: so without
            `seed`, random augmentations resume bit for bit.

    Raises:
        ValueError, TypeError: an argument is wrong, or excludes another; the same type as torch's.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> Any:
            """`DataLoader[Sample]`, or `DataLoader[Sample, Batch]`."""
            return super().__class_getitem__(item if isinstance(item, tuple) else (item, Any))

    _iterator = None  # torch's loaders have one, which trainers look for

    def __init__(
        self,
        dataset: SupportsGetItem[T_co] | Iterable[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Batch_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        output: Output = "auto",
        engine: Literal["processes", "threads", "ray"] | Engine | EngineMaker = "processes",
        device: Any = None,
        shard: Any = None,
        even: Even = "drop",
        balance: Costs | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | None = None,
        on_worker_death: Literal["raise", "restart"] = "raise",
        max_restarts: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        snapshot_every_n_steps: int = 1,
        save_generators: bool = False,
    ) -> None:
        if not isinstance(engine, str) or (engine == "ray" and num_workers == "auto"):
            engine, num_workers = settle_workers(engine, num_workers)
        if num_workers == "auto":
            from headrace.tuning.auto import Wanted, choose_workers  # slow to import

            size = batch_size if batch_sampler is None else getattr(batch_sampler, "batch_size", batch_size)
            wanted = Wanted(dataset, size, collate_fn, output, engine, multiprocessing_context)
            needs_workers = prefetch_factor is not None or persistent_workers or timeout > 0
            num_workers = choose_workers(DataLoader, wanted, needs_workers=needs_workers)
        check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        check_policies(engine, on_error, max_errors, on_worker_death, max_restarts)
        check_callables(collate_fn, worker_init_fn)
        check_destination(device, output)
        check_device(device)
        seed = checked_seed(seed, shard, generator)
        self._chose_prefetch = prefetch_factor is not None
        if num_workers > 0 and prefetch_factor is None:
            prefetch_factor = 2
        self._iterable = is_iterable_dataset(dataset)
        if self._iterable and is_datapipe(dataset):
            from headrace.frameworks.torch_datapipes import with_shuffle

            dataset = with_shuffle(dataset, shuffle)
            shuffle = None
        self.dataset: Any = dataset
        self.num_workers = int(num_workers)
        self.engine = engine
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout if isinstance(timeout, int) else float(timeout)
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        self.output = output
        self.device = device
        has_shard = resolve_shard(shard, even) is not None
        self.shard = shard
        self.even = even
        self.balance = balance
        # Ranks must agree; torch's DistributedSampler has seed 0, too, unless told otherwise.
        self._is_stream = is_stream(dataset)
        self.seed = 0 if seed is None and has_shard and not self._is_stream else seed
        self.on_error = on_error
        self.max_errors = max_errors
        self.on_worker_death = on_worker_death
        self.max_restarts = max_restarts
        check_quarantine(quarantine, on_error)
        self.quarantine = quarantine
        check_snapshots(snapshot_every_n_steps, save_generators, engine, seed, is_stream=self._is_stream)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.save_generators = save_generators
        # Whose global generator is drawn from: that of the library the batches are for.
        self._random_library = "torch" if resolve_output(output) == "torch" else "numpy"

        if self._iterable:
            check_iterable(shuffle, sampler, batch_sampler)
        else:
            shuffle = bool(shuffle)
        check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        self._balance = self._checked_balance(balance, batch_size, has_shard=has_shard)
        deals_all = sampler is None and batch_sampler is None and not self._iterable and not has_shard
        if sampler is None:
            sampler = self._default_sampler(shuffle, generator)
        elif isinstance(sampler, SeededSampler) and not self._iterable:
            sampler = self._in_front_of(sampler.inner)  # a loader that is built again
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)

        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generator = generator
        if collate_fn is None:
            collate_fn = default_convert if batch_sampler is None else default_collate
        self.collate_fn: Callable[[Any], Any] = collate_fn
        self.persistent_workers = persistent_workers
        self._promised_samples: int | None = None
        self._start(self._orders(deals_all), quarantine)
        self._initialised = True
        warn_of_many_workers(num_workers, engine)
        self._config().import_ahead()

    def _config(self) -> LoaderConfig:
        return LoaderConfig(
            dataset=self.dataset,
            iterable=self._iterable and not self._is_stream,
            batched=self.batch_sampler is not None,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
            engine=self.engine,
            context=self._multiprocessing_context,
            prefetch_factor=self.prefetch_factor,
            deepens=self.num_workers > 0 and self._may_deepen(),
            persistent_workers=self.persistent_workers,
            worker_init_fn=self.worker_init_fn,
            timeout=self.timeout,
            in_order=self.in_order,
            seed=self.seed,
            generator=self.generator,
            library=self._random_library,
            output=self.output,
            pin_memory=self.pin_memory,
            pin_memory_device=self.pin_memory_device,
            device=self.device,
            on_error=self.on_error,
            max_errors=self.max_errors,
            on_worker_death=self.on_worker_death,
            max_restarts=self.max_restarts,
            promised_samples=self._promised_samples,
            snapshot_every=self._snapshot_every,
            saves_generators=self.save_generators,
            agrees=self.even == "agree",
        )

    def _orders(self, deals_all: bool) -> _Orders:
        return _Orders(
            dataset=self.dataset,
            iterable=self._iterable,
            index_sampler=self._index_sampler,
            sampler=self.sampler,
            batched=self.batch_sampler is not None,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            seed=self.seed,
            generator=self.generator,
            shard=self.shard,
            even=self.even,
            skips=self.on_error == "skip",
            deals_all=deals_all,
            balance=self._balance,
            told=Told(self.dataset, self._snapshot_every if self._tells_state else 0),
        )

    @property
    def _tells_state(self) -> bool:
        """Whether workers tell of their datasets by key, or of their generators."""
        return not self._iterable and (self.save_generators or knows_state(self.dataset))

    @property
    def _snapshot_every(self) -> int:
        """A worker that stands in for another one must know its dataset's state after each batch.

        And nobody knows which generators the loop's own process found at the beginning.
        """
        needs_all = self.on_worker_death == "restart" or (self.save_generators and not self.num_workers)
        return 1 if needs_all else self.snapshot_every_n_steps

    def _default_sampler(self, shuffle: bool | None, generator: Any) -> Any:
        if self._iterable:
            return EndlessSampler()
        if shuffle:
            drawn = RandomSampler(self.dataset, generator=generator, library=self._random_library)
            return drawn if generator is not None else self._in_front_of(drawn)
        return self._in_front_of(SequentialSampler(self.dataset))

    def _in_front_of(self, sampler: Any) -> Any:
        """What trainers see as the sampler: they must see what a seed decides, and what is dealt out already."""
        if self.seed is None:
            return sampler
        if self.shard is None:
            kind = SeededSequentialSampler if type(sampler) is SequentialSampler else SeededSampler
            return kind(sampler, self.seed)
        return RankSampler(sampler, self.seed, partial(_found_shard, self.shard, self.even), self._balance)

    def _checked_balance(self, costs: Costs | None, batch_size: int | None, *, has_shard: bool) -> Balance | None:
        if costs is None:
            return None
        if self._iterable or not has_shard:
            raise ValueError(
                "balance deals the samples of a dataset by key to ranks, so it needs shard=. Streams deal out windows, "
                "whose rows are not known ahead."
            )
        if not callable(costs) and len(costs) != len(self.dataset):
            raise ValueError(
                f"balance must have the cost of each sample, got {len(costs)} for a dataset of {len(self.dataset)}."
            )
        return Balance(costs, batch_size or 1)

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        return self._multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: str | BaseContext | None) -> None:
        self._multiprocessing_context = checked_context(context, self.num_workers, self.engine)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate asks before it builds a loader of its own, which deals out the data of this one once more.

        Raises:
            RuntimeError: this one does that itself.
        """
        accelerate = loaded("accelerate.state")
        if (not self._is_stream and self.shard is None) or accelerate is None:
            return False
        if accelerate.PartialState().num_processes > 1:
            raise RuntimeError(
                "Accelerate would deal out the data of this DataLoader again, of which every process has its own part "
                "already. Prepare it with headrace.integrations.accelerate.prepare(accelerator, loader)."
            )
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_initialised"):
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized. Make a new one."
            )
        super().__setattr__(name, value)

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch: with `seed` it decides the order, and samplers that count are told.

        Without this, epochs count from 0. Where a loaded state is in the middle of that epoch, it goes on there.

        Raises:
            ValueError: `epoch` is negative, or no int.
        """
        super().set_epoch(epoch)
        for sampler in (self._index_sampler, self.sampler):
            tell = getattr(sampler, "set_epoch", None)
            if self.seed is None and callable(tell):
                tell(epoch)

    def _may_deepen(self) -> bool:
        """Whether it is up to us how far ahead the workers load.

        Persistent workers that are left in the middle of an epoch have drawn random numbers for what they loaded ahead.
        """
        if self._chose_prefetch or self.on_worker_death == "restart":
            return False
        if self.seed is None and self.persistent_workers:
            return False
        return self._iterable or is_settled(self._index_sampler)

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        """The number of batches; of an iterable dataset, what its own `len` promises.

        Raises:
            TypeError: the dataset, or the sampler, has no length.
        """
        if not self._iterable or self._is_stream:
            return self._epochs.schedule.n_batches(self._epochs.number)
        self._promised_samples = n = len(self.dataset)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    @property
    def _kind(self) -> LoaderKind:
        return "stream" if self._is_stream else "iterable" if self._iterable else "map"

    def __repr__(self) -> str:
        return shown(self)


StatefulDataLoader = DataLoader
"""torchdata's name: every loader has `state_dict` and `load_state_dict`."""


@dataclass(frozen=True)
class _Orders:
    """What decides the order of a loader. It does not hold the loader."""

    dataset: Any
    iterable: bool
    index_sampler: Any
    sampler: Any
    batched: bool
    batch_size: int | None
    drop_last: bool
    seed: int | None
    generator: Any
    shard: Any
    even: Even
    skips: bool
    deals_all: bool
    balance: Balance | None
    told: Told
    warn: WarnOnce = field(default_factory=WarnOnce)

    def ranks(self) -> Shard | None:
        """A stream is dealt out to all ranks, unless it is said otherwise."""
        shard = "auto" if self.shard is None and is_stream(self.dataset) else self.shard
        return resolve_shard(shard, self.even)

    def schedule(self) -> Schedule:
        described: dict[str, Any] = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        describe = partial(_describe, self.dataset)
        if is_stream(self.dataset):
            return self._stream_schedule()
        shard = self.ranks()
        if self.iterable:
            if shard is not None:
                raise ValueError(
                    "shard deals out the keys of a dataset by key, but this is a stream, which must read its own part "
                    "by itself: see headrace.get_worker_info() and torch.distributed.get_rank()."
                )
            return IterableOrder(self.batch_size, self.seed, described, self.dataset)
        if self.seed is not None:
            return order_by_seed(
                self.index_sampler,
                self.sampler,
                self.batch_size,
                self.drop_last,
                self.seed,
                shard or Shard(),
                describe,
                self.told,
                self.balance,
            )
        described["sampler"] = type(self.index_sampler if self.batch_size is None else self.sampler).__name__
        return TorchOrder(
            self.index_sampler, self.generator, partial(describe, **described), batched=self.batched, told=self.told
        )

    def _stream_schedule(self) -> Schedule:
        with hold_interrupts():  # see LoaderConfig.import_ahead
            from headrace.streams.rank_windows import Loading
            from headrace.streams.schedule import StreamSchedule

        recipe = self.dataset.recipe.lenient() if self.skips else self.dataset.recipe
        size = self.batch_size or 1
        recipe = recipe.for_batches(size)
        batch_rows = size * (1 if recipe.packing is None else recipe.packing.length)
        shard = self.ranks() or Shard()
        loading = Loading(recipe, batch_rows, self.drop_last, self.seed, shard, self.skips)
        return StreamSchedule(loading, size, self.sampler)

    def check_ranks(self, rank: tuple[int, int]) -> None:
        _, world = find_rank() if self.deals_all else (0, 1)
        if world > 1:
            self.warn(
                f"Each of the {world} ranks gets all of the data, since the DataLoader has neither shard nor a "
                'distributed sampler. Pass shard="auto" to give every rank its part, or shard=(0, 1) if all of them '
                "are to get everything."
            )


def _found_shard(shard: Any, even: Even) -> Shard:
    return resolve_shard(shard, even) or Shard()


def is_stream(dataset: Any) -> bool:
    """Whether it is a `Stream`; whoever has one has imported its module."""
    streams = loaded("headrace.streams.stream")
    return streams is not None and isinstance(dataset, streams.Stream)


def _describe(dataset: Any, **arguments: Any) -> dict[str, Any]:
    """What a state must agree with."""
    try:
        length = len(dataset)
    except Exception:  # noqa: BLE001 (whatever the user's code raises; then nobody needs its length)
        length = None
    return {**arguments, "length": length}

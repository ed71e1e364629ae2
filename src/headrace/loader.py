"""The DataLoader: torch's signature; it checks its arguments, puts a flow together, and leaves the work to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from headrace.arguments import (
    check_collate,
    check_iterable,
    check_order,
    check_policies,
    check_workers,
    checked_context,
    warn_of_many_workers,
)
from headrace.base.errors import TooManyBadSamplesError
from headrace.base.messages import BadSample, Pull
from headrace.base.optional import loaded
from headrace.batch.collate import default_collate, default_convert, taught_types
from headrace.data.dataset import SupportsGetItem, is_datapipe, is_iterable_dataset
from headrace.deliver.device import check_device, plan_delivery
from headrace.deliver.iterator import LoaderIterator, PromisedLength
from headrace.deliver.pinning import pin_function
from headrace.engines.duplicates import DuplicateWatch
from headrace.engines.engine import Engine, Job
from headrace.engines.inline import InlineEngine
from headrace.engines.threads import ThreadEngine
from headrace.flow import Flow
from headrace.frameworks.framework import Output, random_source, resolve_output
from headrace.order.batch_sampler import BatchSampler
from headrace.order.plan import plan_keys
from headrace.order.samplers import EndlessSampler, RandomSampler, SequentialSampler
from headrace.preparing import PreparingEngine

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

T_co = TypeVar("T_co", covariant=True)

_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


class DataLoader(Generic[T_co]):
    """Batches of a dataset: everything `torch.utils.data.DataLoader` does, with its arguments and its results.

    Guarantees: the same arguments and the same state of torch's random generator give the same batches as torch, bit
    for bit, and leave the generator in the same state.

    Args:
        dataset: any object with `__getitem__` (and mostly `__len__`), or an `IterableDataset`, headrace's or torch's.
        batch_size: samples per batch; None gives single samples.
        shuffle: a new random order each epoch.
        sampler: an iterable of keys, instead of `shuffle`.
        batch_sampler: an iterable of lists of keys, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
        num_workers: how many workers load ahead of the loop; 0 loads in this process, when asked.
        collate_fn: makes a batch of a list of samples (or, with `batch_size=None`, of one); see `default_collate`.
        pin_memory: copy the batch into page-locked memory, if there is an accelerator.
        drop_last: leave out a last batch that is not full.
        timeout: seconds to wait for a batch of the workers before an error; 0 waits for ever.
        worker_init_fn: called with its number in each worker, before the first sample.
        multiprocessing_context: how worker processes start: "fork", "spawn", "forkserver" or a context.
        generator: a torch or NumPy generator for shuffling and for the workers' seeds.
        prefetch_factor: batches that each worker loads ahead; 2 by default.
        persistent_workers: keep the workers, and their copies of the dataset, from one epoch to the next.
        in_order: give batches in the order of the sampler; else as they are ready.
        output: "torch", "numpy" or "jax" arrays; "auto" is torch if it is installed, else NumPy. What a `collate_fn`
            returns is converted too, except with "auto". JAX has 32-bit numbers only, unless `jax_enable_x64` is set.
        engine: what the workers are: "processes", or "threads" for work that lets go of the GIL; or an engine of your
            own (see `headrace.testing`).
        device: move batches there, ahead of the loop; what `torch.device` takes.
        on_error: "raise", or "skip" to leave out samples that raise and go on; they are listed in `errors`.
        max_errors: with "skip", how many samples may be left out before an error; None for any number.
        on_worker_death: "raise", or "restart" to replace a worker process that was killed or crashed, and let the new
            one do its batches again. A sample at which two workers die is treated as one that raises.

    Raises:
        ValueError, TypeError: an argument is wrong, or excludes another; the same type as torch's.
    """

    def __init__(
        self,
        dataset: SupportsGetItem[T_co] | Iterable[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
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
        output: Output = "auto",
        engine: Literal["processes", "threads"] | Engine = "processes",
        device: Any = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | None = None,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> None:
        check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        check_policies(engine, on_error, max_errors, on_worker_death)
        check_device(device)
        if num_workers > 0 and prefetch_factor is None:
            prefetch_factor = 2
        self._iterable = is_iterable_dataset(dataset)
        if self._iterable and is_datapipe(dataset):
            from headrace.frameworks.torch_datapipes import with_shuffle

            dataset = with_shuffle(dataset, shuffle)
            shuffle = None
        self.dataset: Any = dataset
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        self.output = output
        self.engine = engine
        self.device = device
        self.on_error = on_error
        self.max_errors = max_errors
        self.on_worker_death = on_worker_death
        self.errors: list[BadSample] = []
        # Whose global generator is drawn from: that of the library the batches are for.
        self._random_library = "torch" if resolve_output(output) == "torch" else "numpy"

        if self._iterable:
            check_iterable(shuffle, sampler, batch_sampler)
        else:
            shuffle = bool(shuffle)
        check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        check_collate(collate_fn)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        if sampler is None:
            sampler = self._default_sampler(shuffle, generator)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)

        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generator = generator
        if collate_fn is None:
            collate_fn = default_convert if batch_sampler is None else default_collate
        self.collate_fn = collate_fn
        self.persistent_workers = persistent_workers
        self._promised_samples: int | None = None
        self._running: _Running | None = None  # what persistent workers keep
        self._initialised = True
        warn_of_many_workers(num_workers)

    def _default_sampler(self, shuffle: bool | None, generator: Any) -> Iterable[Any]:
        if self._iterable:
            return EndlessSampler()
        if shuffle:
            return RandomSampler(self.dataset, generator=generator, library=self._random_library)
        return SequentialSampler(self.dataset)

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        return self._multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: str | BaseContext | None) -> None:
        self._multiprocessing_context = checked_context(context, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_initialised"):
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized. Make a new one."
            )
        super().__setattr__(name, value)

    def __iter__(self) -> LoaderIterator:
        if self._running is not None:
            return self._begin_next_epoch(self._running)
        pin = pin_function(self.pin_memory_device) if self.pin_memory else None
        shared_seed = self._seed_datapipe()
        keys = self._plan_keys()
        # Drawn in every epoch, needed or not: torch does, and its generator must be left in the same state.
        base_seed = random_source(self.generator, self._random_library).draw_seed()
        engine = self._make_engine()
        if self.num_workers > 0:
            if self.prefetch_factor == 0:
                raise AssertionError("prefetch_factor must be at least 1 with workers, got 0.")
            # torch asks twice, too: the first seed of a DataPipe counts, and the second answer of a sampler.
            self._seed_datapipe()
            keys = self._plan_keys()
        engine.start(self._make_job(base_seed, shared_seed))
        try:
            delivery = plan_delivery(pin, self.device)  # after the start: it may initialise CUDA, which does not fork
        except BaseException:
            engine.close()
            raise
        if self.num_workers == 0:
            return LoaderIterator(
                self._make_flow(keys, engine, None), self._index_sampler, self._promise(), finish=delivery.at_once
            )
        duplicates = DuplicateWatch(self.dataset) if self._iterable else None
        if delivery.prepare is not None:
            engine = PreparingEngine(engine, delivery, depth=engine.capacity if self.device is None else 2)
        flow = self._make_flow(keys, engine, duplicates)
        flow.submit_tasks()
        iterator = LoaderIterator(
            flow,
            self._index_sampler,
            self._promise(),
            workers=self.num_workers,
            stays=self.persistent_workers,
            finish=delivery.finish,
        )
        if self.persistent_workers:
            self._running = _Running(iterator, engine, flow, duplicates)
        return iterator

    def _begin_next_epoch(self, running: _Running) -> LoaderIterator:
        """Let the persistent workers start over. Their iterator is the same in all epochs, as torch's is."""
        shared_seed = self._seed_datapipe()
        keys = self._plan_keys()
        running.flow.abandon()
        running.engine.begin_epoch(shared_seed)
        running.flow = self._make_flow(keys, running.engine, running.duplicates)
        running.flow.submit_tasks()
        running.iterator.begin(running.flow, self._promise())
        return running.iterator

    def close(self) -> None:
        """End persistent workers. The next epoch starts new ones."""
        running, self._running = self._running, None
        if running is not None:
            running.iterator.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    def _plan_keys(self) -> Iterator[Any]:
        return repeat(Pull(self.batch_size)) if self._iterable else plan_keys(self._index_sampler)

    def _seed_datapipe(self) -> int | None:
        if not is_datapipe(self.dataset):
            return None
        from headrace.frameworks.torch_datapipes import begin_epoch

        return begin_epoch(self.dataset, self.generator, shard=self.num_workers == 0)

    def _promise(self) -> PromisedLength | None:
        return None if self._promised_samples is None else PromisedLength(self.dataset, self._promised_samples)

    def _make_flow(self, keys: Iterator[Any], engine: Engine, duplicates: DuplicateWatch | None) -> Flow:
        return Flow(
            keys,
            engine,
            in_order=self.in_order,
            tell_bad=self._note_errors if self.on_error == "skip" else None,
            tell_first=None if duplicates is None else duplicates.tell,
        )

    def _note_errors(self, bad: tuple[BadSample, ...]) -> None:
        self.errors.extend(bad)
        if self.max_errors is not None and len(self.errors) > self.max_errors:
            last = bad[-1]
            raise TooManyBadSamplesError(
                f"{len(self.errors)} samples were left out, and max_errors={self.max_errors}. The last one, "
                f"{last.key!r} in batch {last.batch}: {last.error}. All of them are in loader.errors.\n{last.traceback}"
            )

    def _make_engine(self) -> Engine:
        if not isinstance(self.engine, str):
            return self.engine
        if self.num_workers == 0:
            if self.timeout != 0:
                raise AssertionError(f"timeout must be 0 without workers to wait for, got {self.timeout}.")
            return InlineEngine()
        prefetch = self.prefetch_factor or 1
        if self.engine == "threads":
            return ThreadEngine(self.num_workers, prefetch, self.timeout)
        from headrace.engines.processes import ProcessEngine  # multiprocessing is slow to import

        return ProcessEngine(
            self.num_workers,
            prefetch,
            context=self.multiprocessing_context or self._safe_context(),
            timeout=self.timeout,
            restart=self.on_worker_death == "restart",
        )

    def _safe_context(self) -> BaseContext | None:
        """None is the default context. JAX's threads do not survive a fork."""
        if self.output != "jax":
            return None
        import multiprocessing

        return multiprocessing.get_context("forkserver")

    def _make_job(self, base_seed: int, shared_seed: int | None) -> Job:
        batched = self.batch_sampler is not None
        is_default = _is_default(self.collate_fn, "default_collate" if batched else "default_convert")
        return Job(
            dataset=self.dataset,
            iterable=self._iterable,
            batched=batched,
            drop_last=self.drop_last,
            collate_fn=None if is_default else self.collate_fn,
            output=resolve_output(self.output),
            convert=self.output != "auto",
            init_fn=self._worker_init(),
            base_seed=base_seed,
            shared_seed=shared_seed,
            skip_errors=self.on_error == "skip",
            taught=taught_types(),
        )

    def _worker_init(self) -> Callable[[int], None] | None:
        if self.num_workers == 0 or not is_datapipe(self.dataset):
            return self.worker_init_fn
        from headrace.frameworks.torch_datapipes import sharding_init

        return sharding_init(self.worker_init_fn)

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        """The number of batches; of an iterable dataset, what its own `len` promises.

        Raises:
            TypeError: the dataset, or the sampler, has no length.
        """
        if not self._iterable:
            return len(self._index_sampler)
        self._promised_samples = n = len(self.dataset)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


@dataclass
class _Running:
    """Persistent workers, and the one iterator that they have."""

    iterator: LoaderIterator
    engine: Engine
    flow: Flow
    duplicates: DuplicateWatch | None


def _is_default(collate_fn: Any, name: str) -> bool:
    """Whether `collate_fn` is headrace's or torch's function of that name."""
    if collate_fn is (default_collate if name == "default_collate" else default_convert):
        return True
    torch_data = loaded("torch.utils.data")
    return torch_data is not None and collate_fn is getattr(torch_data, name)

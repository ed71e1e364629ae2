"""The DataLoader: torch's signature; it checks its arguments, puts a flow together, and leaves the work to it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.base.messages import Pull
from headrace.base.optional import loaded
from headrace.batch.collate import default_collate, default_convert
from headrace.batch.padding import pad_collate
from headrace.data.dataset import SupportsGetItem, is_datapipe, is_iterable_dataset
from headrace.deliver.iterator import LoaderIterator, PromisedLength
from headrace.deliver.pinning import pin_function
from headrace.engines.engine import Engine, Job
from headrace.engines.inline import InlineEngine
from headrace.flow import Flow
from headrace.frameworks.framework import Output, random_source, resolve_output
from headrace.order.batch_sampler import BatchSampler
from headrace.order.plan import plan_keys
from headrace.order.samplers import EndlessSampler, RandomSampler, SequentialSampler

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
        num_workers: 0 loads in this process.
        collate_fn: makes a batch of a list of samples (or, with `batch_size=None`, of one); see `default_collate`.
        pin_memory: copy the batch into page-locked memory, if there is an accelerator.
        drop_last: leave out a last batch that is not full.
        generator: a torch or NumPy generator for shuffling and for the workers' seeds.
        output: "torch", "numpy" or "jax" arrays; "auto" is torch if it is installed, else NumPy. What a `collate_fn`
            returns is converted too, except with "auto". JAX has 32-bit numbers only, unless `jax_enable_x64` is set.
        engine: what runs the tasks, if not one chosen by `num_workers`; see `headrace.testing`.

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
        engine: Engine | None = None,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
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
        # Whose global generator is drawn from: that of the library the batches are for.
        self._random_library = "torch" if resolve_output(output) == "torch" else "numpy"

        if self._iterable:
            _check_iterable(shuffle, sampler, batch_sampler)
        else:
            shuffle = bool(shuffle)
        _check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        _check_collate(collate_fn)
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
        self._initialised = True
        _warn_of_many_workers(num_workers)

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
        self._multiprocessing_context = _checked_context(context, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_initialised"):
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized. Make a new one."
            )
        super().__setattr__(name, value)

    def __iter__(self) -> LoaderIterator:
        finish = pin_function(self.pin_memory_device) if self.pin_memory else None
        if is_datapipe(self.dataset):
            from headrace.frameworks.torch_datapipes import begin_epoch

            begin_epoch(self.dataset, self.generator)
        keys = repeat(Pull(self.batch_size)) if self._iterable else plan_keys(self._index_sampler)
        # Drawn in every epoch, needed or not: torch does, and its generator must be left in the same state.
        random_source(self.generator, self._random_library).draw_seed()
        engine = self._make_engine()
        engine.start(self._make_job())
        promise = None if self._promised_samples is None else PromisedLength(self.dataset, self._promised_samples)
        return LoaderIterator(Flow(keys, engine, in_order=self.in_order), self._index_sampler, finish, promise)

    def _make_engine(self) -> Engine:
        if self.engine is not None:
            return self.engine
        if self.num_workers > 0:
            raise ValueError(
                f"num_workers must be 0: this version of headrace loads in process only; got {self.num_workers}."
            )
        if self.timeout != 0:
            raise AssertionError(f"timeout must be 0 without workers to wait for, got {self.timeout}.")
        return InlineEngine()

    def _make_job(self) -> Job:
        batched = self.batch_sampler is not None
        is_default = _is_default(self.collate_fn, "default_collate" if batched else "default_convert")
        return Job(
            dataset=self.dataset,
            iterable=self._iterable,
            batched=batched,
            drop_last=self.drop_last,
            collate_fn=None if is_default else self.collate_fn,
            output=self.output,
            convert=self.output != "auto",
        )

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


def _is_default(collate_fn: Any, name: str) -> bool:
    """Whether `collate_fn` is headrace's or torch's function of that name."""
    if collate_fn is (default_collate if name == "default_collate" else default_convert):
        return True
    torch_data = loaded("torch.utils.data")
    return torch_data is not None and collate_fn is getattr(torch_data, name)


def _check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {num_workers}. Pass num_workers=0 to load in this process."
        )
    if timeout < 0:
        raise ValueError(f"timeout option should be non-negative, got {timeout}.")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            f"prefetch_factor option could only be specified with num_workers > 0, got {prefetch_factor}. Leave it out."
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError(f"prefetch_factor option should be non-negative, got {prefetch_factor}.")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0: there are no workers to keep.")


def _check_iterable(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in given.items():
        if value is not None and not (name == "shuffle" and value in {False}):
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value!r}. The "
                "order of an iterable dataset is its own."
            )


def _check_order(batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any) -> None:
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle: the sampler decides the order.")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last: the batch "
            "sampler decides all of them."
        )
    if batch_sampler is None and batch_size is None and drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last.")


def _check_collate(collate_fn: Any) -> None:
    if collate_fn is pad_collate:
        raise TypeError("collate_fn must be the function that pad_collate() returns: add the parentheses.")


def _checked_context(context: Any, num_workers: int) -> BaseContext | None:
    if context is None:
        return None
    if not num_workers > 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}."
        )
    import multiprocessing  # slow to import, and needed with workers only

    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"{context!r}."
            )
        return multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got {context!r}."
        )
    return context


def _warn_of_many_workers(num_workers: int) -> None:
    get_affinity = getattr(os, "sched_getaffinity", None)
    cores = len(get_affinity(0)) if get_affinity is not None else os.cpu_count() or 1
    if num_workers > cores:
        warnings.warn(
            f"This DataLoader will create {num_workers} workers, but this process may use {cores} CPU cores only. More "
            "workers than cores make loading slow, unless they mostly wait.",
            stacklevel=3,
        )

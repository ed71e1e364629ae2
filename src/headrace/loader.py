"""The DataLoader: torch's signature; it checks its arguments, puts a flow together, and leaves the work to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from headrace.arguments import (
    check_callables,
    check_destination,
    check_iterable,
    check_order,
    check_policies,
    check_workers,
    checked_context,
    checked_count,
    checked_seed,
    shown,
    warn_of_many_workers,
)
from headrace.assembly import import_engine, is_stream
from headrace.base.messages import BadSample
from headrace.base.warning import WarnOnce
from headrace.batch.collate import default_collate, default_convert
from headrace.data.dataset import SupportsGetItem, is_datapipe, is_iterable_dataset
from headrace.deliver.device import check_device
from headrace.deliver.iterator import LoaderIterator, OpenIterators
from headrace.deliver.quarantine import Quarantine
from headrace.engines.engine import Engine
from headrace.epochs import Epochs
from headrace.frameworks.framework import Output, resolve_output
from headrace.insight.explained import Explained
from headrace.order.batch_sampler import BatchSampler
from headrace.order.course import Course
from headrace.order.plan import is_settled
from headrace.order.replayed_course import ReplayedCourse
from headrace.order.samplers import EndlessSampler, RandomSampler, SequentialSampler
from headrace.order.seeded_course import seeded_course
from headrace.order.shard import Even, Shard, resolve_shard
from headrace.order.stream_course import StreamCourse

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from typing_extensions import Self

    from headrace.insight.audit import Audit

T_co = TypeVar("T_co", covariant=True)

_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


class DataLoader(Explained, Generic[T_co]):
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
        engine: what the workers are: "processes", or "threads" for work that lets go of the GIL; or an engine of your
            own (see `headrace.testing`).
        device: move batches of torch tensors there, ahead of the loop; what `torch.device` takes.
        on_error: "raise", or "skip" to leave out samples that raise and go on; they are listed in `errors`, and the
            first one is told in a warning. An epoch that gives no batch because of them ends with an error.
        max_errors: with "skip", how many samples may be left out before an error; None for any number.
        on_worker_death: "raise", or "restart" to replace a worker process that was killed or crashed, and let the new
            one do its batches again. A sample at which two workers crash, or three are killed, is treated as one
            that raises.
        quarantine: with "skip", a file that samples that are left out are written to, each once, as JSON lines.

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
        num_workers: int | Literal["auto"] = 0,
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
        seed: int | None = None,
        output: Output = "auto",
        engine: Literal["processes", "threads"] | Engine = "processes",
        device: Any = None,
        shard: Literal["auto"] | tuple[int, int] | None = None,
        even: Even = "drop",
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | None = None,
        on_worker_death: Literal["raise", "restart"] = "raise",
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        if num_workers == "auto":
            from headrace.tuning.auto import Wanted, choose_workers  # slow to import

            size = batch_size if batch_sampler is None else getattr(batch_sampler, "batch_size", batch_size)
            wanted = Wanted(dataset, size, collate_fn, output, engine, multiprocessing_context)
            needs_workers = prefetch_factor is not None or persistent_workers or timeout > 0
            num_workers = choose_workers(DataLoader, wanted, needs_workers=needs_workers)
        check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        check_policies(engine, on_error, max_errors, on_worker_death)
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
        self.shard = resolve_shard(shard, even)
        self.even = even
        # Ranks must agree; torch's DistributedSampler has seed 0, too, unless told otherwise.
        self._is_stream = is_stream(dataset)
        self.seed = 0 if seed is None and self.shard is not None and not self._is_stream else seed
        self.on_error = on_error
        self.max_errors = max_errors
        self.on_worker_death = on_worker_death
        if quarantine is not None and on_error != "skip":
            raise ValueError("quarantine keeps what is left out: pass on_error='skip', too.")
        self._quarantine = None if quarantine is None else Quarantine(quarantine)
        self.errors: list[BadSample] = []
        self._warn_of_skips = WarnOnce()
        self._warn_of_duplicates = WarnOnce()
        self._warn_of_restarts = WarnOnce()
        # Whose global generator is drawn from: that of the library the batches are for.
        self._random_library = "torch" if resolve_output(output) == "torch" else "numpy"

        if self._iterable:
            check_iterable(shuffle, sampler, batch_sampler)
        else:
            shuffle = bool(shuffle)
        check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
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
        self._epochs = Epochs(self._make_course(), reads_windows=self._is_stream)
        self._iterators = OpenIterators()
        self._initialised = True
        warn_of_many_workers(num_workers)
        import_engine(self)

    def _make_course(self) -> Course:
        described: dict[str, Any] = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        describe = partial(_describe, self.dataset)
        if self._is_stream:
            from headrace.window_assembly import make_window_course

            return make_window_course(self)
        if self._iterable:
            if self.shard is not None:
                raise ValueError(
                    "shard deals out the keys of a dataset by key, but this is a stream, which must read its own part "
                    "by itself: see headrace.get_worker_info() and torch.distributed.get_rank()."
                )
            return StreamCourse(self.batch_size, self.seed, described)
        if self.seed is not None:
            return seeded_course(
                self._index_sampler,
                self.sampler,
                self.batch_size,
                self.drop_last,
                self.seed,
                self.shard or Shard(),
                describe,
            )
        described["sampler"] = type(self._index_sampler if self.batch_size is None else self.sampler).__name__
        return ReplayedCourse(self._index_sampler, self.generator, partial(describe, **described))

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
        self._multiprocessing_context = checked_context(context, self.num_workers, self.engine)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_initialised"):
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized. Make a new one."
            )
        super().__setattr__(name, value)

    def __iter__(self) -> LoaderIterator:
        iterator = self._epochs.begin(self)
        self._iterators.add(iterator)
        return iterator

    def close(self) -> None:
        """End all workers, and the epochs that are not over yet. The next epoch starts new ones."""
        self._epochs.stop_running()
        self._iterators.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterators": OpenIterators()}

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch: with `seed` it decides the order, and samplers that count are told.

        Without this, epochs count from 0. Where a loaded state is in the middle of that epoch, it goes on there.

        Raises:
            ValueError: `epoch` is negative, or no int.
        """
        self._epochs.set_next(checked_count("epoch", epoch))
        for sampler in (self._index_sampler, self.sampler):
            tell = getattr(sampler, "set_epoch", None)
            if self.seed is None and callable(tell):
                tell(epoch)

    def seek(self, batch: int) -> None:
        """Let the next epoch begin with batch number `batch`; with `seed` at once, else its sampler draws up to there.

        Raises:
            ValueError: `batch` is negative, or no int.
        """
        self._epochs.seek(checked_count("batch", batch))

    def state_dict(self) -> dict[str, Any]:
        """Where the latest epoch is, small and plain enough for JSON (if the state of your own dataset is).

        Taken in the loop's body, it is the place after the batch at hand; after the loop, the beginning of the next
        epoch. It never changes afterwards. The methods are those of torchdata's StatefulDataLoader.

        With `seed`, everything is in it. Without, the order is, but what is drawn from torch's or NumPy's global
        generators is up to you: save and restore them too, as for the rest of the training.
        """
        return self._epochs.save(len(self.errors))

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next epoch go on with exactly the batch after which the state was taken.

        Another number of workers, engine or prefetch_factor makes no difference; with `seed`, the batch size and the
        number of ranks may be others, too. (The streams of your own of so many workers are ended by as many.) For a
        `Stream` on another number of ranks, pass the states of all ranks, as a list.

        Raises:
            StateError: this is no state, or it was taken of other data or with other arguments; says which.
        """
        self._epochs.load(state)
        self.errors.clear()  # they were of another life; the state counts those of its own

    def audit(self, *, full: bool = False, expect: Iterable[Any] | None = None) -> Audit:
        """Keep account of the epochs from the next one on, to prove that every sample comes exactly once.

        It costs some fifty microseconds per batch, and at the end of an epoch about the time that drawing its keys
        takes. A further call begins a new account.

        Args:
            full: keep the keys too, so that those that are missing can be named.
            expect: the keys that all ranks together are to get in each epoch, for samplers of your own: mostly
                `range(len(dataset))`.
        """
        from headrace.insight.audit import Audit

        self._epochs.audit = audit = Audit(full=full, expect=expect)
        return audit

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
            return self._epochs.course.n_batches(self._epochs.number)
        self._promised_samples = n = len(self.dataset)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __repr__(self) -> str:
        return shown(self)


def _describe(dataset: Any, **arguments: Any) -> dict[str, Any]:
    """What a state must agree with."""
    try:
        length = len(dataset)
    except Exception:  # noqa: BLE001 (whatever the user's code raises; then nobody needs its length)
        length = None
    return {**arguments, "length": length}

"""The MultiStreamDataLoader: checks its arguments, makes a plan, and lets a DataLoader run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headrace.arguments import check_destination, check_workers, checked_count
from headrace.batch.collate import Collator
from headrace.deliver.device import check_device, plan_delivery
from headrace.deliver.pinning import pin_function
from headrace.frameworks.framework import Output, framework_of, resolve_output
from headrace.insight.explained import Explained
from headrace.insight.figures import Setup
from headrace.insight.recorder import Recorder
from headrace.loader import DataLoader
from headrace.multistream.assign import Assign
from headrace.multistream.course import Course
from headrace.multistream.plan import Layout
from headrace.multistream.planning import count_datasets, make_plan, shown
from headrace.multistream.reading import BlockReaders, BlockTask, MakeBlock
from headrace.multistream.saved import check_state, first_state, start_of
from headrace.multistream.steps import StepIterator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import BaseContext

    from typing_extensions import Self


class MultiStreamDataLoader(Explained):
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
        num_workers: how many workers read; None is 0, or one for each of the datasets.
        shard: (rank, world), or "auto" to ask torch.distributed or the launcher: this rank's part of the positions.

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
        num_workers: int | None = None,
        shard: Literal["auto"] | tuple[int, int] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        output: Output = "auto",
        engine: Literal["processes", "threads"] = "processes",
        device: Any = None,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> None:
        if num_workers is None:
            num_workers = 0 if batch_size is not None else count_datasets(sequences)
        if isinstance(num_workers, str):
            raise TypeError(
                f"num_workers must be an int, got {num_workers!r}, which only the DataLoader takes. Pass 0 to load in "
                "this process; more, up to batch_size, where reading is slow."
            )
        check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        check_destination(device, output)
        check_device(device)
        has_mask = not cycle and batch_size is not None
        layout = Layout(seq_len, batch_first, targets, ignore_index, is_first, has_mask)
        self._plan = make_plan(
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
        )
        self._tasks = _Tasks()
        # A generator of its own: the training's are left alone.
        self._loader: DataLoader[Any] = DataLoader(
            BlockReaders(self._plan, is_threaded=engine == "threads" and num_workers > 0, is_inline=num_workers == 0),
            batch_size=None,
            sampler=self._tasks,
            num_workers=len(self._plan.parts) if num_workers else 0,
            collate_fn=MakeBlock(),
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=np.random.default_rng(abs(seed)),
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            output=output,
            engine=engine,
            on_worker_death=on_worker_death,
        )
        self.sequences = sequences
        self.batch_size = self._plan.batch_size
        self.num_workers = self._loader.num_workers
        self._pin = pin_memory, pin_memory_device
        self._device = device
        self._output = resolve_output(output)
        self._next_epoch = 0
        self._course: Course | None = None
        self._loaded: dict[str, Any] | None = None

    def __iter__(self) -> StepIterator:
        state = first_state(self._plan, self._next_epoch) if self._loaded is None else self._loaded
        self._loaded = None
        self._next_epoch = state["epoch"] + 1
        self._course = course = Course(self._plan, state["epoch"], start_of(state, self._plan))
        self._tasks.course = course
        blocks = iter(self._loader)
        pin_memory, pin_memory_device = self._pin
        # After the start: CUDA, once initialised, does not fork.
        delivery = plan_delivery(pin_function(pin_memory_device) if pin_memory else None, self._device)
        return StepIterator(blocks, self._plan, course, Collator(framework_of(self._output)), delivery.at_once)

    def __len__(self) -> int:
        """The number of batches of an epoch.

        Raises:
            TypeError: it never ends, or the lengths of the sequences are not known.
        """
        steps = self._plan.n_steps
        if steps is None:
            raise TypeError(
                "The number of batches is known only with cycle=False, and if the lengths of all sequences are known: "
                "pass lengths=."
            )
        return -(-steps // self._plan.layout.length)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest epoch is, small and plain enough for JSON.

        Taken in the loop's body, it is the place after the batch at hand; after the loop, the beginning of the next
        epoch. It has two numbers for each position of this rank.
        """
        if self._loaded is not None:
            return deepcopy(self._loaded)
        course = self._course
        if course is None or course.is_over:
            return first_state(self._plan, self._next_epoch)
        return {**first_state(self._plan, course.epoch), **deepcopy(course.save())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next epoch go on with exactly the batch after which the state was taken.

        The number and kind of workers and `seq_len` may be others. If all lengths are known, the number of ranks may,
        too, and the state of one rank fits all.

        Raises:
            StateError: this is no state, or it was taken of other data or with other arguments; says which.
        """
        check_state(state, self._plan)
        self._loaded = deepcopy(dict(state))
        self._next_epoch = state["epoch"]

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which decides its orders. Without this, epochs count from 0.

        Raises:
            ValueError: `epoch` is negative, or no int.
        """
        self._next_epoch = checked_count("epoch", epoch)
        if self._loaded is None or self._loaded["epoch"] != epoch:
            self._loaded = self._course = None

    @property
    def _recorder(self) -> Recorder:  # workers send blocks of steps, which are its batches
        return self._loader._recorder

    def _setup(self) -> Setup:
        return self._loader._setup()

    def close(self) -> None:
        """End all workers, and the epochs that are not over yet. The next epoch starts new ones."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return shown(self.sequences, self._plan, self.num_workers, self._loader.engine)


class _Tasks:
    """The tasks of the epoch that is begun next, as a sampler."""

    course: Course | None = None

    def __iter__(self) -> Iterator[BlockTask]:
        return iter(()) if self.course is None else self.course.tasks()

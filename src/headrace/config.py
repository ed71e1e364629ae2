"""What a loader was asked for, at the moment an epoch starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, cast

from headrace.base.errors import WarnOnce
from headrace.base.interrupts import hold_interrupts
from headrace.base.messages import BadSample
from headrace.base.optional import loaded
from headrace.batch.collate import default_collate, default_convert, taught_types
from headrace.data.dataset import is_datapipe
from headrace.deliver.quarantine import Quarantine
from headrace.engines.engine import Engine, EngineMaker, EngineOptions, Job
from headrace.frameworks.framework import Output, resolve_output
from headrace.insight.recorder import Recorder


class LoaderConfig(NamedTuple):
    """The arguments of a loader, checked and with their defaults filled in.

    Attributes:
        iterable: whether the dataset is a user's iterable, which each worker iterates by itself.
        batched: whether samples are collated to batches.
        engine: a name, an engine of the user's own, or what makes engines.
        deepens: whether it is up to us how far ahead the workers load.
        library: whose global generator is drawn from: "torch" or "numpy".
        promised_samples: what `len(loader)` said of an iterable dataset.
        snapshot_every: after how many batches a dataset that knows its state is asked for it.
        saves_generators: whether the states of the workers' generators are kept, too.
        agrees: whether all ranks end an epoch as soon as one has no more batches.
    """

    dataset: Any
    iterable: bool = False
    batched: bool = True
    batch_size: int | None = 1
    drop_last: bool = False
    collate_fn: Callable[[Any], Any] | None = None
    num_workers: int = 0
    engine: str | Engine | EngineMaker = "processes"
    context: Any = None
    prefetch_factor: int | None = None
    deepens: bool = False
    persistent_workers: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    timeout: float = 0
    in_order: bool = True
    seed: int | None = None
    generator: Any = None
    library: str = "numpy"
    output: Output = "auto"
    pin_memory: bool = False
    pin_memory_device: str = ""
    device: Any = None
    on_error: str = "raise"
    max_errors: int | None = None
    on_worker_death: str = "raise"
    max_restarts: int | None = None
    promised_samples: int | None = None
    snapshot_every: int = 1
    saves_generators: bool = False
    agrees: bool = False

    @property
    def skips(self) -> bool:
        """Whether samples that raise are left out."""
        return self.on_error == "skip"

    @property
    def is_moved(self) -> bool:
        """Whether batches are pinned, or moved to a device."""
        return self.pin_memory or self.device is not None

    @property
    def collates_by_default(self) -> bool:
        """Whether `collate_fn` is headrace's or torch's default."""
        name = "default_collate" if self.batched else "default_convert"
        if self.collate_fn is None or self.collate_fn is (default_collate if self.batched else default_convert):
            return True
        torch_data = loaded("torch.utils.data")
        return torch_data is not None and self.collate_fn is getattr(torch_data, name)

    @property
    def may_draw_in_collate(self) -> bool:
        """Whether collating may draw random numbers: not if the function is ours, or as good as."""
        if taught_types():
            return True
        collate_fn = self.collate_fn
        kind = collate_fn if isinstance(collate_fn, (type, FunctionType)) else type(collate_fn)
        is_ours = kind in (list, tuple) or kind.__module__.partition(".")[0] == "headrace"
        return not (self.collates_by_default or is_ours)

    def make_job(self, *, base_seed: int, shared_seed: int | None, starts: Any, reader: Any, timed: bool) -> Job:
        """What the workers of an epoch are told."""
        return Job(
            dataset=None if reader is not None else self.dataset,
            iterable=self.iterable,
            batched=self.batched,
            drop_last=self.drop_last,
            collate_fn=None if self.collates_by_default else self.collate_fn,
            output=resolve_output(self.output),
            convert=self.output != "auto",
            init_fn=self._init_fn(),
            base_seed=base_seed,
            shared_seed=shared_seed,
            skip_errors=self.skips,
            seed=self.seed,
            starts=starts,
            snapshot_every=self.snapshot_every,
            saves_generators=self.saves_generators,
            reader=reader,
            taught=taught_types(),
            timed=timed,
        )

    def _init_fn(self) -> Callable[[int], None] | None:
        if self.num_workers == 0 or not is_datapipe(self.dataset):
            return self.worker_init_fn
        from headrace.frameworks.torch_datapipes import sharding_init

        return sharding_init(self.worker_init_fn)

    def import_ahead(self) -> None:
        """Import what an epoch needs, so that the first batch does not wait for it.

        Interrupts are held meanwhile: importlib has weak-reference callbacks in Python, in which one would be lost.
        """
        with hold_interrupts():
            import_module("numpy.random")
            import_module("headrace.insight.live")
            if self.num_workers == 0:
                import_module("headrace.engines.inline")
            elif isinstance(self.engine, str):
                import_module(f"headrace.engines.{'ray_engine' if self.engine == 'ray' else self.engine}")
            if self.num_workers > 0 and self.engine == "processes":
                from headrace.engines.launch import default_context, import_starter

                import_starter(self.context or default_context(resolve_output(self.output)))

    def make_engine(self, workers: int, on_restart: Callable[[str, int], None]) -> Engine:
        """What runs the tasks of an epoch.

        Args:
            workers: as many as there are, which may be others than `num_workers` in an epoch that goes on.
            on_restart: hears what is to be said of a worker that is replaced, and its number.
        """
        if not isinstance(self.engine, str) and not hasattr(self.engine, "make_engine"):
            return self.engine
        if workers == 0:
            if self.timeout != 0 and self.num_workers == 0:
                raise AssertionError(f"timeout must be 0 without workers to wait for, got {self.timeout}.")
            from headrace.engines.inline import InlineEngine

            return InlineEngine()
        prefetch = self.prefetch_factor or 2
        maker = self._engine_maker()
        if maker is not None:
            return maker.make_engine(
                EngineOptions(
                    workers,
                    prefetch,
                    timeout=self.timeout,
                    restart=self.on_worker_death == "restart",
                    max_restarts=self.max_restarts,
                    on_restart=on_restart,
                    deepens=self.deepens,
                )
            )
        if self.engine == "threads":
            from headrace.engines.threads import ThreadEngine

            return ThreadEngine(workers, prefetch, self.timeout)
        from headrace.engines.launch import default_context  # multiprocessing is slow to import
        from headrace.engines.processes import ProcessEngine

        return ProcessEngine(
            workers,
            prefetch,
            context=self.context or default_context(resolve_output(self.output)),
            timeout=self.timeout,
            restart=self.on_worker_death == "restart",
            max_restarts=self.max_restarts,
            on_restart=on_restart,
            deepens=self.deepens,
        )

    def _engine_maker(self) -> EngineMaker | None:
        if self.engine == "ray":
            from headrace.engines.ray_options import RayEngine

            return RayEngine()
        return None if isinstance(self.engine, str) else cast("EngineMaker", self.engine)


@dataclass
class Reports:
    """Where a loader tells what it sees, over all its epochs.

    Attributes:
        errors: the samples that were left out.
        quarantine: the file that they are written to.
        audit: keeps account of the epochs from the next one on.
    """

    recorder: Recorder
    errors: list[BadSample] = field(default_factory=list)
    quarantine: Quarantine | None = None
    audit: Any = None
    warn_of_skips: WarnOnce = field(default_factory=WarnOnce)
    warn_of_duplicates: WarnOnce = field(default_factory=WarnOnce)
    warn_of_restarts: WarnOnce = field(default_factory=WarnOnce)

    def on_restart(self, text: str, worker: int) -> None:
        """A worker was replaced."""
        self.recorder.replaced(worker)
        self.warn_of_restarts(text)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "audit": None}

"""Accelerate: its flags, device placement and checkpoints, around a loader that deals out its data by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.state import GradientState
from accelerate.utils import send_to_device

from headrace.base.errors import warn_user
from headrace.integrations.wrapping import LoaderWrapper
from headrace.loader_base import Loader


def prepare(accelerator: Any, loader: Loader, *, device_placement: bool | None = None) -> PreparedLoader:
    """Make a loader known to an `Accelerator`, instead of `accelerator.prepare(loader)`.

    The loader stays what it is: it gives every process its own part, if it has `shard="auto"` or reads a stream, and
    keeps its order, its workers and its states. `accelerator.save_state` and `load_state` include it.

    Args:
        device_placement: move batches to the accelerator's device; None for what the accelerator does with others.
    """
    if isinstance(loader, PreparedLoader):
        return loader
    if accelerator.num_processes > 1 and getattr(loader, "even", None) in ("pad", "repeat"):
        warn_user(
            f"gather_for_metrics() will see some samples twice: those that even={getattr(loader, 'even', '')!r} "
            'repeats. For evaluation, pass even="drop" or even="allow".'
        )
    places = accelerator.device_placement if device_placement is None else device_placement
    prepared = PreparedLoader(loader, accelerator.num_processes, accelerator.device if places else None)
    accelerator._dataloaders.append(prepared)
    return prepared


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """Accelerate's function of this name, which seeks in loaders that `prepare` has returned."""
    if isinstance(loader, PreparedLoader):
        loader.skip(num_batches)
        return loader
    from accelerate import skip_first_batches as skip_by_reading

    return skip_by_reading(loader, num_batches)


class PreparedLoader(LoaderWrapper):
    """A loader as Accelerate wants it; everything else is asked of the loader itself.

    It reads one batch ahead, to know which one is the last; its state is that of the batch at hand nevertheless.

    Attributes:
        loader: the one that loads.
        end_of_dataloader: whether the batch at hand is the last one; gradients are applied then.
        remainder: 0, as no sample of the last batches is there to fill them up.
    """

    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, loader: Loader, num_processes: int, device: Any) -> None:
        super().__init__(loader)
        self.gradient_state = GradientState()
        self.end_of_dataloader = False
        self.remainder = 0
        self._num_processes = num_processes
        self._device = device
        self._to_skip = 0

    def __iter__(self) -> Iterator[Any]:
        to_skip, self._to_skip = self._to_skip, 0
        if to_skip:
            self.seek(to_skip)
        self.end_of_dataloader = False
        self.gradient_state._add_dataloader(self)
        try:
            for batch, is_last in self._one_ahead(self._place):
                self.end_of_dataloader, to_skip = is_last, 0
                yield batch
            if to_skip and not self._has_length:  # a trainer that counts no epochs has counted over the end of one
                raise RuntimeError(
                    f"{to_skip} batches were to be skipped, but the epoch has no more of them. Trainers cannot tell "
                    "epochs of a loader without a length apart: load its state instead, by accelerator.load_state()."
                )
        finally:
            self.gradient_state._remove_dataloader(self)

    def _place(self, batch: Any) -> Any:
        return batch if self._device is None else send_to_device(batch, self._device)

    @property
    def dataset(self) -> Any:
        """What is loaded; `save_state` looks at its class."""
        return getattr(self.loader, "dataset", None)

    @property
    def _has_length(self) -> bool:
        try:
            return len(self) >= 0
        except TypeError:
            return False

    @property
    def total_batch_size(self) -> int:
        """Samples in a batch, over all processes."""
        return int(self.loader.batch_size or 1) * self._num_processes  # type: ignore[attr-defined]

    def skip(self, n_batches: int) -> None:
        """Begin the next epoch with this batch, of whichever epoch is chosen until then."""
        self._to_skip = n_batches

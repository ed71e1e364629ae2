"""Hugging Face's Trainer: a mix-in that trains from a loader, and seeks in it when it resumes."""

from __future__ import annotations

from typing import Any

import transformers.trainer

from headrace.integrations.accelerate import PreparedLoader, prepare, skip_first_batches
from headrace.loader_base import Loader


class LoaderTrainerMixin:
    """Lets a `Trainer` train from a loader of headrace.

    Write `class MyTrainer(LoaderTrainerMixin, Trainer)`, and pass `train_loader` in place of `train_dataset`. With
    several processes, the loader needs `shard="auto"`, or must read a stream. A training that is resumed goes to its
    place in the epoch at once, instead of loading what it has seen.

    Args:
        train_loader: gives the batches of training, on this process.
    """

    def __init__(self, *args: Any, train_loader: Loader, **kwargs: Any) -> None:
        self._train_loader = train_loader
        super().__init__(*args, **kwargs)

    def get_train_dataloader(self) -> PreparedLoader:
        """The loader, as Accelerate wants it."""
        trainer: Any = self
        return prepare(trainer.accelerator, self._train_loader)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        # The function by which the trainer skips what it has seen is a name in its module.
        original = transformers.trainer.skip_first_batches
        transformers.trainer.skip_first_batches = skip_first_batches
        try:
            return super()._run_epoch(*args, **kwargs)  # type: ignore[misc]
        finally:
            transformers.trainer.skip_first_batches = original

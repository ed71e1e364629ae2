"""Lightning: a data module of loaders, and a callback that proves and explains what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.utilities import rank_zero_info

from headrace.base.optional import loaded
from headrace.insight.audit import Audit
from headrace.integrations.wrapping import LoaderWrapper
from headrace.loader_base import Loader


class LoaderDataModule(LightningDataModule):  # type: ignore[misc]
    """Gives loaders to a Lightning `Trainer`: states in checkpoints, every rank its part, epochs by number.

    Needed for loaders without a length, such as packed streams: Lightning reads one batch ahead of these, and would
    save the place after that one; here it saves the place after the batch at hand. Loaders with a length may as well
    be passed to `fit` themselves.

    Args:
        train: the loader for training, or a function that makes it, called when training begins.
        val: the same for validation.
        test: the same for testing.
        predict: the same for prediction.
    """

    def __init__(
        self,
        train: Loader | Callable[[], Loader] | None = None,
        val: Loader | Callable[[], Loader] | None = None,
        test: Loader | Callable[[], Loader] | None = None,
        predict: Loader | Callable[[], Loader] | None = None,
    ) -> None:
        super().__init__()
        self._loader: Any = None
        self._to_load: Mapping[str, Any] | None = None
        # Lightning asks which of these a module overrides.
        if train is not None:
            self.train_dataloader = lambda: self._train_loader(train)
        if val is not None:
            self.val_dataloader = lambda: _made(val)
        if test is not None:
            self.test_dataloader = lambda: _made(test)
        if predict is not None:
            self.predict_dataloader = lambda: _made(predict)

    def _train_loader(self, train: Loader | Callable[[], Loader]) -> Any:
        self._loader = _keep_pace(_made(train))
        if self._to_load is not None:
            self._loader.load_state_dict(self._to_load)
            self._to_load = None
        return self._loader

    def state_dict(self) -> dict[str, Any]:
        """The place of the training loader: at the end of an epoch, Lightning does not load what it saves of it."""
        return {} if self._loader is None else {"train": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the training loader resume there, when Lightning asks for it."""
        self._to_load = state_dict.get("train")


class LoaderCallback(Callback):  # type: ignore[misc]
    """Proves at the end of every epoch that each sample came exactly once over all ranks, and says why ranks waited.

    The account is in the checkpoints: an epoch that was interrupted, and resumed on any number of ranks, is proven as
    a whole.

    Args:
        audit: keep account of the samples; see `Loader.audit`.
        report: say at the end of training how long the model waited, and for what.

    Attributes:
        audits: the account of each training loader, of this rank.
        proven: the epochs that were proven, of each training loader.
    """

    def __init__(self, *, audit: bool = True, report: bool = True) -> None:
        self.audits: list[Audit] = []
        self.proven: list[list[int]] = []
        self._audit = audit
        self._report = report
        self._earlier: list[dict[str, Any]] = []  # the accounts of all ranks before the training was resumed

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the accounts."""
        self.audits = [loader.audit() for loader in _loaders(trainer)] if self._audit else []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compare what all ranks received with what was expected.

        Raises:
            AuditError: a sample is missing, or came twice.
        """
        if self.audits:
            _finish_epochs(trainer.fit_loop._combined_loader)
        self.proven = []
        for audit in self._whole():
            audit.check()
            self.proven.append(audit.proven)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Say how long the model waited."""
        if self._report:
            for loader in _loaders(trainer):
                rank_zero_info(str(loader.report()))

    def state_dict(self) -> dict[str, Any]:
        """The accounts of all ranks up to now."""
        return {"audits": [audit.state_dict() for audit in self._whole()]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the accounts."""
        self._earlier = state_dict["audits"]

    def _whole(self) -> list[Audit]:
        own = [audit.state_dict() for audit in self.audits]
        of_ranks = _gathered(own)
        if len(self._earlier) == len(own):
            of_ranks = [self._earlier, *of_ranks]
        return [Audit.merged(parts) for parts in zip(*of_ranks, strict=True)]


class _KeepsPace(LoaderWrapper):
    """A loader without a length, of which Lightning has always read one batch more than it trains on."""

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        at_hand = self.loader.state_dict()
        for batch in self.loader:
            self._state, at_hand = at_hand, self.loader.state_dict()
            yield batch
        self._state = None


def _made(loader: Loader | Callable[[], Loader]) -> Any:
    return loader if isinstance(loader, Loader) else loader()


def _keep_pace(loader: Any) -> Any:
    try:
        len(loader)
    except TypeError:
        return _KeepsPace(loader)
    return loader


def _loaders(trainer: Any) -> list[Any]:
    """The training loaders that are headrace's."""
    found = trainer.fit_loop._combined_loader.flattened
    return [
        loader.loader if isinstance(loader, LoaderWrapper) else loader
        for loader in found
        if isinstance(loader, (Loader, LoaderWrapper))
    ]


def _finish_epochs(combined: Any) -> None:
    """Lightning takes as many batches as there are, and does not ask for the end."""
    for loader, batches in zip(combined.flattened, combined._iterator.iterators, strict=True):
        if isinstance(loader, Loader) and loader.state_dict()["batches"] >= len(loader):  # type: ignore[arg-type]
            next(batches, None)


def _gathered(own: list[dict[str, Any]]) -> list[Any]:
    """What all ranks have."""
    distributed = loaded("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return [own]
    of_ranks: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(of_ranks, own)
    return of_ranks

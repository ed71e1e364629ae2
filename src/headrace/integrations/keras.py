"""Keras 3: any loader as data for `fit`, on any of its backends, and a callback that saves its place."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from keras import callbacks, tree
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from headrace.integrations.wrapping import coming_epoch
from headrace.loader_base import Loader

_STATES_KEPT = 64  # more than any backend reads ahead


class LoaderAdapter(DataAdapter):  # type: ignore[misc]
    """Lets `model.fit(LoaderAdapter(loader))` train from a loader, on any backend.

    Keras reads a first batch to build a model, and begins again; here, that batch is given again, so no epoch of the
    loader is used up. Batches must be tuples: inputs, targets and, if there are any, weights.

    Args:
        loader: any loader of headrace, of a stream or of lanes too.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._held: tuple[Iterator[Any], Any] | None = None  # a first batch that was only looked at
        self._states: OrderedDict[int, dict[str, Any]] = OrderedDict()  # after each batch of the epoch

    def get_numpy_iterator(self) -> Iterator[Any]:
        """The batches of an epoch, as NumPy arrays."""
        for batch in self._batches():
            yield tuple(tree.map_structure(_as_numpy, batch))

    def get_jax_iterator(self) -> Iterator[Any]:
        """The batches of an epoch, which JAX places."""
        return self.get_numpy_iterator()

    def get_torch_dataloader(self) -> Any:
        """An iterable of the batches of an epoch."""
        return _Epochs(self)

    def get_tf_dataset(self) -> Any:
        """The batches of an epoch, as a `tf.data.Dataset`."""
        from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

        return GeneratorDataAdapter(self.get_numpy_iterator()).get_tf_dataset()

    @property
    def num_batches(self) -> int | None:
        """Of an epoch; None where it is not known."""
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch."""
        size: int | None = getattr(self.loader, "batch_size", None)
        return size

    @property
    def has_partial_batch(self) -> bool | None:
        """Not known."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """Not known."""
        return None

    def state_after(self, batch: int) -> dict[str, Any]:
        """The loader's state after batch number `batch` of the epoch, of which backends may have read more."""
        return self._states.get(batch) or self.loader.state_dict()

    def _batches(self) -> Iterator[Any]:
        if self._held is not None:
            (batches, batch), self._held = self._held, None
        else:
            batches = iter(self.loader)
            self._states.clear()
            batch = next(batches, None)
        number = 0
        while batch is not None:
            self._states[number] = self.loader.state_dict()
            if len(self._states) > _STATES_KEPT:
                self._states.popitem(last=False)
            if number == 0 and self.num_batches != 1:
                self._held = batches, batch
            yield batch
            self._held = None
            batch, number = next(batches, None), number + 1


class LoaderCheckpoint(callbacks.Callback):  # type: ignore[misc]
    """Writes the place of a loader to a file as training goes on, and resumes there.

    Use it beside whatever saves the model. `initial_epoch` of `fit` is then `LoaderCheckpoint(...).epoch`.

    Args:
        adapter: what `fit` is given.
        path: of the file, which is JSON; replaced as a whole.
        save_freq: "epoch", or after how many batches.

    Raises:
        StateError: the file is there, and its state does not fit the loader.
    """

    def __init__(self, adapter: LoaderAdapter, path: str | os.PathLike[str], save_freq: int | str = "epoch") -> None:
        super().__init__()
        self._adapter, self._path, self._every = adapter, Path(path), save_freq
        if self._path.exists():
            adapter.loader.load_state_dict(json.loads(self._path.read_text(encoding="utf-8")))

    @property
    def epoch(self) -> int:
        """The number of the epoch of the next batch."""
        return coming_epoch(self._adapter.loader)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save the place after this batch, if it is one to save."""
        if isinstance(self._every, int) and (batch + 1) % self._every == 0:
            self._save(self._adapter.state_after(batch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the beginning of the next epoch."""
        self._save(self._adapter.loader.state_dict())

    def _save(self, state: Mapping[str, Any]) -> None:
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(self._path)


class _Epochs:
    """What the torch backend goes through, once per epoch."""

    def __init__(self, adapter: LoaderAdapter) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[Any]:
        return self._adapter._batches()


def _as_numpy(value: Any) -> Any:
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)

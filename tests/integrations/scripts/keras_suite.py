"""Fits with Keras, on the backend that the environment names, from loaders themselves and by the adapter."""

from __future__ import annotations

import json
import os
import sys

os.environ["KERAS_BACKEND"] = sys.argv[1]

import contextlib

import keras
import numpy as np
import torch
from loaders import make, rows
from recording import case

from headrace.integrations.keras import LoaderAdapter, LoaderCheckpoint


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.seen = []

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, *arguments):
        self.seen.append(rows(np.asarray(arguments[-1][0])))
        return super().train_step(*arguments)


def with_target(samples):
    values = torch.tensor([float(np.asarray(sample).reshape(-1)[0]) for sample in samples]).reshape(-1, 1)
    return values, torch.zeros_like(values)


def made(kind, workers=0):
    options = {} if kind == "lanes" else {"collate_fn": with_target}
    return Lanes(make(kind, workers)) if kind == "lanes" else make(kind, workers, **options)


class Lanes:
    """Lanes as pairs of inputs and targets."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return ((batch.data.reshape(-1, 1).float(), batch.data.reshape(-1, 1).float()) for batch in self.loader)

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __len__(self):
        return len(self.loader)


def fit(data, epochs=2, callbacks=(), initial_epoch=0):
    model = Model()
    model.compile(optimizer=keras.optimizers.SGD(1e-4), loss="mse", run_eagerly=True)
    model.fit(data, epochs=epochs, verbose=0, callbacks=list(callbacks), initial_epoch=initial_epoch)
    return [model.seen, np.asarray(model.dense.kernel).item()]


class Stop(keras.callbacks.Callback):
    """Ends the training as if it were killed after some batches."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def interrupted(kind, after):
    path = f"{kind}-{after}.json"
    adapter = LoaderAdapter(made(kind))
    with contextlib.suppress(KeyboardInterrupt):
        fit(adapter, callbacks=[LoaderCheckpoint(adapter, path, save_freq=1), Stop(after)])
    adapter = LoaderAdapter(made(kind))
    callback = LoaderCheckpoint(adapter, path, save_freq=1)
    first = callback.epoch
    return [json.loads(open(path).read())["epoch"], fit(adapter, callbacks=[callback], initial_epoch=first)[0]]


def seeded(make_data, epochs=2):
    torch.manual_seed(1)
    return fit(make_data(), epochs)


for kind in ("torch", "plain"):
    for workers in (0, 2):
        # One epoch: Keras drops an iterator between two, which makes torch's loader draw, and ours not.
        case(f"{kind}, {workers}", seeded, lambda kind=kind, workers=workers: made(kind, workers), 1)
for kind in ("seed", "shard", "stream", "lanes"):
    for workers in (0, 2):
        case(f"{kind}, {workers}", seeded, lambda kind=kind, workers=workers: LoaderAdapter(made(kind, workers)))
    for after in (2, 8):
        if kind != "lanes":
            case(f"{kind}, after {after}", interrupted, kind, after)

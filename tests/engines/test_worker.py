"""The work on one task: which collation, which output, and when whole batches are taken."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import Padded, pad_collate
from headrace.base.messages import Task
from headrace.engines.worker import Worker
from tests.engines.jobs import job
from tests.needs import needs_torch


def work(keys, dataset, **options):
    return Worker(job(dataset, **options)).work(Task(0, keys)).batch


def test_the_default_collation_makes_arrays_of_the_output():
    batch = work([0, 2], [5, 6, 7], collate_fn=None)
    assert type(batch) is np.ndarray
    assert batch.tolist() == [5, 7]


def test_a_users_collation_is_converted_only_on_request():
    def collate(samples):
        return (np.array(samples), "kept")

    kept = work([0], [5], collate_fn=collate)
    assert kept[0].tolist() == [5]
    converted = work([0], [5], collate_fn=collate, convert=True)
    assert type(converted) is tuple
    assert type(converted[0]) is np.ndarray
    assert converted[1] == "kept"


def test_single_samples_are_converted_and_not_stacked():
    assert work(1, [np.zeros(2), np.ones(2)], collate_fn=None, batched=False).tolist() == [1, 1]


def test_a_framework_collate_makes_the_output_asked_for():
    batch = work([0, 1], [[1], [2, 3]], collate_fn=pad_collate())
    assert type(batch) is Padded
    assert type(batch.values) is np.ndarray


@needs_torch
def test_tensors_of_a_users_collation_become_the_output():
    import torch

    def collate(samples):
        return torch.tensor(samples)

    assert type(work([0], [5], collate_fn=collate)) is torch.Tensor
    assert type(work([0], [5], collate_fn=collate, convert=True)) is np.ndarray


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_passes_through(error):
    def collate(samples):
        raise error

    with pytest.raises(error):
        work([0], [5], collate_fn=collate)

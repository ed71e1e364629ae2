"""headrace brings data to the training loop: `torch.utils.data`, rebuilt.

order/        which samples, in which order: samplers, batch samplers, the plan of an epoch
data/         datasets: the abstract ones, combinations of others, whole batches at once
batch/        samples into batches: fetching, collating, padding
engines/      what runs the tasks: in this process so far
flow.py       the loop that sends tasks out and brings batches back, with reorder.py
deliver/      the iterator that the training loop holds, pinned memory
frameworks/   NumPy, torch and JAX as outputs of the same core
base/         errors, messages, containers, optional imports
loader.py     DataLoader, which puts all of these together
"""

from headrace.base.errors import CollateError, CollateTypeError, HeadraceError, InternalError, MissingExtraError
from headrace.base.world import WorkerInfo, get_worker_info
from headrace.batch.collate import Collator, default_collate, default_convert, register_collate
from headrace.batch.padding import Padded, pad_collate
from headrace.data.combine import ChainDataset, ConcatDataset, StackDataset, Subset, random_split
from headrace.data.dataset import Dataset, IterableDataset
from headrace.data.tensors import TensorDataset
from headrace.loader import DataLoader
from headrace.order.batch_sampler import BatchSampler
from headrace.order.distributed import DistributedSampler
from headrace.order.samplers import (
    ChunkedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.order.weights import class_weights

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ChunkedSampler",
    "CollateError",
    "CollateTypeError",
    "Collator",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "HeadraceError",
    "InternalError",
    "IterableDataset",
    "MissingExtraError",
    "Padded",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "class_weights",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "pad_collate",
    "random_split",
    "register_collate",
]

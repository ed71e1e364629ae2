"""headrace brings data to the training loop: `torch.utils.data`, rebuilt.

order/        which samples, in which order: samplers, batch samplers, the plan of an epoch
data/         datasets: the abstract ones, combinations of others, whole batches at once
sources/      files, object stores and databases, cut into blocks that can be read alone
streams/      sources read in windows, and what is done to their rows
batch/        samples into batches: fetching, collating, padding
engines/      what runs the tasks: this process, threads, worker processes
transport/    how batches get from a worker process to the loader: shared memory and messages
flow.py       the loop that sends tasks out and brings batches back, with dealing.py and reorder.py
window_flow.py  the same for the windows of streams
deliver/      the iterator that the training loop holds, pinned memory, devices
insight/      what can be told of a run: audits
frameworks/   NumPy, torch and JAX as outputs of the same core
base/         errors, messages, containers, seeds, optional imports
loader.py     DataLoader, which puts all of these together, with arguments.py, epochs.py and preparing.py
"""

from headrace.base.errors import (
    AuditError,
    CollateError,
    CollateTypeError,
    HeadraceError,
    InternalError,
    MissingExtraError,
    RemoteTraceback,
    StateError,
    TooManyBadSamplesError,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
    WorkerTimeoutError,
)
from headrace.base.messages import BadSample
from headrace.base.randomness import rng
from headrace.base.world import WorkerInfo, get_worker_info
from headrace.batch.collate import Collator, default_collate, default_convert, register_collate
from headrace.batch.packing import Packed, pack_collate, unpack_sequences
from headrace.batch.padding import Padded, pad_collate
from headrace.data.combine import ChainDataset, ConcatDataset, StackDataset, Subset, random_split
from headrace.data.dataset import Dataset, IterableDataset
from headrace.data.shared_list import SharedList
from headrace.data.tensors import TensorDataset
from headrace.insight.audit import Audit
from headrace.loader import DataLoader
from headrace.order.batch_order_sampler import BatchOrderSampler
from headrace.order.batch_sampler import BatchSampler
from headrace.order.bucket_batches import BucketBatchSampler, sample_lengths
from headrace.order.class_batches import ClassBatchSampler
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
from headrace.streams.readers import (
    read_arrow,
    read_csv,
    read_jsonl,
    read_parquet,
    read_sql,
    read_tar,
    read_text,
)
from headrace.streams.stream import Stream

__all__ = [
    "Audit",
    "AuditError",
    "BadSample",
    "BatchOrderSampler",
    "BatchSampler",
    "BucketBatchSampler",
    "ChainDataset",
    "ChunkedSampler",
    "ClassBatchSampler",
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
    "Packed",
    "Padded",
    "RandomSampler",
    "RemoteTraceback",
    "Sampler",
    "SequentialSampler",
    "SharedList",
    "StackDataset",
    "StateError",
    "Stream",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TooManyBadSamplesError",
    "WeightedRandomSampler",
    "WorkerDiedError",
    "WorkerError",
    "WorkerInfo",
    "WorkerStartError",
    "WorkerTimeoutError",
    "class_weights",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "pack_collate",
    "pad_collate",
    "random_split",
    "read_arrow",
    "read_csv",
    "read_jsonl",
    "read_parquet",
    "read_sql",
    "read_tar",
    "read_text",
    "register_collate",
    "rng",
    "sample_lengths",
    "unpack_sequences",
]

"""headrace brings data to the training loop: `torch.utils.data`, rebuilt.

loader.py, multistream/   DataLoader and MultiStreamDataLoader, on loader_base.py: arguments, states, reports
epochs.py, config.py      start an epoch: what was asked for, its plan, its engine, its flow
order/, streams/          plans: which samples come next, by key, by seed, from iterables, from windows of streams
flow.py                   runs a plan on an engine: dispatch, bounds, order, errors, accounts
engines/                  what runs the tasks: this process, threads, worker processes, Ray actors
batch/, data/             samples into batches: datasets, fetching, collating, padding
sources/                  files, object stores and databases, cut into blocks that can be read alone
transport/                how batches get from a worker process to the loader: shared memory and messages
deliver/                  the iterator that the training loop holds, pinned memory, devices
insight/                  what can be said of a run: where its time went, timelines, audits
frameworks/               NumPy, torch and JAX as outputs of the same core
base/                     what a plan is; errors, messages, seeds, optional imports
tuning/, inspecting.py    how many workers, of which kind; a look into files and databases
torch_patch.py, cli/      torch's own DataLoader, patched to load with headrace; the command line
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.base.errors import (
    AuditError,
    ChangedFileError,
    CollateError,
    CollateTypeError,
    HeadraceError,
    InspectError,
    InternalError,
    MissingExtraError,
    RankError,
    RecordError,
    RemoteTraceback,
    RetriesExhaustedError,
    StateError,
    TooManyBadSamplesError,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
    WorkerTimeoutError,
)
from headrace.base.messages import BadSample
from headrace.base.provenance import Provenance, SampleOrigin
from headrace.base.randomness import rng
from headrace.base.world import WorkerInfo, get_worker_info
from headrace.batch.collate import Collator, default_collate, default_convert, register_collate
from headrace.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    random_split,
)

if TYPE_CHECKING:
    from headrace.base.own_states import Stateful

    __version__: str
    from headrace.batch.sequences import Packed, Padded, pack_collate, pad_collate, unpack_sequences
    from headrace.data.dataset import TensorDataset
    from headrace.data.shared_list import SharedList
    from headrace.engines.ray_options import RayEngine, RayPool
    from headrace.insight.audit import Audit
    from headrace.insight.plot import plot_timings
    from headrace.insight.prometheus import MetricsServer, serve_metrics
    from headrace.insight.rank_report import RankReport
    from headrace.inspecting import Inspection, inspect
    from headrace.loader import DataLoader, StatefulDataLoader
    from headrace.multistream.dataset import MultiStreamDataset
    from headrace.multistream.loader import MultiStreamDataLoader
    from headrace.multistream.steps import StreamBatch
    from headrace.order.batch_order_sampler import BatchOrderSampler
    from headrace.order.batch_sampler import BatchSampler
    from headrace.order.bucket_batches import BucketBatchSampler, sample_lengths
    from headrace.order.class_batches import ClassBatchSampler
    from headrace.order.distributed import DistributedSampler, StatefulDistributedSampler
    from headrace.order.samplers import (
        ChunkedSampler,
        RandomSampler,
        Sampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from headrace.order.weights import class_weights
    from headrace.sources.arrays import Windows
    from headrace.sources.cache import Cache
    from headrace.sources.live import Connector, LiveRow
    from headrace.sources.options import FileOptions
    from headrace.streams.image_folder import ImageFolder
    from headrace.streams.readers import (
        mix,
        read_array_record,
        read_arrow,
        read_audio,
        read_csv,
        read_delta,
        read_hdf5,
        read_hub,
        read_iceberg,
        read_images,
        read_jsonl,
        read_lance,
        read_litdata,
        read_live,
        read_mds,
        read_nats,
        read_npy,
        read_parquet,
        read_redis,
        read_sql,
        read_tar,
        read_text,
        read_tfrecord,
        read_tokens,
        read_zarr,
    )
    from headrace.streams.stream import Stream
    from headrace.streams.token_dataset import TokenDataset
    from headrace.tuning.tune import Tuning, tune

# What a worker process has no use for, and what many programs never ask for, is imported when it is asked for.
_LATE = {
    "Audit": "insight.audit",
    "BatchOrderSampler": "order.batch_order_sampler",
    "BatchSampler": "order.batch_sampler",
    "BucketBatchSampler": "order.bucket_batches",
    "Cache": "sources.cache",
    "ChunkedSampler": "order.samplers",
    "ClassBatchSampler": "order.class_batches",
    "Connector": "sources.live",
    "DataLoader": "loader",
    "DistributedSampler": "order.distributed",
    "FileOptions": "sources.options",
    "ImageFolder": "streams.image_folder",
    "Inspection": "inspecting",
    "LiveRow": "sources.live",
    "MultiStreamDataLoader": "multistream.loader",
    "MultiStreamDataset": "multistream.dataset",
    "Packed": "batch.sequences",
    "Padded": "batch.sequences",
    "RandomSampler": "order.samplers",
    "RayEngine": "engines.ray_options",
    "RayPool": "engines.ray_options",
    "Sampler": "order.samplers",
    "SequentialSampler": "order.samplers",
    "SharedList": "data.shared_list",
    "Stateful": "base.own_states",
    "StatefulDataLoader": "loader",
    "StatefulDistributedSampler": "order.distributed",
    "Stream": "streams.stream",
    "StreamBatch": "multistream.steps",
    "SubsetRandomSampler": "order.samplers",
    "TensorDataset": "data.dataset",
    "TokenDataset": "streams.token_dataset",
    "Tuning": "tuning.tune",
    "WeightedRandomSampler": "order.samplers",
    "Windows": "sources.arrays",
    "class_weights": "order.weights",
    "inspect": "inspecting",
    "MetricsServer": "insight.prometheus",
    "RankReport": "insight.rank_report",
    "serve_metrics": "insight.prometheus",
    "mix": "streams.readers",
    "pack_collate": "batch.sequences",
    "pad_collate": "batch.sequences",
    "plot_timings": "insight.plot",
    "read_array_record": "streams.readers",
    "read_arrow": "streams.readers",
    "read_audio": "streams.readers",
    "read_csv": "streams.readers",
    "read_delta": "streams.readers",
    "read_hdf5": "streams.readers",
    "read_hub": "streams.readers",
    "read_iceberg": "streams.readers",
    "read_images": "streams.readers",
    "read_jsonl": "streams.readers",
    "read_live": "streams.readers",
    "read_nats": "streams.readers",
    "read_lance": "streams.readers",
    "read_litdata": "streams.readers",
    "read_mds": "streams.readers",
    "read_npy": "streams.readers",
    "read_parquet": "streams.readers",
    "read_redis": "streams.readers",
    "read_sql": "streams.readers",
    "read_tar": "streams.readers",
    "read_text": "streams.readers",
    "read_tokens": "streams.readers",
    "read_tfrecord": "streams.readers",
    "read_zarr": "streams.readers",
    "sample_lengths": "order.bucket_batches",
    "tune": "tuning.tune",
    "unpack_sequences": "batch.sequences",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow to import, and few ask

        globals()[name] = found = version(__name__)
        return found
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "Audit",
    "AuditError",
    "BadSample",
    "BatchOrderSampler",
    "BatchSampler",
    "BucketBatchSampler",
    "Cache",
    "ChainDataset",
    "ChangedFileError",
    "ChunkedSampler",
    "ClassBatchSampler",
    "CollateError",
    "CollateTypeError",
    "Collator",
    "ConcatDataset",
    "Connector",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FileOptions",
    "HeadraceError",
    "ImageFolder",
    "InspectError",
    "Inspection",
    "InternalError",
    "IterableDataset",
    "LiveRow",
    "MetricsServer",
    "MissingExtraError",
    "MultiStreamDataLoader",
    "MultiStreamDataset",
    "Packed",
    "Padded",
    "Provenance",
    "RandomSampler",
    "RankError",
    "RankReport",
    "RayEngine",
    "RayPool",
    "RecordError",
    "RemoteTraceback",
    "RetriesExhaustedError",
    "SampleOrigin",
    "Sampler",
    "SequentialSampler",
    "SharedList",
    "StackDataset",
    "StateError",
    "Stateful",
    "StatefulDataLoader",
    "StatefulDistributedSampler",
    "Stream",
    "StreamBatch",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TokenDataset",
    "TooManyBadSamplesError",
    "Tuning",
    "WeightedRandomSampler",
    "Windows",
    "WorkerDiedError",
    "WorkerError",
    "WorkerInfo",
    "WorkerStartError",
    "WorkerTimeoutError",
    "class_weights",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "inspect",
    "mix",
    "pack_collate",
    "pad_collate",
    "plot_timings",
    "random_split",
    "read_array_record",
    "read_arrow",
    "read_audio",
    "read_csv",
    "read_delta",
    "read_hdf5",
    "read_hub",
    "read_iceberg",
    "read_images",
    "read_jsonl",
    "read_lance",
    "read_litdata",
    "read_live",
    "read_mds",
    "read_nats",
    "read_npy",
    "read_parquet",
    "read_redis",
    "read_sql",
    "read_tar",
    "read_text",
    "read_tfrecord",
    "read_tokens",
    "read_zarr",
    "register_collate",
    "rng",
    "sample_lengths",
    "serve_metrics",
    "tune",
    "unpack_sequences",
]

"""The functions that make streams: one for each kind of source."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.base.errors import check_count
from headrace.sources.source import Source
from headrace.streams.mixing import STOPS, MixSource, MixWeights, Stop, Weights
from headrace.streams.stream import Recipe, Stream

# A source is imported when it is asked for: what they need is slow to import, and few need them all.
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from headrace.sources.arrays import Windows
    from headrace.sources.files import Paths
    from headrace.sources.options import ArchiveArguments, FileOptions, TableArguments, TextArguments
    from headrace.sources.retry import Retries
    from headrace.sources.tar import Decoder

Rows: TypeAlias = Literal["dicts", "columns"]


def read_text(
    paths: Paths,
    *,
    words: bool = False,
    whole_files: bool = False,
    files: FileOptions | None = None,
    **options: Unpack[TextArguments],
) -> Stream:
    """A stream of the lines of text files, without their newlines; or of their words, or of whole files.

    Paths are one or many: files, directories, globs, or addresses such as `s3://bucket/key` (extra `remote`).

    Args:
        words: whether rows are words, which is twice as fast as splitting lines with `flat_map(str.split)`.
        whole_files: whether rows are files.
        files: how to find, open, split and decode the files; see `FileOptions`.
        options: any option of `FileOptions`, which takes precedence over `files`: `encoding`, `errors`, `compression`,
            `block_bytes`, `max_record_bytes`, `stretch_bytes`, `hive_partitioning`, `storage_options`, `retries`,
            `cache`.

    Raises:
        ValueError: `words` and `whole_files` exclude each other, or a size is less than 1.
        LookupError: the encoding, or the way to handle errors, is unknown.
        TypeError: `paths` are not paths, or there is no such option.
    """
    from headrace.sources.options import TextArguments, merge_options
    from headrace.sources.text import TextSource, WholeTextSource, WordSource

    if words and whole_files:
        raise ValueError("`words` and `whole_files` exclude each other: pass one of them.")
    source = WordSource if words else WholeTextSource if whole_files else TextSource
    merged = merge_options("read_text", files, options, TextArguments)
    return Stream(Recipe(source(_checked_paths(paths), merged)))


def read_jsonl(paths: Paths, *, files: FileOptions | None = None, **options: Unpack[TextArguments]) -> Stream:
    """A stream of JSON values, one per line. Paths and arguments are those of `read_text`."""
    from headrace.sources.options import TextArguments, merge_options
    from headrace.sources.text import JsonLinesSource

    merged = merge_options("read_jsonl", files, options, TextArguments)
    return Stream(Recipe(JsonLinesSource(_checked_paths(paths), merged)))


def read_csv(
    paths: Paths,
    *,
    separator: str = ",",
    header: bool = True,
    names: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    quote: str | None = '"',
    nulls: Collection[str] | None = None,
    newlines_in_values: bool = True,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TextArguments],
) -> Stream:
    """A stream of the rows of CSV files, as dicts, or in batches of columns.

    Args:
        header: whether the first line names the columns.
        names: of the columns, if no line does.
        types: "int", "float", "bool" or "str" by column. The others are inferred from the first 10,000 records, or from
            the first megabyte, if that is less. Text that looks like a number becomes one: declare columns such as
            postal codes, which would lose their leading zeros, as "str". Integers of more than 64 bits stay text.
        quote: None if quotes mean nothing.
        nulls: texts that mean null; by default, the empty text in columns that are not text.
        newlines_in_values: False avoids reading large files once to find quoted newlines.
        rows: "columns" makes a batch of slices of columns, which is many times faster.
        files: see `read_text`.
        options: see `read_text`.
    """
    from headrace.sources.csv_format import CsvFormat
    from headrace.sources.csv_rows import CsvSource
    from headrace.sources.options import TextArguments, merge_options

    table = CsvFormat(separator, quote, header, names, types, nulls, newlines_in_values)
    merged = merge_options("read_csv", files, options, TextArguments)
    return _stream(CsvSource(_checked_paths(paths), table, merged), rows)


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    filters: Any = None,
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the rows of Parquet files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        filters: an expression of `pyarrow.dataset`, or pyarrow's lists of tuples: `[("label", "in", [1, 2])]`. Only
            rows that match are read, and row groups that cannot have any are skipped.
        files: see `read_text`; of the options, `block_bytes`, `storage_options`, `retries` and `cache`. Row
        options: see `read_text`; of the options, `block_bytes`, `storage_options`, `retries` and `cache`. Row
            groups smaller than `block_bytes` (uncompressed) are joined, larger ones split.
    """
    from headrace.sources.arrow_parquet import ParquetSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_parquet", files, options, TableArguments)
    return _stream(ParquetSource(_checked_paths(paths), columns=columns, filters=filters, options=merged), rows)


def read_arrow(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the rows of Arrow and Feather files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_parquet`; record batches smaller than `block_bytes` are joined.
        options: see `read_parquet`; record batches smaller than `block_bytes` are joined.
    """
    from headrace.sources.arrow_ipc import ArrowSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_arrow", files, options, TableArguments)
    return _stream(ArrowSource(_checked_paths(paths), columns=columns, options=merged), rows)


def read_tar(
    paths: Paths,
    *,
    decode: bool | Mapping[str, Decoder | None] = True,
    split: bool | None = None,
    files: FileOptions | None = None,
    **options: Unpack[ArchiveArguments],
) -> Stream:
    """A stream of the samples of tar archives, named as WebDataset names them: a dict per key, by extension.

    Args:
        decode: True decodes fields by their extension, False leaves them as bytes. A dict adds or replaces decoders
            by field or extension; None leaves a field as bytes: `{"pkl": pickle.loads, "jpg": None}`.
        split: whether to split archives into blocks; None splits those that are local and not compressed.
        files: see `read_text`; of the options, `block_bytes`, `max_record_bytes` (of a sample),
        options: see `read_text`; of the options, `block_bytes`, `max_record_bytes` (of a sample),
            `storage_options`, `retries` and `cache`.
    """
    from headrace.sources.options import ArchiveArguments, merge_options
    from headrace.sources.tar import TarSource

    merged = merge_options("read_tar", files, options, ArchiveArguments)
    return Stream(Recipe(TarSource(_checked_paths(paths), decode=decode, split=split, options=merged)))


def read_tfrecord(
    paths: Paths,
    *,
    features: Mapping[str, Any] | None = None,
    parse: bool = True,
    split: bool | None = None,
    checksums: bool | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[ArchiveArguments],
) -> Stream:
    """A stream of the records of TFRecord files, which are `tf.train.Example` messages; needs no TensorFlow.

    Args:
        features: what to read: by name, `int`, `float`, `bytes` or `str` for exactly one value, or a list of one of
            these, as in `{"label": int, "tokens": [int]}`, for any number. If None, everything: numbers as arrays,
            bytes by themselves if there is one, else in a list.
        parse: False gives records as bytes.
        split: whether to split files into blocks; None splits those that are local and not compressed.
        checksums: whether to verify the checksums of records; None if google-crc32c is installed (extra `tfrecord`).
            Those of lengths are always verified.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_tar`.
        options: see `read_tar`.
    """
    from headrace.sources.options import ArchiveArguments, merge_options
    from headrace.sources.tfrecord import TfRecordSource

    merged = merge_options("read_tfrecord", files, options, ArchiveArguments)
    source = TfRecordSource(
        _checked_paths(paths), features=features, parse=parse, split=split, checksums=checksums, options=merged
    )
    return _stream(source, rows)


def read_mds(
    folders: Paths,
    *,
    decode: bool | Mapping[str, Decoder | None] = True,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the samples of MosaicML Streaming's MDS shards.

    Args:
        folders: one or many, local or in a store, each with an `index.json`.
        decode: True decodes columns by their encodings: images to arrays (extra `pillow`), but nothing is unpickled.
            False leaves them as bytes. A dict adds or replaces decoders, by column or encoding:
            `{"pkl": pickle.loads, "image": None}`.
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_parquet`.
        options: see `read_parquet`.
    """
    from headrace.sources.mds import MdsSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_mds", files, options, TableArguments)
    return _stream(MdsSource(_checked_paths(folders), decode=decode, columns=columns, options=merged), rows)


def read_litdata(
    folders: Paths,
    *,
    decode: bool | Mapping[str, Decoder | None] = True,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the samples of LitData's chunks, as they were written: dicts, tuples, lists or single values.

    Args:
        folders: one or many, local or in a store, each with an `index.json`.
        decode: see `read_mds`; tensors are arrays.
        columns: which leaves to read, as dicts; those of a nested dict are called `outer.inner`. All if None.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_parquet`.
        options: see `read_parquet`.
    """
    from headrace.sources.litdata import LitDataSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_litdata", files, options, TableArguments)
    return _stream(LitDataSource(_checked_paths(folders), decode=decode, columns=columns, options=merged), rows)


def read_array_record(paths: Paths, *, files: FileOptions | None = None, **options: Unpack[TableArguments]) -> Stream:
    """A stream of the records of ArrayRecord files, as bytes (extra `array-record`). Files must be local."""
    from headrace.sources.array_record import ArrayRecordSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_array_record", files, options, TableArguments)
    return Stream(Recipe(ArrayRecordSource(_checked_paths(paths), options=merged)))


def read_hub(
    dataset: str | os.PathLike[str],
    split: str | None = None,
    *,
    config: str | None = None,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    filters: Any = None,
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the rows of a Hugging Face dataset: on the Hub, or as `save_to_disk` wrote it (extra `arrow`).

    Args:
        dataset: `owner/name` or `owner/name@revision` of a dataset on the Hub that has Parquet files, read through
            `hf://` (extra `hub`); or a folder, of such files or of `save_to_disk`.
        split: "train", "test" and so on; may be left out if there is only one.
        config: of a dataset that has several.
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        filters: see `read_parquet`; for Parquet files.
        files: see `read_parquet`.
        options: see `read_parquet`.

    Raises:
        ValueError: there are several splits or configurations; names them.
        FileNotFoundError: there is no such dataset, or it has no Parquet files.
    """
    from headrace.sources.hub import find_hub_files
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_hub", files, options, TableArguments)
    found = find_hub_files(dataset, split, config, merged)
    if found.format == "parquet":
        return read_parquet(found.paths, columns=columns, rows=rows, filters=filters, files=merged)
    if filters is not None:
        raise ValueError("`filters` are for Parquet files, and `save_to_disk` writes Arrow files. Use Stream.filter.")
    return read_arrow(found.paths, columns=columns, rows=rows, files=merged)


def read_delta(
    table: str | os.PathLike[str],
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the rows of a Delta Lake table (extra `delta`).

    The version is pinned: rows that are written later are not read, and a state resumes only with the version that it
    was taken with.

    Args:
        table: its path or address.
        version: which to read; None for the latest.
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_parquet`.
        options: see `read_parquet`.
    """
    from headrace.sources.arrow_snapshots import DeltaSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_delta", files, options, TableArguments)
    return _stream(DeltaSource(table, version=version, columns=columns, options=merged), rows)


def read_iceberg(
    table: Any,
    *,
    snapshot: int | None = None,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the rows of an Iceberg table (extra `iceberg`).

    The snapshot is pinned, as the version is in `read_delta`.

    Args:
        table: the path or address of its `metadata.json`, or a table that a catalog of pyiceberg has loaded.
        snapshot: the id of the one to read; None for the current one.
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_parquet`; `storage_options` are properties of pyiceberg's file system.
        options: see `read_parquet`.
    """
    from headrace.sources.arrow_snapshots import IcebergSource
    from headrace.sources.options import TableArguments, merge_options

    if not isinstance(table, (str, os.PathLike)):
        options.setdefault("storage_options", dict(table.io.properties))
        table = table.metadata_location
    merged = merge_options("read_iceberg", files, options, TableArguments)
    return _stream(IcebergSource(table, version=snapshot, columns=columns, options=merged), rows)


def read_lance(
    dataset: str | os.PathLike[str],
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the rows of a Lance dataset (extra `lance`). The version is pinned, as in `read_delta`.

    Args:
        dataset: its path or address.
        version: which to read; None for the latest.
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        files: see `read_parquet`.
        options: see `read_parquet`.
    """
    from headrace.sources.arrow_snapshots import LanceSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_lance", files, options, TableArguments)
    return _stream(LanceSource(dataset, version=version, columns=columns, options=merged), rows)


def read_hdf5(
    paths: Paths,
    arrays: Sequence[str] | Mapping[str, str] | None = None,
    *,
    windows: Windows | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the entries of datasets in HDF5 files, along their first axis, as dicts of arrays (extra `hdf5`).

    Blocks are whole chunks, so a shuffle decompresses no chunk twice; files are opened in the workers.

    Args:
        arrays: which datasets to read, all of one length; a dict renames them: `{"x": "group/images"}`. All if None.
        windows: makes samples of windows of a time series: `Windows(length=24, horizon=6)`.
        rows: "columns" makes a batch of slices of arrays.
        files: see `read_parquet`; of the options, `block_bytes`.
        options: see `read_parquet`; of the options, `block_bytes`.
    """
    from headrace.sources.arrays import Hdf5Source
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_hdf5", files, options, TableArguments)
    return _stream(Hdf5Source(_checked_paths(paths), arrays=arrays, windows=windows, options=merged), rows)


def read_zarr(
    paths: Paths,
    arrays: Sequence[str] | Mapping[str, str] | None = None,
    *,
    windows: Windows | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the entries of Zarr arrays, along their first axis, as dicts of arrays (extra `zarr`).

    Args:
        paths: groups or arrays, one or many: folders, or addresses that Zarr can open.
        arrays: see `read_hdf5`; a single array is called `array`.
        windows: see `read_hdf5`.
        rows: "columns" makes a batch of slices of arrays.
        files: see `read_hdf5`.
        options: see `read_hdf5`.
    """
    from headrace.sources.arrays import ZarrSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_zarr", files, options, TableArguments)
    return _stream(ZarrSource(_checked_paths(paths), arrays=arrays, windows=windows, options=merged), rows)


def read_npy(
    paths: Paths | Mapping[str, str | os.PathLike[str]],
    arrays: Sequence[str] | Mapping[str, str] | None = None,
    *,
    windows: Windows | None = None,
    rows: Rows = "dicts",
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream:
    """A stream of the entries of arrays in `.npy` and `.npz` files, along their first axis, as dicts of arrays.

    Args:
        paths: files whose rows follow each other, of which `.npy` files have the column `array`; or a dict of `.npy`
            files, each a column: `{"x": "images.npy", "y": "labels.npy"}`.
        arrays: see `read_hdf5`.
        windows: see `read_hdf5`.
        rows: "columns" makes a batch of slices of arrays.
        files: see `read_hdf5`.
        options: see `read_hdf5`.
    """
    from headrace.sources.arrays import NumpySource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_npy", files, options, TableArguments)
    given = paths if isinstance(paths, Mapping) else _checked_paths(paths)
    return _stream(NumpySource(given, arrays=arrays, windows=windows, options=merged), rows)


def read_images(
    root: str | os.PathLike[str],
    *,
    table: str | os.PathLike[str] | None = None,
    path_column: str = "path",
    label_column: str | None = "label",
    mode: str | None = "RGB",
    decoder: str | Callable[[bytes], Any] = "pillow",
    threads: int = 1,
    listing: str | os.PathLike[str] | None = None,
    block_bytes: int | None = None,
) -> Stream:
    """A stream of the images of a folder with a folder for each class: dicts of `image`, `label` and `path`.

    Labels are numbers in the order of the names of the classes, as torchvision's `ImageFolder` has them;
    `stream.recipe.source.classes` lists the names. Images are arrays of height, width and channels, turned as their
    EXIF data says. A file that cannot be decoded is a bad record, which names it.

    Args:
        table: a CSV or JSON lines file with the paths of the images, below `root`, and their labels, to read instead of
            the folders.
        path_column: of the table.
        label_column: of the table; None if there are no labels.
        mode: "RGB", "RGBA" or "L", whatever is stored; None leaves images as they are.
        decoder: "pillow" (extra `pillow`), "turbojpeg" (PyTurboJPEG, for JPEG files), or a function of bytes.
        threads: how many images are decoded at the same time, within each worker.
        listing: a file to keep the listing of the folder in; later, only folders that have changed are read again.
        block_bytes: approximate size of a block.

    Raises:
        FileNotFoundError: there is no such folder, or no image in it.
        ValueError: there is no such decoder or mode.
    """
    from headrace.sources.media import make_source
    from headrace.sources.media_decoders import IMAGE_SUFFIXES, image_decoder
    from headrace.sources.options import FileOptions

    check_count("threads", threads, 1)
    source = make_source(
        "images",
        root,
        IMAGE_SUFFIXES,
        image_decoder(decoder, mode),
        table=table,
        columns=(path_column, label_column),
        listing=listing,
        threads=threads,
        options=FileOptions(block_bytes=block_bytes),
    )
    return Stream(Recipe(source))


def read_audio(
    root: str | os.PathLike[str],
    *,
    table: str | os.PathLike[str] | None = None,
    path_column: str = "path",
    label_column: str | None = "label",
    threads: int = 1,
    listing: str | os.PathLike[str] | None = None,
    block_bytes: int | None = None,
) -> Stream:
    """A stream of the sounds of a folder: dicts of `audio`, `sample_rate`, `label` and `path` (extra `audio`).

    A sound is an array of frames and channels, of float32. Arguments are those of `read_images`.
    """
    from headrace.sources.media import make_source
    from headrace.sources.media_decoders import SOUND_SUFFIXES, decode_sound
    from headrace.sources.options import FileOptions

    check_count("threads", threads, 1)
    source = make_source(
        "audio",
        root,
        SOUND_SUFFIXES,
        decode_sound,
        table=table,
        columns=(path_column, label_column),
        listing=listing,
        threads=threads,
        options=FileOptions(block_bytes=block_bytes),
    )
    return Stream(Recipe(source))


def read_sql(
    dsn: str | os.PathLike[str],
    query: str,
    key: str | Sequence[str] | None = None,
    *,
    rows: Rows = "dicts",
    order_by: str | Sequence[str] | None = None,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    block_rows: int = 32_768,
    driver: str | None = None,
    retries: Retries | None = None,
) -> Stream:
    """A stream of the rows of a query: of SQLite, or of PostgreSQL (extra `sql`).

    Args:
        dsn: a path, `sqlite:///path`, or `postgresql://...`.
        key: a column, by whose values the query is read in parts, in their order, whatever ORDER BY it has; without it,
            it is read as one.
        rows: "columns" makes a batch of slices of columns.
        order_by: columns, in whose order the query is read in parts; each costs the database all parts before it.
        parameters: values for the placeholders in the query: `?` in SQLite, `$1`, `$2`, … in PostgreSQL; a mapping for
            `:name` in SQLite.
        block_rows: how many rows a part has.
        driver: for PostgreSQL: "adbc" or "psycopg"; None for the first of them that is installed.
        retries: how often to try again what a database fails to do.
    """
    from headrace.sources.sql import SqlSource

    if not isinstance(dsn, (str, os.PathLike)):
        raise TypeError(f"dsn must be a path, 'sqlite:///path' or 'postgresql://...', got {dsn!r}.")
    source = SqlSource(
        os.fspath(dsn),
        query,
        key,
        order_by=order_by,
        parameters=parameters,
        block_rows=block_rows,
        driver=driver,
        retries=retries,
    )
    return _stream(source, rows)


def mix(streams: Sequence[Stream], weights: Weights | None = None, *, stop: Stop = "first", seed: int = 0) -> Stream:
    """A stream that takes each row from one of several streams, by draws in proportion to weights.

    Guarantees: which stream gives the row at a position follows from the seed, the epoch and the position; each
    stream's rows keep their order; workers, ranks and resuming work as for any stream. What comes after (`map`, `take`,
    another `mix` and so on) is done to the mixed rows.

    Numbers of rows are needed to find a row: where nobody knows them, the workers count them, once.

    Args:
        weights: one per stream; equal, if not given. Or they change: pairs of a position and the weights from there on,
            or a function that makes weights of a position, which is asked at every 1024th.
        stop: "first" ends with the first stream that ends; "all" goes on with the others until all have ended;
            "longest" lets streams that have ended start again, shuffled anew, until each has ended once; "never" does
            so for ever.
        seed: of the draws, used if the loader has none.

    Raises:
        TypeError: something is no stream.
        ValueError: there is no stream, the weights do not fit, or a stream is packed.

    Examples:
        >>> a, b = (Stream.from_blocks([0], lambda _, name=name: [name] * 6) for name in "ab")
        >>> "".join(mix([a, b], [2, 1], stop="all", seed=3))
        'aaaaababbbbb'
    """
    if isinstance(streams, (Stream, Mapping)):
        raise TypeError(f"mix takes a list of streams, and their weights beside it, got {type(streams).__name__}.")
    if isinstance(weights, str):
        raise TypeError(f"weights must be numbers, one for each stream, got {weights!r}.")
    if not streams:
        raise ValueError("mix needs at least one stream.")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise TypeError(f"mix takes streams, got {stream!r}. Stream.from_iterable makes one of an iterable.")
        if stream.recipe.packing is not None:
            raise ValueError("pack() must come after mix(): pack the mixed rows.")
    if stop not in STOPS:
        raise ValueError(f"stop must be one of {', '.join(map(repr, STOPS))}, got {stop!r}.")
    checked = MixWeights([1.0] * len(streams) if weights is None else weights, len(streams))
    recipes = [stream.recipe for stream in streams]
    as_columns = all(recipe.as_columns for recipe in recipes)
    return Stream(Recipe(MixSource(recipes, checked, stop, seed), as_columns=as_columns))


def _checked_paths(paths: Any) -> list[str | os.PathLike[str]]:
    """The paths as a list, whatever they came in.

    Raises:
        TypeError: one of them is something else.
    """
    is_one = isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable)
    given = [paths] if is_one else list(paths)
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"paths must be a path or address, or a list of them, got {path!r:.80}.")
    return given


def _stream(source: Source, rows: str) -> Stream:
    if rows not in ("dicts", "columns"):
        raise ValueError(f"rows must be 'dicts' or 'columns', got {rows!r}.")
    return Stream(Recipe(source, as_columns=rows == "columns"))

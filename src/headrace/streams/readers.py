"""The functions that make streams: one for each kind of source."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.base.errors import check_count
from headrace.streams.live import LiveSource
from headrace.streams.mix_draws import DRAWS, Draw
from headrace.streams.mixing import STOPS, MixSource, MixWeights, Stop, Weights
from headrace.streams.stream import Recipe, Stream
from headrace.streams.tokens import sequence_length

# A source is imported when it is asked for: what they need is slow to import, and few need them all.
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from headrace.sources.arrays import Windows
    from headrace.sources.files import Paths
    from headrace.sources.live_files import LineFormat
    from headrace.sources.live_sockets import Format
    from headrace.sources.options import ArchiveArguments, BlockArguments, FileOptions, TableArguments, TextArguments
    from headrace.sources.retry import Retries
    from headrace.sources.tar import Decoder

Rows: TypeAlias = Literal["dicts", "columns"]


def read_text(
    paths: Paths,
    *,
    words: bool = False,
    whole_files: bool = False,
    follow: bool = False,
    files: FileOptions | None = None,
    **options: Unpack[TextArguments],
) -> Stream[str]:
    """A stream of the lines of text files, without their newlines; or of their words, or of whole files.

    Paths are one or many: files, directories, globs, or addresses such as `s3://bucket/key` (extra `remote`).

    Args:
        words: whether rows are words, which is twice as fast as splitting lines with `flat_map(str.split)`.
        whole_files: whether rows are files.
        follow: whether to go on for ever with new lines and new files, as they are written, also where files are
            rotated; see [Live streams](live.md).
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
    if follow and not whole_files:
        return _follow_lines(paths, merged, "words" if words else "text")
    return _stream_of_files(source, paths, merged, follow=follow)


def read_jsonl(
    paths: Paths, *, follow: bool = False, files: FileOptions | None = None, **options: Unpack[TextArguments]
) -> Stream[Any]:
    """A stream of JSON values, one per line. Paths and arguments are those of `read_text`."""
    from headrace.sources.options import TextArguments, merge_options
    from headrace.sources.text import JsonLinesSource

    merged = merge_options("read_jsonl", files, options, TextArguments)
    return _follow_lines(paths, merged, "jsonl") if follow else _stream_of_files(JsonLinesSource, paths, merged)


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
    follow: bool = False,
    files: FileOptions | None = None,
    **options: Unpack[TextArguments],
) -> Stream[dict[str, Any]]:
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
        follow: whether to go on for ever with new files, each when it is complete; see [Live streams](live.md).
        files: see `read_text`.
        options: see `read_text`.
    """
    from headrace.sources.csv_format import CsvFormat
    from headrace.sources.csv_rows import CsvSource
    from headrace.sources.options import TextArguments, merge_options

    table = CsvFormat(separator, quote, header, names, types, nulls, newlines_in_values)
    merged = merge_options("read_csv", files, options, TextArguments)
    return _stream_of_files(partial(CsvSource, table=table), paths, merged, rows, follow=follow)


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    follow: bool = False,
    filters: Any = None,
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream[dict[str, Any]]:
    """A stream of the rows of Parquet files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        follow: see `read_csv`.
        filters: an expression of `pyarrow.dataset`, or pyarrow's lists of tuples: `[("label", "in", [1, 2])]`. Only
            rows that match are read, and row groups that cannot have any are skipped.
        files: see `read_text`; of the options, `block_bytes`, `storage_options`, `retries` and `cache`. Row
        options: see `read_text`; of the options, `block_bytes`, `storage_options`, `retries` and `cache`. Row
            groups smaller than `block_bytes` (uncompressed) are joined, larger ones split.
    """
    from headrace.sources.arrow_parquet import ParquetSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_parquet", files, options, TableArguments)
    source = partial(ParquetSource, columns=columns, filters=filters)
    return _stream_of_files(source, paths, merged, rows, follow=follow)


def read_arrow(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    follow: bool = False,
    files: FileOptions | None = None,
    **options: Unpack[TableArguments],
) -> Stream[dict[str, Any]]:
    """A stream of the rows of Arrow and Feather files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        follow: see `read_csv`.
        files: see `read_parquet`; record batches smaller than `block_bytes` are joined.
        options: see `read_parquet`; record batches smaller than `block_bytes` are joined.
    """
    from headrace.sources.arrow_ipc import ArrowSource
    from headrace.sources.options import TableArguments, merge_options

    merged = merge_options("read_arrow", files, options, TableArguments)
    return _stream_of_files(partial(ArrowSource, columns=columns), paths, merged, rows, follow=follow)


def read_tar(
    paths: Paths,
    *,
    decode: bool | Mapping[str, Decoder | None] = True,
    split: bool | None = None,
    follow: bool = False,
    files: FileOptions | None = None,
    **options: Unpack[ArchiveArguments],
) -> Stream[dict[str, Any]]:
    """A stream of the samples of tar archives, named as WebDataset names them: a dict per key, by extension.

    Args:
        decode: True decodes fields by their extension, False leaves them as bytes. A dict adds or replaces decoders
            by field or extension; None leaves a field as bytes: `{"pkl": pickle.loads, "jpg": None}`.
        split: whether to split archives into blocks; None splits those that are local and not compressed.
        follow: see `read_csv`.
        files: see `read_text`; of the options, `block_bytes`, `max_record_bytes` (of a sample),
        options: see `read_text`; of the options, `block_bytes`, `max_record_bytes` (of a sample),
            `storage_options`, `retries` and `cache`.
    """
    from headrace.sources.options import ArchiveArguments, merge_options
    from headrace.sources.tar import TarSource

    merged = merge_options("read_tar", files, options, ArchiveArguments)
    return _stream_of_files(partial(TarSource, decode=decode, split=split), paths, merged, follow=follow)


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
    follow: str | None = None,
) -> Stream[dict[str, Any]]:
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
        follow: a column that grows, such as an id: go on for ever with rows whose value is larger than all before; see
            [Live streams](live.md). It takes the place of `key` and `order_by`.
    """
    from headrace.sources.sql import SqlSource

    if not isinstance(dsn, (str, os.PathLike)):
        raise TypeError(f"dsn must be a path, 'sqlite:///path' or 'postgresql://...', got {dsn!r}.")
    if follow is not None:
        from headrace.sources.live_sql import TableFollower

        if key is not None or order_by is not None:
            raise ValueError("`follow` takes the place of `key` and `order_by`: pass one of them.")
        table = TableFollower(os.fspath(dsn), query, follow, parameters=parameters, driver=driver)
        return _stream(LiveSource(table, retries), rows)
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


def read_live(
    url: str,
    *,
    format: Format = "lines",  # noqa: A002 (what everybody calls it)
    connections: Literal["one", "per_worker"] = "one",
    headers: Mapping[str, str] | None = None,
    idle_timeout_s: float | None = None,
    at_end: Literal["stop", "reconnect"] | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
    retries: Retries | None = None,
) -> Stream:
    """A stream of what arrives over a socket, or in an HTTP response that never ends; at most once.

    Rows are handed out as they come. The loader's process reads the connection and deals its rows to the workers, which
    decode and transform them. If the loop is slow, nothing more is read: back pressure. A connection that is lost is
    opened again, with a growing delay; what is sent meanwhile is lost, since such a server has no positions.

    Args:
        url: `tcp://host:port`, `http://…` or `https://…`, of which the response to a GET is read.
        format: "lines" of text, "jsonl" for a JSON value a line, or "records": bytes, each after its length in four
            bytes, the most significant first.
        connections: "one", dealt out to all workers; or "per_worker" opens one for each, which suits a server that
            deals its rows out to connections. Several ranks need that, too.
        headers: of the HTTP request.
        idle_timeout_s: connect again if nothing has come for so long, e.g. twice the interval of heartbeats.
        at_end: what the end of a connection means: "stop" ends the stream, "reconnect" is a loss. By default, the
            stream ends with an HTTP response that is complete, and only then.
        encoding: of text, and `errors` what to do with bytes that cannot be decoded; see `FileOptions`.
        retries: how often to connect again; by default for about ten minutes, counted from the last row.

    Raises:
        ValueError: the address, or an option, is none that is known.
        LookupError: the encoding, or the way to handle errors, is unknown.

    Examples:
        >>> from headrace import DataLoader
        >>> stream = read_live("tcp://127.0.0.1:9000", format="jsonl").filter(lambda row: row["clicks"])
        >>> loader = DataLoader(stream, batch_size=8, num_workers=2)
    """
    from headrace.sources.live_sockets import SocketConnector

    connector = SocketConnector(
        url,
        format=format,
        connections=connections,
        headers=headers,
        idle_timeout_s=idle_timeout_s,
        at_end=at_end,
        encoding=encoding,
        errors=errors,
    )
    return Stream(Recipe(LiveSource(connector, retries)))


def read_redis(
    url: str,
    stream: str | Sequence[str],
    group: str | None = None,
    *,
    start: str = "0",
    consumer: str = "headrace",
    id_field: str | None = None,
    retries: Retries | None = None,
) -> Stream:
    """A stream of the entries of a Redis stream, as dicts, for ever; exactly once by offsets (extra `redis`).

    The ids of the entries are the positions in `state_dict()`: a run that resumes reads on after the last entry that
    its loop had. With several ranks, each entry goes to one of them.

    Args:
        url: `redis://host:port/0`; see the client `redis`.
        stream: the key of the stream, or several.
        group: a consumer group, which is made if there is none. The server then deals entries out to ranks, and keeps
            a list of those that were not acknowledged: `loader.commit(state)` does that, once the state is saved. A run
            that begins without a state gets all that were not.
        start: where to begin without a state, or where a new group does: "0" with the first entry, "$" with those that
            are added from now on; or an id.
        consumer: the name of this job's consumers in the group; each rank adds its number.
        id_field: a field that entries get for their id, if you want it.
        retries: see `read_live`.

    Raises:
        MissingExtraError: the client is not installed.

    Examples:
        >>> stream = read_redis("redis://localhost:6379/0", "clicks", group="trainer")  # doctest: +SKIP
    """
    from headrace.sources.live_redis import RedisConnector

    streams = [stream] if isinstance(stream, str) else list(stream)
    return Stream(Recipe(LiveSource(RedisConnector(url, streams, group, start, consumer, id_field), retries)))


def read_nats(
    url: str,
    stream: str,
    subject: str | None = None,
    *,
    durable: str | None = None,
    start: Literal["0", "$"] = "0",
    retries: Retries | None = None,
) -> Stream:
    """A stream of the messages of a NATS JetStream stream, as bytes, for ever; exactly once by offsets (extra `nats`).

    Sequence numbers are the positions in `state_dict()`: a run that resumes reads on after the last message that its
    loop had.

    Args:
        url: `nats://host:4222`.
        stream: its name.
        subject: only messages of this subject.
        durable: a consumer on the server that remembers what `loader.commit(state)` covers: a run that begins without
            a state goes on there, and a stream that keeps messages as long as somebody is interested keeps the others.
        start: where to begin without a state: "0" with the first message, "$" with those published from now on.
        retries: see `read_live`.

    Raises:
        MissingExtraError: the client is not installed.
        ValueError: `start` is something else.

    Examples:
        >>> stream = read_nats("nats://localhost:4222", "CLICKS").map(json.loads)  # doctest: +SKIP
    """
    from headrace.sources.live_nats import NatsConnector

    return Stream(Recipe(LiveSource(NatsConnector(url, stream, subject, durable, start), retries)))


def read_tokens(
    paths: Paths,
    length: int | None,
    *,
    dtype: Any = None,
    targets: bool = True,
    stride: int | None = None,
    documents: bool = False,
    end: int | None = None,
    ignore_index: int = -100,
    split: str | Sequence[float] | None = None,
    part: int | str = 0,
    row_dtype: Any = "int64",
    files: FileOptions | None = None,
    **options: Unpack[BlockArguments],
) -> Stream:
    """A stream of rows of `length` tokens, of files of token ids: a batch is a dict of `[batch, length]` arrays.

    Files are raw numbers in a `.bin` file, as nanoGPT writes them; shards of llm.c; `.npy` files of one dimension; or
    Megatron's `.bin` files with an `.idx` file beside them, given by either name or by what the names have in common.
    Local files are mapped into memory, those in stores are read by ranges. Rows never span two files, and what is left
    at the end of a file and does not fill a row is dropped. `TokenDataset` has the same rows by number.

    Args:
        length: tokens in a row; None makes a row of each document of Megatron's files, for `pack`.
        dtype: of the raw tokens in `.bin` files, whatever an index says; by default 16 bits without a sign.
        targets: whether a batch also has "targets": the token that follows each one.
        stride: how many tokens after a row the next one begins; `length` if None. Rows overlap if it is less.
        documents: whether a batch also has "segments", which number the documents in a row from 1 on, and "positions"
            in them; "targets" are `ignore_index` where a document ends.
        end: the token that ends a document, where there is no index; sets `documents`.
        split: the sizes of the parts of a split, such as "969,30,1", of which one `part` is read: by documents where
            there is an index, and else by tokens.
        part: its number, or "train", "valid" or "test".
        row_dtype: of the tokens in a batch.
        files: see `read_text`; of the options, `block_bytes`, `storage_options`, `retries` and `cache`.
        options: see `read_text`; of the options, `block_bytes`, `storage_options`, `retries` and `cache`.

    Raises:
        TypeError: a dtype is none of integers, or `paths` are not paths.
        ValueError: a number is too small, there is no such part, or it is not known where documents begin.

    Examples:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "train.bin")
        >>> np.arange(9, dtype=np.uint16).tofile(path)
        >>> for row in read_tokens(path, 4):
        ...     print(row["tokens"], row["targets"])
        [0 1 2 3] [1 2 3 4]
        [4 5 6 7] [5 6 7 8]
    """
    from headrace.sources.options import BlockArguments, merge_options
    from headrace.sources.token_source import TokenSource, make_cut

    merged = merge_options("read_tokens", files, options, BlockArguments)
    cut = make_cut(
        length,
        dtype=dtype,
        targets=targets,
        stride=stride,
        documents=documents,
        end=end,
        ignore_index=ignore_index,
        split=split,
        part=part,
        row_dtype=row_dtype,
    )
    return Stream(Recipe(TokenSource(_checked_paths(paths), cut, merged), as_columns=length is not None))


def mix(
    streams: Sequence[Stream],
    weights: Weights | None = None,
    *,
    stop: Stop = "first",
    draw: Draw = "random",
    length: Callable[[Any], int] | None = None,
    seed: int = 0,
) -> Stream:
    """A stream that takes each row from one of several streams, in proportion to weights.

    Guarantees: which stream gives the row at a position follows from the seed, the epoch and the position; each
    stream's rows keep their order; workers, ranks and resuming work as for any stream. What comes after (`map`, `take`,
    another `mix` and so on) is done to the mixed rows. A state also fits the same streams with other weights: what no
    rank has begun to read is drawn with these.

    Numbers of rows are needed to find a row: where nobody knows them, the workers count them, once.

    Args:
        weights: one per stream; equal, if not given. Or they change: pairs of a position and the weights from there on,
            or a function that makes weights of a position, which is asked at every 1024th.
        stop: "first" ends with the first stream that ends; "all" goes on with the others until all have ended;
            "longest" lets streams that have ended start again, shuffled anew, until each has ended once; "never" does
            so for ever.
        draw: "random" draws each row by itself. "even" takes streams in turn, as Megatron blends: at any position, each
            has given its share of the rows, within about one. "tokens" does so by the lengths of rows, which the
            workers measure first. "stratified" gives each batch of a `DataLoader` the same shares, rounded where they
            are no whole numbers; "batches" draws a stream for each batch as a whole.
        length: measures a row for "tokens"; by default its `len`, or that of its first field, if it is a dict.
        seed: of the draws, used if the loader has none.

    Raises:
        TypeError: something is no stream.
        ValueError: there is no stream, the weights do not fit, a stream is packed, or is a mix of whole batches.

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
        if isinstance(stream.recipe.source, LiveSource):
            raise ValueError(
                "A live stream cannot be mixed: which rows it has at a position depends on when they arrive. Zip its "
                "loader with that of the other streams."
            )
        if stream.recipe.packing is not None:
            raise ValueError("pack() must come after mix(): pack the mixed rows, or pass fit= to pack().")
        if getattr(stream.recipe.source, "draws_batches", False):
            raise ValueError(
                "A mix that draws batches as a whole must be the last one: mix its streams with the others."
            )
    if stop not in STOPS:
        raise ValueError(f"stop must be one of {', '.join(map(repr, STOPS))}, got {stop!r}.")
    if draw not in DRAWS:
        raise ValueError(f"draw must be one of {', '.join(map(repr, DRAWS))}, got {draw!r}.")
    checked = MixWeights([1.0] * len(streams) if weights is None else weights, len(streams))
    recipes = [stream.recipe for stream in streams]
    as_columns = all(recipe.as_columns for recipe in recipes)
    source = MixSource(recipes, checked, stop, seed, draw, length or sequence_length)
    return Stream(Recipe(source, as_columns=as_columns))


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


def _follow_lines(paths: Any, options: FileOptions, format: LineFormat) -> Stream:  # noqa: A002
    from headrace.sources.live_files import LineFollower

    return Stream(Recipe(LiveSource(LineFollower(_checked_paths(paths), options, format))))


def _stream_of_files(
    source: Any, paths: Any, options: FileOptions, rows: Rows = "dicts", *, follow: bool = False
) -> Stream:
    """The files of a format; with `follow`, also those that appear later.

    Args:
        source: makes the source of some paths.
    """
    checked, opened = _checked_paths(paths), partial(source, options=options)
    if not follow:
        return _stream(opened(checked), rows)
    from headrace.sources.live_files import FileFollower

    return _stream(LiveSource(FileFollower(checked, options, opened)), rows)


def _stream(source: Any, rows: str) -> Stream:
    if rows not in ("dicts", "columns"):
        raise ValueError(f"rows must be 'dicts' or 'columns', got {rows!r}.")
    return Stream(Recipe(source, as_columns=rows == "columns"))

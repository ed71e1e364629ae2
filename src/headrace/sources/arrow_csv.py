"""Tables in text, parsed by pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.base.world import get_worker_info
from headrace.sources.arrow import table_chunk
from headrace.sources.chunks import ColumnChunk
from headrace.sources.csv_format import BOOLS, CsvFormat, CsvSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
else:
    pa = import_extra("pyarrow", "arrow", "Reading tables")
    arrow_csv = import_extra("pyarrow.csv", "arrow", "Reading tables")

_THREAD_BYTES = 1 << 18  # that one of pyarrow's threads parses
_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}


def parse_with_arrow(content: bytes, table: CsvFormat, schema: CsvSchema) -> ColumnChunk | None:
    """The records of some UTF-8, which has no header; None if there are any that do not fit the schema."""
    is_quoted = table.quote is not None and table.quote.encode() in content
    if get_worker_info() is None and not is_quoted:  # workers share the cores already
        parsed = _parse(content, table, schema, thread_bytes=_THREAD_BYTES)
        if parsed is not None:
            return parsed
    return _parse(content, table, schema, newlines_in_values=is_quoted)


def _parse(
    content: bytes,
    table: CsvFormat,
    schema: CsvSchema,
    *,
    newlines_in_values: bool = False,
    thread_bytes: int | None = None,
) -> ColumnChunk | None:
    """The same, in several threads if `thread_bytes` is given; no record may be longer than that."""
    reading = arrow_csv.ReadOptions(
        use_threads=thread_bytes is not None,
        block_size=len(content) + 1 if thread_bytes is None else thread_bytes,
        column_names=list(schema.names),
    )
    parsing = arrow_csv.ParseOptions(
        delimiter=table.separator, quote_char=table.quote or False, newlines_in_values=newlines_in_values
    )
    try:
        parsed = arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=reading,
            parse_options=parsing,
            convert_options=_converting(table, schema, check_utf8=not content.isascii()),
        )
    except pa.ArrowInvalid:
        return None
    batches = parsed.combine_chunks().to_batches()
    return table_chunk(batches[0]) if batches else None


def _converting(table: CsvFormat, schema: CsvSchema, *, check_utf8: bool) -> Any:
    return arrow_csv.ConvertOptions(
        check_utf8=check_utf8,
        column_types={name: _TYPES[schema.types[name]] for name in schema.names},
        null_values=sorted(table.null_texts),
        strings_can_be_null=table.nulls is not None,
        true_values=[text for text, value in BOOLS.items() if value],
        false_values=[text for text, value in BOOLS.items() if not value],
    )

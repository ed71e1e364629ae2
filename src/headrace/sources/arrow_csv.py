"""Tables in text, parsed by pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.sources.arrow import TableChunk
from headrace.sources.csv_format import CsvFormat, CsvSchema
from headrace.sources.csv_types import BOOLS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
else:
    pa = import_extra("pyarrow", "arrow", "Reading tables")
    arrow_csv = import_extra("pyarrow.csv", "arrow", "Reading tables")

_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}


def parse_with_arrow(content: bytes, table: CsvFormat, schema: CsvSchema) -> TableChunk | None:
    """The records of some UTF-8, which has no header; None if there are any that do not fit the schema."""
    reading = arrow_csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=list(schema.names))
    parsing = arrow_csv.ParseOptions(
        delimiter=table.separator, quote_char=table.quote or False, newlines_in_values=True
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
    return TableChunk(batches[0]) if batches else None


def _converting(table: CsvFormat, schema: CsvSchema, *, check_utf8: bool) -> Any:
    return arrow_csv.ConvertOptions(
        check_utf8=check_utf8,
        column_types={name: _TYPES[schema.types[name]] for name in schema.names},
        null_values=sorted(table.null_texts),
        strings_can_be_null=table.nulls is not None,
        true_values=[text for text, value in BOOLS.items() if value],
        false_values=[text for text, value in BOOLS.items() if not value],
    )

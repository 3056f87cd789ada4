"""The row format ``csv``, compatible with Flink's CSV format: each payload is one line without a line break."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.types as pt

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.bulk_decode import decode_in_bulk
from tablestore.connectors.formats.column_texts import joined
from tablestore.connectors.formats.csv.bulk_reader import CsvBulkReader
from tablestore.connectors.formats.csv.row_reader import CsvOptions, CsvRowReader
from tablestore.connectors.formats.csv.writer import field_pieces, field_sql
from tablestore.connectors.formats.text_format import TextFormat
from tablestore.connectors.formats.types import check_schema


class CsvRowFormat(TextFormat):
    """Row format that encodes each row as a CSV line."""

    name = "csv"
    empty = b""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], *, side: str = "") -> None:
        """Prepare for a schema.

        Args:
            schema: the columns; the only nested types supported are arrays and structs of scalar values.
            options: Flink's options of the format, without prefix.
            side: ``key``, ``value`` or empty; used in error messages.

        Raises:
            InvalidInputError: CSV does not support a column type, or an option is invalid.
        """
        self._options = CsvOptions.of(options, side=side)
        check_schema(schema, lambda field, path: None)
        for field in schema:
            _check_column(field)
        super().__init__(schema, options, side, partial(field_sql, options=self._options))
        self._one = CsvRowReader(schema, self._options).read
        self._bulk = CsvBulkReader(schema, self._options).read

    def _texts(self, rows: pa.RecordBatch) -> pa.Array:
        """Return each row as a line, without a line break."""
        fast = partial(field_pieces, options=self._options)
        parts: list[pa.Array | str] = []
        for pieces in self._pieces(rows, fast):
            parts += [self._options.delimiter if parts else "", *pieces.filled(self._options.null or "")]
        return joined(parts, len(rows))

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. A null payload produces no row."""
        return decode_in_bulk(payloads, self._schema, self._bulk, self._one)


def _check_column(field: pa.Field) -> None:
    data_type = field.type
    inner = (
        [data_type.value_type]
        if pt.is_list(data_type)
        else [f.type for f in data_type]
        if pt.is_struct(data_type)
        else []
    )
    if pt.is_map(data_type):
        msg = f"column {field.name!r}: format 'csv' cannot hold a map; use 'json' or 'avro'"
        raise InvalidInputError(msg)
    if any(part.num_fields for part in inner):
        msg = (
            f"column {field.name!r}: format 'csv' holds arrays and rows of single values only, this one is {data_type}"
        )
        raise InvalidInputError(msg)

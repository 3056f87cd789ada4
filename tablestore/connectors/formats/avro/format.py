"""The row format ``avro``: rows in Avro's binary encoding, without header or schema registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from log_system.formats.changes_schema import relabel
from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.avro.resolving_bulk import resolving_bulk
from tablestore.connectors.formats.avro.row_reader import AvroRowReader
from tablestore.connectors.formats.avro.schema import record_schema, with_logical_types
from tablestore.connectors.formats.avro.writer import encode_row
from tablestore.connectors.formats.avro.writer_schema import parse_schema
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.bulk_decode import decode_in_bulk
from tablestore.connectors.formats.options import FormatOptions
from tablestore.connectors.formats.text_format import PortableFormat, in_slices, repeated
from tablestore.connectors.formats.types import check_rows, check_schema
from tablestore.options.declaration import option
from tablestore.options.value_types import BOOLEAN, choice


@dataclass(frozen=True, kw_only=True)
class AvroOptions(FormatOptions):
    """The options of the ``avro`` format."""

    format = "avro"
    encoding: str = option("encoding", choice(("binary", "json")), "binary")
    legacy: bool = option("timestamp_mapping.legacy", BOOLEAN, "true", "See `with_logical_types`.")


class AvroRowFormat(PortableFormat):
    """Row format that encodes each row as an Avro record.

    Attributes:
        fields: the columns, with their logical types.
        avro_schema: the Avro schema of the payloads as JSON, for use with any Avro library.
    """

    name = "avro"

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], *, side: str = "") -> None:
        """Prepare for a schema.

        Args:
            schema: the columns; the precision of a timestamp determines its logical type.
            options: Flink's options of the format, without prefix.
            side: ``key``, ``value`` or empty; used in error messages.

        Raises:
            InvalidInputError: Avro does not support a column type or name, or an option is invalid.
        """
        super().__init__(schema, options, side)
        found = AvroOptions.of(options, side=side)
        if found.encoding == "json":
            msg = f"{found.option_prefix}encoding='json' is not supported; use 'binary', or the format 'json'"
            raise InvalidInputError(msg)
        check_schema(schema, _check_name)
        self.fields = [with_logical_types(field, field.name, legacy=found.legacy) for field in schema]
        parsed = record_schema(pa.schema(self.fields))
        self.avro_schema = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False)
        written = parse_schema(parsed)
        self._one = AvroRowReader(written, self.fields, hint="; was it written with another schema?").read
        self._bulk = resolving_bulk(written, schema)

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows to one payload each."""
        check_rows(rows, self._schema, self.name)
        if not len(self._schema) or not len(rows):
            return repeated(b"", len(rows))
        rows = relabel(rows, self._schema)
        return in_slices(rows, lambda part: encode_row(part.columns, self.fields, len(part)))

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. A null payload produces no row."""
        return decode_in_bulk(payloads, self._schema, self._bulk, self._one, text=False)


def _check_name(field: pa.Field, path: str) -> None:
    name = field.name
    if not (name.isascii() and name.isidentifier()):
        msg = f"column {path!r}: Avro's names have letters, digits and '_' only, and begin with no digit"
        raise InvalidInputError(msg)

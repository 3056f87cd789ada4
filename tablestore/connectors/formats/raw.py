"""The row format ``raw``, like Flink's raw format: the payload is the bytes of a single column."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.bulk_decode import decoded, read_one_by_one
from tablestore.connectors.formats.options import FormatOptions
from tablestore.connectors.formats.text_format import PortableFormat
from tablestore.connectors.formats.types import check_rows, check_schema
from tablestore.connectors.formats.values import UnfitError, shown
from tablestore.options.declaration import option
from tablestore.options.value_types import OptionType, choice

_CODES = {
    pa.bool_(): "?",
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.float32(): "f",
    pa.float64(): "d",
}


def _charset(text: str) -> str:
    try:
        "é".encode(text, "replace")
    except LookupError as error:
        raise ValueError(text) from error
    return codecs.lookup(text).name


@dataclass(frozen=True, kw_only=True)
class RawOptions(FormatOptions):
    """The options of the ``raw`` format."""

    format = "raw"
    charset: str = option("charset", OptionType("text", "the name of a character set", _charset), "UTF-8")
    endianness: str = option("endianness", choice(("big-endian", "little-endian")), "big-endian")


class RawRowFormat(PortableFormat):
    """Row format of a single column, whose bytes are the payload."""

    name = "raw"

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], *, side: str = "") -> None:
        """Prepare for a schema.

        Args:
            schema: a single column of a string, binary, boolean, integer or floating-point type.
            options: Flink's options of the format, without prefix.
            side: ``key``, ``value`` or empty; used in error messages.

        Raises:
            InvalidInputError: the schema is not supported, or an option is invalid.
        """
        super().__init__(schema, options, side)
        found = RawOptions.of(options, side=side)
        order = ">" if found.endianness == "big-endian" else "<"
        check_schema(schema, lambda field, path: None)
        kinds = [*_CODES, pa.string(), pa.binary()]
        if len(schema) != 1 or schema.types[0] not in kinds:
            msg = (
                f"format 'raw' takes one column of type {', '.join(map(str, kinds))}; "
                f"got {', '.join(f'{field.name} {field.type}' for field in schema) or 'no column'}"
            )
            raise InvalidInputError(msg)
        self._charset = found.charset
        self._form = struct.Struct(order + _CODES[schema.types[0]]) if schema.types[0] in _CODES else None

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows to one payload each, which is null for NULL.

        Raises:
            InvalidInputError: the column does not match the schema, or the character set cannot encode a text.
        """
        check_rows(rows, self._schema, self.name)
        column, name = rows.column(0), self._schema.names[0]
        if pt.is_binary(column.type) or (pt.is_string(column.type) and self._charset == "utf-8"):
            return column.cast(pa.binary()).cast(pa.large_binary())
        if self._form is not None:
            return _each(column, self._form.pack)
        try:
            return _each(column, lambda text: text.encode(self._charset))
        except UnicodeEncodeError as error:
            msg = f"column {name!r}: the character set {self._charset!r} cannot write {shown(error.object)}"
            raise InvalidInputError(msg) from error

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. A null payload is a row of NULL; no row if the column is NOT NULL."""
        field = self._schema.field(0)
        absent = {field.name: None} if field.nullable else None
        rows, record = read_one_by_one(payloads, range(len(payloads)), self._one, absent)
        return decoded(rows, record, self._schema)

    def _one(self, payload: bytes) -> dict[str, Any]:
        field = self._schema.field(0)
        try:
            return {field.name: self._value(payload, field.type)}
        except (struct.error, UnicodeDecodeError) as error:
            msg = f"expected {self._form.size} bytes" if self._form else f"expected text in {self._charset}"
            msg = f"{msg} for {field.type}, got {len(payload)} bytes: {shown(payload)}"
            raise UnfitError(msg, field.name) from error

    def _value(self, payload: bytes, data_type: pa.DataType) -> Any:
        if self._form is not None:
            return self._form.unpack(payload)[0]
        return payload if pt.is_binary(data_type) else payload.decode(self._charset)


def _each(column: pa.Array, encode: Callable[[Any], bytes]) -> pa.Array:
    return pa.array([None if value is None else encode(value) for value in column.to_pylist()], pa.large_binary())

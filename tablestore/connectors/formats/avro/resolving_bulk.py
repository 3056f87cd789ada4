"""Decodes Avro payloads in bulk to the rows of a table, whose schema may be another one.

A schema with other types than those here, and a payload that is not straightforward, is left to ``row_reader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from tablestore.connectors.formats.avro import bulk_reader
from tablestore.connectors.formats.avro.schema import LOGICAL
from tablestore.connectors.formats.avro.writer_schema import AvroType
from tablestore.connectors.formats.bulk_decode import BulkRows, ReadBulk

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_WIDER: Final = {(pa.int32(), pa.int64()), (pa.int32(), pa.float64()), (pa.float32(), pa.float64())}
_TIMESTAMPS: Final = {f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros")}


def resolving_bulk(written: AvroType, schema: pa.Schema) -> ReadBulk:
    """Return a bulk decoder of one schema's payloads to another schema's rows; it leaves out what it cannot decode."""
    wanted = pa.field("", pa.struct(list(schema)))
    read = _field(written, "", wanted) if len(schema) else None

    def decoded(payloads: pa.Array) -> Iterator[BulkRows]:
        if read is None or not len(payloads):
            return
        rows, known = bulk_reader.read(payloads, read)
        position = known
        if rows.null_count:
            there = rows.is_valid()
            rows, position = rows.filter(there), known[there.to_numpy(zero_copy_only=False)]
        columns = _projected(rows, wanted).flatten()
        yield BulkRows(position, pa.RecordBatch.from_arrays(columns, schema=schema), known)

    return decoded


def _field(written: AvroType, name: str, wanted: pa.Field | None, within: tuple[AvroType, ...] = ()) -> pa.Field | None:
    """Return the field as which values are read; None if they cannot be.

    Args:
        written: the type of the values.
        name: the field's name.
        wanted: the field of the table; None if the values are only skipped.
        within: the records that the field is in. A recursive one cannot be read.
    """
    is_nullable = written.kind == "union"
    if is_nullable:
        if len(written.parts) != 2 or written.parts[0].kind != "null" or (wanted and not wanted.nullable):
            return None
        written = written.parts[1]
    if written.kind == "record":
        data_type = None if any(written is each for each in within) else _struct(written, wanted, (*within, written))
    elif written.kind == "array":
        data_type = _list(written, wanted, within)
    elif wanted is None:
        data_type = _PLAIN.get(written.kind)
    else:
        data_type = _plain(written, wanted.type)
    if data_type is None:
        return None
    metadata = {LOGICAL: written.logical.encode()} if pt.is_timestamp(data_type) else None
    return pa.field(name, data_type, is_nullable, metadata)


def _struct(written: AvroType, wanted: pa.Field | None, within: tuple[AvroType, ...]) -> pa.DataType | None:
    if wanted is not None and not pt.is_struct(wanted.type):
        return None
    columns = {} if wanted is None else {field.name: field for field in wanted.type}
    if any(not field.nullable and name not in written.names for name, field in columns.items()):
        return None
    pairs = zip(written.names, written.parts, strict=True)
    fields = [_field(part, name, columns.get(name), within) for name, part in pairs]
    return None if not fields or any(each is None for each in fields) else pa.struct(fields)


def _list(written: AvroType, wanted: pa.Field | None, within: tuple[AvroType, ...]) -> pa.DataType | None:
    if wanted is not None and not pt.is_list(wanted.type):
        return None
    element = _field(written.parts[0], "element", None if wanted is None else wanted.type.value_field, within)
    return None if element is None else pa.list_(element)


def _plain(written: AvroType, wanted: pa.DataType) -> pa.DataType | None:
    if pt.is_timestamp(wanted):
        return wanted if written.kind == "long" and written.logical in _TIMESTAMPS else None
    if pt.is_date32(wanted):
        return wanted if written.kind == "int" and written.logical == "date" else None
    if pt.is_time(wanted):
        return wanted if written.kind == "int" and written.logical == "time-millis" else None
    if pt.is_decimal(wanted):
        is_same = written.kind == "bytes" and written.logical == "decimal" and written.scale == wanted.scale
        return wanted if is_same else None
    found = None if written.logical else _PLAIN.get(written.kind)
    if found == pa.int32() and pt.is_integer(wanted) and wanted.bit_width < found.bit_width:
        return wanted
    return found if found == wanted or (found, wanted) in _WIDER else None


def _projected(values: pa.Array | None, wanted: pa.Field, count: int = 0) -> pa.Array:
    """Return values as those of the wanted field: fields of a struct by name, numbers as wider ones."""
    if values is None:
        return pa.nulls(count, wanted.type)
    hidden = values.is_null() if values.null_count else None
    if pt.is_list(wanted.type):
        elements = _projected(values.values, wanted.type.value_field)
        return pa.ListArray.from_arrays(values.offsets, elements, type=wanted.type, mask=hidden)
    if not pt.is_struct(wanted.type):
        return values.cast(wanted.type)
    columns = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    arrays = [_projected(columns.get(field.name), field, len(values)) for field in wanted.type]
    return pa.StructArray.from_arrays(arrays, fields=list(wanted.type), mask=hidden)

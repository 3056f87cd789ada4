"""Decodes Avro payloads of another schema than the table's, by the rules of Avro: fields are matched by name.

A number may be read as a wider one, a text as bytes and the other way round. A field that only the table has is NULL,
one that only the payload has is skipped.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from tablestore.connectors.formats.avro.row_reader import Cursor, Read, boolean, items, text, time
from tablestore.connectors.formats.avro.schema import MILLI, unit_of
from tablestore.connectors.formats.avro.writer_schema import AvroType
from tablestore.connectors.formats.values import UnfitError

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_UNITS: Final = {
    f"{local}timestamp-{unit}": size for local in ("", "local-") for unit, size in (("millis", 1000), ("micros", 1))
}
_TIMES: Final = {"time-millis": MILLI, "time-micros": MILLI // 1000}
_NO_LOGICAL: Final = ("", "date")


class ResolvingReader:
    """Decodes payloads of one schema to rows of another."""

    def __init__(self, written: AvroType, fields: list[pa.Field]) -> None:
        """Prepare the reader of payloads of a schema, for the fields of a row."""
        self._read = _reader(written, pa.field("", pa.struct(fields)))

    def read(self, payload: bytes) -> dict[str, Any] | None:
        """Decode one payload; None if it is null.

        Raises:
            UnfitError: the payload is invalid, or has a value that a column cannot hold.
        """
        cursor = Cursor(payload)
        row: dict[str, Any] | None = self._read(cursor)
        if cursor.at != len(payload):
            msg = f"{len(payload) - cursor.at} bytes follow the last field"
            raise UnfitError(msg)
        return row


def _reader(written: AvroType, field: pa.Field) -> Read:
    """Return what reads a value of a type for a field; what does not fit fails when it is read."""
    if written.kind == "union":
        branches = [_reader(each, field) for each in written.parts]
        return lambda cursor: _branch(cursor, branches)
    if written.kind == "null":
        return (lambda _: None) if field.nullable else _failing("must not be NULL; declare the column without NOT NULL")
    read = _value_reader(written, field)
    if read is not None:
        return read
    logical = f" ({written.logical})" if written.logical else ""
    return _failing(
        f"the message has the type {written.kind}{logical}, which a column of type {field.type} cannot hold"
    )


def _failing(reason: str) -> Read:
    def fail(_: Cursor) -> Any:
        raise UnfitError(reason)

    return fail


def _branch(cursor: Cursor, branches: list[Read]) -> Any:
    number = cursor.long()
    if not 0 <= number < len(branches):
        msg = f"the union has {len(branches)} branches, got {number}"
        raise UnfitError(msg)
    return branches[number](cursor)


def _value_reader(written: AvroType, field: pa.Field) -> Read | None:
    kind, wanted = written.kind, field.type
    if kind == "record" and pt.is_struct(wanted):
        return _record_reader(written, wanted)
    if kind == "array" and pt.is_list(wanted):
        element = _reader(written.parts[0], wanted.value_field)
        return lambda cursor: items(cursor, element)
    if kind == "map" and pt.is_map(wanted):
        value = _reader(written.parts[0], wanted.item_field)
        return lambda cursor: list(dict(items(cursor, lambda c: (text(c), value(c)))).items())
    if kind in ("int", "long"):
        return _number_reader(written, field)
    if kind in ("float", "double") and (pt.is_float64(wanted) or (kind == "float" and pt.is_float32(wanted))):
        form = _FLOAT if kind == "float" else _DOUBLE
        return lambda cursor: form.unpack(cursor.take(form.size))[0]
    if kind == "boolean" and pt.is_boolean(wanted):
        return boolean
    return _bytes_reader(written, wanted)


def _bytes_reader(written: AvroType, wanted: pa.DataType) -> Read | None:
    kind = written.kind
    if kind == "enum" and pt.is_string(wanted):
        return lambda cursor: _symbol(cursor, written.names)
    if kind in ("bytes", "fixed") and pt.is_decimal(wanted):
        scale = written.scale if written.logical == "decimal" else wanted.scale
        size = written.size if kind == "fixed" else None
        return lambda cursor: _decimal(cursor, size, scale, wanted)
    if kind == "fixed" and pt.is_binary(wanted):
        return lambda cursor: cursor.take(written.size)
    if kind in ("bytes", "string") and written.logical != "decimal":
        if pt.is_string(wanted):
            return text
        if pt.is_binary(wanted):
            return lambda cursor: cursor.take(cursor.long())
    return None


def _record_reader(written: AvroType, wanted: pa.StructType) -> Read:
    fields = {each.name: each for each in wanted}
    steps = [
        (name, _reader(part, fields[name]) if name in fields else _skip(part))
        for name, part in zip(written.names, written.parts, strict=True)
    ]
    missing = [name for name in fields if name not in written.names]
    lacking = [name for name in missing if not fields[name].nullable]

    def read(cursor: Cursor) -> dict[str, Any]:
        if lacking:
            msg = "the message has no such field, and the column is NOT NULL"
            raise UnfitError(msg, lacking[0])
        row: dict[str, Any] = dict.fromkeys(missing)
        for name, step in steps:
            try:
                value = step(cursor)
            except UnfitError as error:
                raise UnfitError(error.reason, f"{name}.{error.field}" if error.field else name) from error
            if name in fields:
                row[name] = value
        return row

    return read


def _number_reader(written: AvroType, field: pa.Field) -> Read | None:
    wanted, logical = field.type, written.logical
    if pt.is_timestamp(wanted):
        if written.kind != "long" or logical not in {"", *_UNITS}:
            return None
        unit = _UNITS.get(logical) or unit_of(field)
        return lambda cursor: _in_range(cursor.long() * unit, 64)
    if pt.is_time(wanted):
        size = _TIMES.get(logical)
        return None if size is None else lambda cursor: time(cursor, size)
    if logical not in _NO_LOGICAL and not pt.is_int64(wanted) and not pt.is_int32(wanted):
        return None
    if pt.is_date(wanted):
        return (lambda cursor: _in_range(cursor.long(), 32)) if written.kind == "int" else None
    if pt.is_integer(wanted) and (written.kind == "int" or pt.is_int64(wanted)):
        return lambda cursor: _in_range(cursor.long(), wanted.bit_width)
    if pt.is_floating(wanted):
        return lambda cursor: float(cursor.long())
    return None


def _in_range(number: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        msg = f"{number} does not fit the column"
        raise UnfitError(msg)
    return number


def _symbol(cursor: Cursor, symbols: tuple[str, ...]) -> str:
    number = cursor.long()
    if not 0 <= number < len(symbols):
        msg = f"the enum has {len(symbols)} symbols, got {number}"
        raise UnfitError(msg)
    return symbols[number]


def _decimal(cursor: Cursor, size: int | None, scale: int, wanted: pa.DataType) -> Decimal:
    data = cursor.take(cursor.long() if size is None else size)
    number = int.from_bytes(data, "big", signed=True)
    shift = wanted.scale - scale
    unscaled, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    if rest or abs(unscaled) >= 10**wanted.precision:
        msg = f"a decimal of {len(data)} bytes and scale {scale} that does not fit {wanted}"
        raise UnfitError(msg)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -wanted.scale))


def _skip(written: AvroType) -> Read:
    """Return what reads over a value of a type, which may be recursive."""
    sizes = {"null": 0, "boolean": 1, "float": _FLOAT.size, "double": _DOUBLE.size, "fixed": written.size}
    if written.kind in sizes:
        return lambda cursor: cursor.take(sizes[written.kind])
    if written.kind in ("int", "long", "enum"):
        return Cursor.long
    if written.kind in ("bytes", "string"):
        return lambda cursor: cursor.take(cursor.long())

    # Parts are prepared when they are met: a record may have itself as a part.
    def skip(cursor: Cursor) -> None:
        if written.kind == "record":
            for part in written.parts:
                _skip(part)(cursor)
        elif written.kind == "union":
            _branch(cursor, [_skip(part) for part in written.parts])
        elif written.kind == "array":
            items(cursor, _skip(written.parts[0]))
        else:
            items(cursor, lambda c: (text(c), _skip(written.parts[0])(c)))

    return skip

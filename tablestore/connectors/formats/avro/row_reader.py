"""Decodes one Avro payload at a time: the reference for bulk decoding, and the fallback for payloads it leaves out.

Payloads may have another schema than the table's. By the rules of Avro, fields are matched by name; a number may be
read as a wider one, a text as bytes and the other way round. A field that only the table has is NULL, one that only the
payload has is skipped. The reader checks that each union branch exists, each text is UTF-8, each number fits its
column, and no bytes follow the last field.

Not fastavro's reader: it takes an integer of more than 64 bits for another number, the union branch -1 for the last one
and the boolean 2 for true, so it would make rows of damaged payloads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from tablestore.connectors.formats.avro.schema import MILLI, unit_of
from tablestore.connectors.formats.avro.writer_schema import AvroType
from tablestore.connectors.formats.types import DAY_NANOS
from tablestore.connectors.formats.values import UnfitError

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_UNITS: Final = {
    f"{local}timestamp-{unit}": size for local in ("", "local-") for unit, size in (("millis", 1000), ("micros", 1))
}
_TIMES: Final = {"time-millis": MILLI, "time-micros": MILLI // 1000}
_NO_LOGICAL: Final = ("", "date")
_NOT_NULL: Final = "must not be NULL; declare the column without NOT NULL"


class Cursor:
    """A read position in a payload."""

    def __init__(self, data: bytes) -> None:
        """Start at the first byte of ``data``."""
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """Read exactly ``count`` bytes; raise ``UnfitError`` if fewer are left."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            msg = f"{count} bytes are needed at byte {self.at}, {len(self.data) - self.at} are left"
            raise UnfitError(msg)
        self.at, start = end, self.at
        return self.data[start:end]

    def long(self) -> int:
        """Read a variable-length integer."""
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                msg = f"an integer of more than ten bytes before byte {self.at}"
                raise UnfitError(msg)
        if number >> 64:
            msg = f"an integer of more than 64 bits before byte {self.at}"
            raise UnfitError(msg)
        return (number >> 1) ^ -(number & 1)


Read = Callable[[Cursor], Any]


class AvroRowReader:
    """Decodes payloads of one schema to rows of the same or another one."""

    def __init__(self, written: AvroType, fields: list[pa.Field], *, hint: str = "") -> None:
        """Prepare the reader.

        Args:
            written: the schema of the payloads.
            fields: the fields of a row.
            hint: added to the message about a payload that may have another schema.
        """
        self._hint = hint
        self._read = self._reader(written, pa.field("", pa.struct(fields)))

    def read(self, payload: bytes) -> dict[str, Any] | None:
        """Decode one payload; None if it is null.

        Raises:
            UnfitError: the payload is invalid, or has a value that a column cannot hold.
        """
        cursor = Cursor(payload)
        row: dict[str, Any] | None = self._read(cursor)
        if cursor.at != len(payload):
            msg = f"{len(payload) - cursor.at} bytes follow the last field{self._hint}"
            raise UnfitError(msg)
        return row

    def _reader(self, written: AvroType, field: pa.Field) -> Read:
        """Return what reads a value of a type for a field; what does not fit fails when it is read."""
        if written.kind == "union":
            branches = [self._reader(each, field) for each in written.parts]
            return lambda cursor: _branch(cursor, branches, self._hint)
        if written.kind == "null":
            return (lambda _: None) if field.nullable else _failing(_NOT_NULL)
        read = self._value_reader(written, field)
        if read is not None:
            return read
        logical = f" ({written.logical})" if written.logical else ""
        return _failing(
            f"the message has the type {written.kind}{logical}, which a column of type {field.type} cannot hold"
        )

    def _value_reader(self, written: AvroType, field: pa.Field) -> Read | None:
        kind, wanted = written.kind, field.type
        if kind == "record" and pt.is_struct(wanted):
            return self._record_reader(written, wanted)
        if kind == "array" and pt.is_list(wanted):
            element = self._reader(written.parts[0], wanted.value_field)
            return lambda cursor: _items(cursor, element)
        if kind == "map" and pt.is_map(wanted):
            value = self._reader(written.parts[0], wanted.item_field)
            return lambda cursor: list(dict(_items(cursor, lambda c: (_text(c), value(c)))).items())
        if kind in ("int", "long"):
            return _number_reader(written, field)
        if kind in ("float", "double") and (pt.is_float64(wanted) or (kind == "float" and pt.is_float32(wanted))):
            form = _FLOAT if kind == "float" else _DOUBLE
            return lambda cursor: form.unpack(cursor.take(form.size))[0]
        if kind == "boolean" and pt.is_boolean(wanted):
            return _boolean
        return _bytes_reader(written, wanted)

    def _record_reader(self, written: AvroType, wanted: pa.StructType) -> Read:
        fields = {each.name: each for each in wanted}
        steps = [
            (name, self._reader(part, fields[name]) if name in fields else _skip(part))
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


def _items(cursor: Cursor, read: Read) -> list[Any]:
    """Read the items of an array or a map."""
    found: list[Any] = []
    while count := cursor.long():
        if count < 0:
            # A negative count is followed by the block's size in bytes, which lets readers skip the block.
            count = -count
            cursor.long()
        if count > len(cursor.data) - cursor.at:
            msg = f"{count} items are announced, {len(cursor.data) - cursor.at} bytes are left"
            raise UnfitError(msg)
        found += [read(cursor) for _ in range(count)]
    return found


def _text(cursor: Cursor) -> str:
    """Read a text."""
    data = cursor.take(cursor.long())
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = "a text that is not UTF-8"
        raise UnfitError(msg) from error


def _boolean(cursor: Cursor) -> bool:
    """Read a boolean."""
    (byte,) = cursor.take(1)
    if byte > 1:
        msg = f"a boolean is 0 or 1, got {byte}"
        raise UnfitError(msg)
    return byte == 1


def _time(cursor: Cursor, unit: int) -> int:
    """Read a time of day in units of so many nanoseconds, as nanoseconds."""
    number = cursor.long()
    if not 0 <= number * unit < DAY_NANOS:
        msg = f"{number} is not a time of day"
        raise UnfitError(msg)
    return number * unit


def _failing(reason: str) -> Read:
    def fail(_: Cursor) -> Any:
        raise UnfitError(reason)

    return fail


def _branch(cursor: Cursor, branches: list[Read], hint: str = "") -> Any:
    number = cursor.long()
    if not 0 <= number < len(branches):
        many = f"the union has {len(branches)} branches"
        msg = f"{'null or a value is marked by 0 or 1' if len(branches) == 2 else many}, got {number}{hint}"
        raise UnfitError(msg)
    return branches[number](cursor)


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
            return _text
        if pt.is_binary(wanted):
            return lambda cursor: cursor.take(cursor.long())
    return None


def _number_reader(written: AvroType, field: pa.Field) -> Read | None:
    wanted, logical = field.type, written.logical
    if pt.is_timestamp(wanted):
        if written.kind != "long" or logical not in {"", *_UNITS}:
            return None
        unit = _UNITS.get(logical) or unit_of(field)
        return lambda cursor: _number(cursor, 64, unit)
    if pt.is_time(wanted):
        size = _TIMES.get(logical)
        return None if size is None else lambda cursor: _time(cursor, size)
    if logical not in _NO_LOGICAL and not pt.is_int64(wanted) and not pt.is_int32(wanted):
        return None
    if pt.is_date(wanted):
        return (lambda cursor: _number(cursor, 32)) if written.kind == "int" else None
    if pt.is_integer(wanted) and (written.kind == "int" or pt.is_int64(wanted)):
        return lambda cursor: _number(cursor, wanted.bit_width)
    if pt.is_floating(wanted):
        return lambda cursor: float(cursor.long())
    return None


def _number(cursor: Cursor, bits: int, unit: int = 1) -> int:
    number = cursor.long()
    if not -(1 << (bits - 1)) <= number * unit < 1 << (bits - 1):
        msg = f"{number} does not fit the column"
        raise UnfitError(msg)
    return number * unit


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
    if not data or rest or abs(unscaled) >= 10**wanted.precision:
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
            _items(cursor, _skip(written.parts[0]))
        else:
            _items(cursor, lambda c: (_text(c), _skip(written.parts[0])(c)))

    return skip

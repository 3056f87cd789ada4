"""Decodes one Avro payload at a time: the reference for bulk decoding, and the fallback for payloads it leaves out.

A payload is a bare record without a header, so it does not identify its schema. The reader checks what it can: each
union branch exists, each text is UTF-8, each number fits its column, and no bytes follow the last field.

Not fastavro's reader: it takes an integer of more than 64 bits for another number, the union branch -1 for the last one
and the boolean 2 for true, so it would make rows of damaged payloads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tablestore.connectors.formats.avro.schema import MILLI, unit_of
from tablestore.connectors.formats.types import DAY_NANOS
from tablestore.connectors.formats.values import UnfitError


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
    """Decodes payloads one at a time."""

    def __init__(self, fields: list[pa.Field]) -> None:
        """Prepare the reader for the fields of a row."""
        self._fields = [(field.name, _nullable(field)) for field in fields]

    def read(self, payload: bytes) -> dict[str, Any]:
        """Decode one payload.

        Raises:
            UnfitError: the payload is invalid.
        """
        cursor = Cursor(payload)
        row = {}
        for name, read in self._fields:
            try:
                row[name] = read(cursor)
            except UnfitError as error:
                raise UnfitError(error.reason, name) from error
        if cursor.at != len(payload):
            msg = f"{len(payload) - cursor.at} bytes follow the last field; was it written with another schema?"
            raise UnfitError(msg)
        return row


def _nullable(field: pa.Field) -> Read:
    read = _reader(field)
    if not field.nullable:
        return read

    def run(cursor: Cursor) -> Any:
        branch = cursor.long()
        if branch not in (0, 1):
            msg = f"null or a value is marked by 0 or 1, got {branch}; was it written with another schema?"
            raise UnfitError(msg)
        return read(cursor) if branch else None

    return run


def _reader(field: pa.Field) -> Read:
    data_type = field.type
    if pt.is_struct(data_type):
        fields = [(inner.name, _nullable(inner)) for inner in data_type]
        return lambda cursor: {name: read(cursor) for name, read in fields}
    if pt.is_list(data_type):
        element = _nullable(data_type.value_field)
        return lambda cursor: items(cursor, element)
    if pt.is_map(data_type):
        item = _nullable(data_type.item_field)
        # The last one of duplicate keys wins, as in a Java map.
        return lambda cursor: list(dict(items(cursor, lambda c: (text(c), item(c)))).items())
    if pt.is_string(data_type):
        return text
    if pt.is_binary(data_type):
        return lambda cursor: cursor.take(cursor.long())
    if pt.is_decimal(data_type):
        return lambda cursor: _decimal(cursor, data_type.precision, data_type.scale)
    if pt.is_floating(data_type):
        form = struct.Struct("<f" if pt.is_float32(data_type) else "<d")
        return lambda cursor: form.unpack(cursor.take(form.size))[0]
    if pt.is_boolean(data_type):
        return boolean
    if pt.is_timestamp(data_type):
        unit = unit_of(field)
        return lambda cursor: _number(cursor, 64, unit)
    width = data_type.bit_width
    return (lambda cursor: time(cursor, MILLI)) if pt.is_time(data_type) else (lambda cursor: _number(cursor, width, 1))


def items(cursor: Cursor, read: Read) -> list[Any]:
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


def text(cursor: Cursor) -> str:
    """Read a text."""
    data = cursor.take(cursor.long())
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = "a text that is not UTF-8"
        raise UnfitError(msg) from error


def boolean(cursor: Cursor) -> bool:
    """Read a boolean."""
    (byte,) = cursor.take(1)
    if byte > 1:
        msg = f"a boolean is 0 or 1, got {byte}"
        raise UnfitError(msg)
    return byte == 1


def time(cursor: Cursor, unit: int) -> int:
    """Read a time of day in units of so many nanoseconds, as nanoseconds."""
    number = cursor.long()
    if not 0 <= number * unit < DAY_NANOS:
        msg = f"{number} is not a time of day"
        raise UnfitError(msg)
    return number * unit


def _number(cursor: Cursor, bits: int, unit: int) -> int:
    number = cursor.long()
    if not -(1 << (bits - 1)) <= number * unit < 1 << (bits - 1):
        msg = f"{number} does not fit the column"
        raise UnfitError(msg)
    return number * unit


def _decimal(cursor: Cursor, precision: int, scale: int) -> Decimal:
    data = cursor.take(cursor.long())
    number = int.from_bytes(data, "big", signed=True) if 0 < len(data) <= 1000 else 10**precision
    if abs(number) >= 10**precision:
        msg = f"a decimal of {len(data)} bytes that does not fit decimal({precision},{scale})"
        raise UnfitError(msg)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))

"""Encodes rows to Avro's binary encoding, a whole column at a time; the encoded columns are then joined row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.changes_schema import map_pairs
from tablestore.connectors.formats.avro.schema import MILLI, unit_of

_NULL, _THERE = b"\x00", b"\x02"
"""The encoded branch indexes of a union with null first: 0 (null) and 1 (value), as Avro integers."""


def encode_row(columns: list[pa.Array], fields: list[pa.Field], rows: int) -> pa.Array:
    """Encode rows; an Avro record is the concatenation of its fields."""
    parts = [part for column, field in zip(columns, fields, strict=True) for part in _pieces(column, field)]
    if not parts:
        return pa.array([b""] * rows, pa.binary())
    return pc.binary_join_element_wise(*parts, b"") if len(parts) > 1 else parts[0]


def _pieces(column: pa.Array, field: pa.Field) -> list[pa.Array | bytes]:
    """Encode a column and return parts that the caller joins, because each join costs a copy."""
    if field.nullable and not column.null_count:
        return [_THERE, _encode(column, field)]
    return [_encode_field(column, field)]


def _encode_field(column: pa.Array, field: pa.Field) -> pa.Array:
    """Encode a column; a nullable column is encoded as a union."""
    if not field.nullable:
        return _encode(column, field)
    if not column.null_count:
        return pc.binary_join_element_wise(_THERE, _encode(column, field), b"")
    there = column.is_valid()
    values = _encode(column.filter(there), field)
    whole = pc.binary_join_element_wise(_THERE, values, b"")
    index = pc.if_else(there, pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1), pa.scalar(None, pa.int64()))
    return pc.fill_null(whole.take(index), _NULL)


def _same(piece: bytes, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(piece, pa.binary()), count)


def _encode(column: pa.Array, field: pa.Field) -> pa.Array:
    """Encode a column without NULL."""
    data_type = field.type
    if pt.is_struct(data_type):
        return encode_row(column.flatten(), list(data_type), len(column))
    if pt.is_list(data_type):
        return _blocks(column, _encode_field(column.flatten(), data_type.value_field))
    if pt.is_map(data_type):
        pairs = map_pairs(column)
        key, value = pairs.flatten()
        keys = _encode(key, data_type.key_field)
        return _blocks(column, pc.binary_join_element_wise(keys, _encode_field(value, data_type.item_field), b""))
    if pt.is_string(data_type) or pt.is_binary(data_type):
        value = column.cast(pa.binary())
        return pc.binary_join_element_wise(_long(_numbers(pc.binary_length(value))), value, b"")
    if pt.is_decimal(data_type):
        value = _decimal(column)
        return pc.binary_join_element_wise(_long(_numbers(pc.binary_length(value))), value, b"")
    if pt.is_floating(data_type):
        numbers = column.to_numpy(zero_copy_only=False)
        return _fixed(np.ascontiguousarray(numbers).view(np.uint8), data_type.bit_width // 8)
    if pt.is_boolean(data_type):
        return _fixed(column.cast(pa.uint8()).to_numpy(zero_copy_only=False), 1)
    if pt.is_timestamp(data_type):
        # Floor division rounds down, like Java's toEpochMilli.
        return _long(_numbers(column.view(pa.int64())) // unit_of(field))
    if pt.is_time(data_type):
        return _long(_numbers(column.view(pa.int64())) // MILLI)
    return _long(_numbers(column.view(pa.int32()) if pt.is_date(data_type) else column))


def _numbers(column: pa.Array) -> np.ndarray:
    result: np.ndarray = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return result


def _blocks(column: pa.Array, items: pa.Array) -> pa.Array:
    """Join encoded items to arrays or maps: one block with its count, if there are items, and the end marker 0."""
    if pt.is_map(column.type):
        counts = np.diff(column.offsets.to_numpy()).astype(np.int64)
    else:
        counts = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), b"")
    head = pc.if_else(pa.array(counts > 0), _long(counts), pa.scalar(b"", pa.binary()))
    return pc.binary_join_element_wise(head, joined, _same(_NULL, len(column)), b"")


def _fixed(data: np.ndarray, width: int) -> pa.Array:
    count = len(data) // width
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _long(numbers: np.ndarray) -> pa.Array:
    """Encode integers as zigzag varints: seven bits per byte, low bits first."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths = np.ones(len(numbers), np.int32)
    for bits in range(7, 64, 7):
        more = zigzag >> np.uint64(bits) != 0
        if not more.any():
            break
        lengths += more
    width = int(lengths.max(initial=1))
    grid = np.empty((len(numbers), width), np.uint8)
    for byte in range(width):
        grid[:, byte] = (zigzag >> np.uint64(7 * byte)).astype(np.uint8) & 0x7F
        grid[:, byte] |= np.where(lengths > byte + 1, 0x80, 0).astype(np.uint8)
    data = grid[np.arange(width) < lengths[:, None]]
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _decimal(column: pa.Array) -> pa.Array:
    """Return unscaled values like Java's ``BigInteger.toByteArray``: big-endian two's complement of minimal length."""
    # Copy the column so that its buffer has no offset; each value is 16 little-endian bytes.
    fresh = column.take(pa.array(np.arange(len(column))))
    grid = np.frombuffer(fresh.buffers()[1], np.uint8)[: 16 * len(fresh)].reshape(-1, 16)[:, ::-1]
    sign = np.where(grid[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    meaningful = grid != sign
    first = np.where(meaningful.any(axis=1), meaningful.argmax(axis=1), 15)
    # The sign bit of the first byte kept must match the sign.
    shows = (grid[np.arange(len(grid)), first] >= 0x80) == (sign[:, 0] == 0xFF)
    first -= np.where(shows, 0, 1)
    keep = np.arange(16) >= first[:, None]
    offsets = np.zeros(len(grid) + 1, np.int32)
    np.cumsum(16 - first, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(grid), [None, pa.py_buffer(offsets), pa.py_buffer(grid[keep])])

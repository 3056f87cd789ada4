"""Bulk decoder of Avro payloads with numpy: each step reads the same field of all payloads.

No library decodes Avro in bulk safely: the fastest one panics on types it does not support. Any payload that is not
straightforward to decode is left out, for ``row_reader`` to decode or reject.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tablestore.connectors.formats.avro.schema import MILLI, unit_of
from tablestore.connectors.formats.bulk_decode import is_utf8
from tablestore.connectors.formats.column_texts import bounds_and_bytes
from tablestore.connectors.formats.types import DAY_NANOS

_PAD = 32
"""Zero bytes appended to the data, so that no fixed-width read goes beyond the buffer."""

_ELEMENTS_MAX = 1000
"""Longer arrays are left out, because each element position costs one step."""


class _Cursors:
    """Read positions in many payloads that are stored in one buffer.

    Positions only increase. A read beyond a payload's end returns bytes of the next payload, but the position then
    stays beyond the end. So a payload whose position is not exactly at its end after the last field is not a valid row.

    Attributes:
        data: the bytes of all payloads.
        at: the read position of each payload.
        plain: whether each payload is still being decoded; False once it is left out.
    """

    def __init__(self, data: np.ndarray, start: np.ndarray, size: int) -> None:
        self.data, self.at = data, start
        self.plain = np.ones(len(start), bool)
        self._beyond = size + 1

    def place(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return a copy of the positions of some payloads."""
        return np.array(self.at[rows])

    def numbers(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the indexes of some payloads."""
        return np.arange(len(self.at))[rows] if isinstance(rows, slice) else rows

    def inside(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return a mask of some payloads: True if not left out and not beyond the end of all data."""
        result: np.ndarray = self.plain[rows] & (self.at[rows] < self._beyond)
        return result

    def byte(self, rows: np.ndarray | slice) -> np.ndarray:
        """Read one byte of some payloads."""
        result: np.ndarray = self.data[self.at[rows]]
        self.skip(rows, 1)
        return result

    def skip(self, rows: np.ndarray | slice, count: np.ndarray | int) -> None:
        """Advance the positions of some payloads."""
        self.at[rows] = np.minimum(self.at[rows] + count, self._beyond)

    def doubt(self, rows: np.ndarray | slice, doubtful: np.ndarray) -> None:
        """Mark some payloads as left out."""
        if doubtful.any():
            self.plain[rows] &= ~doubtful

    def long(self, rows: np.ndarray | slice) -> np.ndarray:
        """Read one variable-length integer of some payloads."""
        byte = self.byte(rows)
        number = (byte & 0x7F).astype(np.uint64)
        which = np.flatnonzero(byte >= 0x80)
        numbers = self.numbers(rows) if len(which) else None
        shift = 7
        while len(which) and numbers is not None:
            byte = self.byte(numbers[which])
            # The tenth byte can contribute only one bit.
            if shift == 63:
                self.doubt(numbers[which], byte > 1)
            number[which] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            which = which[byte >= 0x80] if shift < 63 else which[:0]
            shift += 7
        return (number >> np.uint64(1)).astype(np.int64) ^ -(number & np.uint64(1)).astype(np.int64)

    def fixed(self, rows: np.ndarray | slice, width: int) -> np.ndarray:
        """Read ``width`` bytes of some payloads."""
        start = self.place(rows)
        self.skip(rows, width)
        return self.data[start[:, None] + np.arange(width)]


def read(payloads: pa.Array, field: pa.Field) -> tuple[pa.Array, np.ndarray]:
    """Decode payloads (large_binary, none NULL or empty), without doubtful ones, to values and their positions."""
    bounds, data = bounds_and_bytes(payloads)
    size = int(bounds[-1] - bounds[0])
    padded = np.zeros(size + _PAD, np.uint8)
    padded[:size] = data[bounds[0] : bounds[-1]]
    ends = bounds - bounds[0]
    cursors = _Cursors(padded, ends[:-1].copy(), size)
    values = _field(cursors, slice(None), field)
    cursors.doubt(slice(None), cursors.at != ends[1:])
    return values if cursors.plain.all() else values.filter(pa.array(cursors.plain)), np.flatnonzero(cursors.plain)


def _field(cursors: _Cursors, rows: np.ndarray | slice, field: pa.Field) -> pa.Array:
    """Read a field of some payloads; a nullable field is a union with null first."""
    if not field.nullable:
        return _values(cursors, rows, field)
    branch = cursors.byte(rows)
    cursors.doubt(rows, (branch != 0) & (branch != 2))
    there = branch == 2
    if there.all():
        return _values(cursors, rows, field)
    values = _values(cursors, cursors.numbers(rows)[there], field)
    index = np.cumsum(there) - 1
    return values.take(pa.array(np.maximum(index, 0), mask=~there))


def _list(cursors: _Cursors, rows: np.ndarray, data_type: pa.DataType) -> pa.Array:
    """Read arrays that consist of one block: the first elements of all arrays, then the second ones, and so on."""
    counts = cursors.long(rows)
    # Each element takes at least one byte.
    odd = (counts < 0) | (counts > np.minimum(len(cursors.data) - cursors.at[rows], _ELEMENTS_MAX))
    cursors.doubt(rows, odd)
    counts[odd] = 0
    offsets = np.concatenate(([0], np.cumsum(counts)))
    parts, places = [], []
    for number in range(int(counts.max(initial=0))):
        which = np.flatnonzero(counts > number)
        parts.append(_field(cursors, rows[which], data_type.value_field))
        places.append(offsets[which] + number)
    end = cursors.byte(rows[counts > 0])
    cursors.doubt(rows[counts > 0], end != 0)
    values = pa.concat_arrays(parts) if parts else pa.nulls(0, data_type.value_type)
    if places:
        values = values.take(pa.array(np.argsort(np.concatenate(places))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=data_type)


def _values(cursors: _Cursors, rows: np.ndarray | slice, field: pa.Field) -> pa.Array:
    """Read a non-null value of some payloads."""
    data_type = field.type
    if pt.is_struct(data_type):
        children = [_field(cursors, rows, inner) for inner in data_type]
        return pa.StructArray.from_arrays(children, fields=list(data_type))
    if pt.is_list(data_type):
        return _list(cursors, cursors.numbers(rows), data_type)
    if pt.is_string(data_type) or pt.is_binary(data_type):
        return _bytes(cursors, rows, data_type)
    if pt.is_decimal(data_type):
        return _decimals(cursors, rows, data_type)
    if pt.is_floating(data_type):
        width = data_type.bit_width // 8
        return pa.array(cursors.fixed(rows, width).view(f"<f{width}").ravel(), from_pandas=False)
    if pt.is_boolean(data_type):
        byte = cursors.byte(rows)
        cursors.doubt(rows, byte > 1)
        return pa.array(byte == 1)
    numbers = cursors.long(rows)
    if pt.is_timestamp(data_type):
        unit = unit_of(field)
        limit = (2**63 - 1) // unit
        cursors.doubt(rows, (numbers > limit) | (numbers < -limit))
        return pa.array(numbers * unit if unit > 1 else numbers).view(data_type)
    if pt.is_time(data_type):
        is_time = (numbers >= 0) & (numbers < DAY_NANOS // MILLI)
        cursors.doubt(rows, ~is_time)
        return pa.array(np.where(is_time, numbers, 0) * MILLI).view(data_type)
    if data_type.bit_width < 64:
        limit = 1 << (data_type.bit_width - 1)
        cursors.doubt(rows, (numbers >= limit) | (numbers < -limit))
        numbers = numbers.astype(f"i{data_type.bit_width // 8}")
    return pa.array(numbers).view(data_type)


def _lengths(cursors: _Cursors, rows: np.ndarray | slice) -> np.ndarray:
    lengths = cursors.long(rows)
    negative = lengths < 0
    cursors.doubt(rows, negative)
    if negative.any():
        lengths[negative] = 0
    # Limit lengths to the size of the data, so that adding one to a position cannot overflow.
    result: np.ndarray = np.minimum(lengths, len(cursors.data))
    return result


def _bytes(cursors: _Cursors, rows: np.ndarray | slice, data_type: pa.DataType) -> pa.Array:
    lengths = _lengths(cursors, rows)
    start = cursors.place(rows)
    cursors.skip(rows, lengths)
    size = len(cursors.data)
    # Build an array over the whole buffer in which every second element is a value; take() copies only the values.
    offsets = np.empty(2 * len(start) + 1, np.int64)
    offsets[:-1:2] = start
    offsets[1::2] = np.minimum(start + lengths, size)
    offsets[-1] = size
    all_of_it = pa.Array.from_buffers(
        pa.large_binary(), 2 * len(start), [None, pa.py_buffer(offsets), pa.py_buffer(cursors.data)]
    )
    # Mask payloads that are left out: their values may extend into other payloads, and the total size could then exceed
    # 32-bit offsets.
    values = all_of_it.take(pa.array(np.arange(len(start)) * 2, mask=~cursors.inside(rows))).cast(pa.binary())
    if pt.is_binary(data_type):
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        valid = np.array([is_utf8(value or b"") for value in values.to_pylist()])
        cursors.doubt(rows, ~valid)
        return pa.array([v if ok else None for v, ok in zip(values.to_pylist(), valid, strict=True)], pa.binary()).cast(
            pa.string()
        )


def _decimals(cursors: _Cursors, rows: np.ndarray | slice, data_type: pa.DataType) -> pa.Array:
    """Read decimals: convert big-endian unscaled values of variable length to Arrow's 16 little-endian bytes."""
    lengths = _lengths(cursors, rows)
    cursors.doubt(rows, (lengths < 1) | (lengths > 16))
    lengths = np.clip(lengths, 1, 16)
    start = cursors.place(rows)
    cursors.skip(rows, lengths)
    width = int(lengths.max(initial=1))
    back = np.arange(width)
    grid = cursors.data[np.maximum(start[:, None] + (lengths[:, None] - 1 - back), 0)]
    sign = np.where(cursors.data[start] >= 0x80, 0xFF, 0).astype(np.uint8)
    number = np.empty((len(start), 16), np.uint8)
    number[:] = sign[:, None]
    number[:, :width] = np.where(back < lengths[:, None], grid, sign[:, None])
    parts = number.view("<u8")
    low, high = parts[:, 0], parts[:, 1].view(np.int64)
    limit = 10**data_type.precision
    limit_low, limit_high = np.uint64(limit & (2**64 - 1)), np.int64(limit >> 64)
    least_low, least_high = np.uint64(-limit & (2**64 - 1)), np.int64(-limit >> 64)
    below = (high < limit_high) | ((high == limit_high) & (low < limit_low))
    above = (high > least_high) | ((high == least_high) & (low > least_low))
    cursors.doubt(rows, ~(below & above))
    number[~(below & above)] = 0
    return pa.Array.from_buffers(data_type, len(number), [None, pa.py_buffer(number)])

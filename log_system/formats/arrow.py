"""The ``arrow`` format: many changes per record, for this program's own readers; many times faster than JSON.

A record's key is null. Its value is a compressed Arrow IPC stream, which any Arrow library can open, followed by a
footer of eight bytes: ``TSA1`` and the CRC-32 of the stream, big-endian. Compressed Arrow has no checksum of its own,
so without the CRC a flipped bit could silently change a number.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from log_system.formats.base import DecodedChanges, EncodedRecords, Format, Payloads, as_binary
from log_system.formats.changes_schema import check_changes, check_columns, layout, relabel
from snapshot.errors import BadRecordError, InvalidInputError
from snapshot.row_kind import KIND, TRUNCATE
from snapshot.schema.adapter import fitted
from snapshot.schema.system_columns import with_kind

_FOOTER = struct.Struct(">4sI")
_MAGIC = b"TSA1"
_FIRST_GUESS_ROWS_MAX = 1 << 16
"""Most rows in a batch's first record, while the compression ratio is unknown."""


class ArrowFormat:
    """The ``arrow`` format. It preserves all four row kinds."""

    name = "arrow"

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        max_record_bytes: int = 900_000,
        mixed: bool = False,
    ) -> None:
        """Create the format for a table.

        Args:
            schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
            primary_key: the primary key columns; only checked, because records of this format have no key.
            max_record_bytes: the most bytes of a record's value. A single larger row still becomes one record;
                Kafka's own limits (``max.request.size``, ``message.max.bytes``) decide whether it is accepted.
            mixed: records may have been written before integers were widened and fields of structs moved.

        Raises:
            InvalidInputError: a column has a type that a table cannot hold, a key column does not exist, or an option
                is invalid.
        """
        check_columns(schema, primary_key)
        if max_record_bytes < 1:
            msg = f"max_record_bytes of log.format='arrow' must be at least 1, got {max_record_bytes}"
            raise InvalidInputError(msg)
        self._changes = with_kind(schema)
        self._record_bytes_max = max_record_bytes
        self._mixed = mixed

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Encode changes as few records that each fit the size limit.

        Raises:
            InvalidInputError: the batch's columns differ from the table's, or it has an unknown row kind.
        """
        check_changes(changes, self._changes, TRUNCATE)
        changes = relabel(changes, self._changes)
        values: list[bytes] = []
        rows: list[int] = []
        start, guess = 0, self._first_guess(changes)
        while start < len(changes):
            count = min(guess, len(changes) - start)
            value = self._write(changes.slice(start, count))
            if len(value) > self._record_bytes_max and count > 1:
                guess = max(1, count // 2)
                continue
            values.append(value)
            rows.append(count)
            start += count
            # Keep a margin of a tenth: the next rows may compress less well, and an oversized record is wasted work.
            guess = max(1, min(count * 4, int(count * 0.9 * self._record_bytes_max / len(value))))
        nothing = pa.nulls(len(values), pa.large_binary())
        return EncodedRecords(nothing, pa.array(values, pa.large_binary()), np.array(rows, np.int64))

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Decode records into changes. Columns that a record lacks are NULL; columns that the table lacks are dropped.

        Raises:
            BadRecordError: a record is damaged, or a column has another type than in the table.
        """
        batches: list[pa.RecordBatch] = []
        record: list[int] = []
        for number, value in enumerate(map(pa.LargeBinaryScalar.as_buffer, as_binary(values))):
            try:
                read = self._read(value)
            except (pa.ArrowException, ValueError, OSError) as error:
                raise BadRecordError(number, str(error)) from error
            batches += read
            record += [number] * len(read)
        if not batches:
            return DecodedChanges(pa.RecordBatch.from_pylist([], schema=self._changes), np.zeros(0, np.int64))
        positions = np.repeat(np.array(record, np.int64), [len(batch) for batch in batches])
        return DecodedChanges(batches[0] if len(batches) == 1 else pa.concat_batches(batches), positions)

    def _first_guess(self, changes: pa.RecordBatch) -> int:
        row_bytes = max(1.0, changes.nbytes / max(1, len(changes)))
        return max(1, min(_FIRST_GUESS_ROWS_MAX, int(self._record_bytes_max / row_bytes)))

    def _write(self, changes: pa.RecordBatch) -> bytes:
        sink = pa.BufferOutputStream()
        with ipc.new_stream(
            sink, changes.schema, options=ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        ) as writer:
            writer.write_batch(changes)
        stream = sink.getvalue()
        return b"".join((stream, _FOOTER.pack(_MAGIC, zlib.crc32(stream))))

    def _read(self, value: pa.Buffer | None) -> list[pa.RecordBatch]:
        """Return the batches of one record.

        Raises:
            ValueError: the record is damaged or does not match the table; pyarrow's own errors pass through.
        """
        if value is None or value.size < _FOOTER.size:
            msg = "not a record of log.format='arrow': " + ("null" if value is None else f"{value.size} bytes")
            raise ValueError(msg)
        stream = value.slice(0, value.size - _FOOTER.size)
        magic, checksum = _FOOTER.unpack_from(value, stream.size)
        if magic != _MAGIC or checksum != zlib.crc32(stream):
            msg = "damaged, or not a record of log.format='arrow': the checksum at its end is wrong"
            raise ValueError(msg)
        with ipc.open_stream(stream, options=ipc.IpcReadOptions(use_threads=False)) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        return [self._fit(batch) for batch in batches]

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a record's batch with the table's columns."""
        if batch.schema == self._changes:
            return batch
        columns = []
        for field in self._changes:
            position = batch.schema.get_field_index(field.name)
            if position < 0 and (not field.nullable or field.name == KIND):
                msg = f"column {field.name!r} is missing and must not be NULL"
                raise ValueError(msg)
            columns.append(pa.nulls(len(batch), field.type) if position < 0 else batch.column(position))
            if self._mixed and _is_earlier(columns[-1].type, field.type):
                columns[-1] = fitted(columns[-1], field.type, field.name)
            if layout(columns[-1].type) != layout(field.type):
                msg = f"column {field.name!r} must be of type {field.type}, the record has {columns[-1].type}"
                raise ValueError(msg)
        return relabel(pa.RecordBatch.from_arrays(columns, names=self._changes.names), self._changes)


def _is_earlier(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column may have had a type before integers were widened and fields of structs moved."""
    types = pa.types
    if types.is_struct(given) and types.is_struct(wanted):
        fields = {field.name: field.type for field in given}
        is_same = len(fields) == given.num_fields == wanted.num_fields
        return is_same and all(f.name in fields and _is_earlier(fields[f.name], f.type) for f in wanted)
    if types.is_signed_integer(given) and types.is_signed_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if given.num_fields and given.id == wanted.id:
        return all(_is_earlier(given.field(i).type, wanted.field(i).type) for i in range(given.num_fields))
    return bool(given == wanted)


FORMAT = Format(
    name="arrow",
    open=lambda schema, primary_key, settings: ArrowFormat(
        schema, primary_key, max_record_bytes=settings.max_record_bytes, mixed=settings.mixed
    ),
    packs_rows=True,
    why_not_compacted="'arrow' puts many rows into a record",
)

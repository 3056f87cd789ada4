"""The ``arrow`` format: one record a batch of changes, for this program's own readers; many times faster than JSON.

A record's key is null and its value is an Arrow IPC stream (compressed; any Arrow library opens it) followed by a
footer of eight bytes: ``TSA1`` and the CRC-32 of the stream, big-endian. Compressed Arrow has no checksum of its own:
without one, a flipped bit could be a wrong number.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from log_system.formats.base import DecodedChanges, EncodedRecords, Payloads, as_binary
from log_system.formats.changes_schema import changes_schema, check_changes, check_columns, layout, relabel
from snapshot.errors import CorruptedError, InvalidInputError
from snapshot.row_kind import KIND, TRUNCATE

_FOOTER = struct.Struct(">4sI")
_MAGIC = b"TSA1"
_FIRST_GUESS_ROWS_MAX = 1 << 16
"""Rows of a batch's first record at most, before anything is known about how well they compress."""


class ArrowFormat:
    """Codes changes as Arrow batches. All four row kinds travel, and come back as they were."""

    name = "arrow"

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        max_record_bytes: int = 900_000,
        mixed: bool = False,
        compression: str = "lz4",
    ) -> None:
        """Prepare to code a table's changes.

        Args:
            schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
            primary_key: the key's columns; only checked, for records of this format have no key.
            max_record_bytes: the most bytes of a record's value. A single row that is larger is one record all the
                same; Kafka's own limits (``max.request.size``, ``message.max.bytes``) decide on that.
            mixed: records may be older than the table's columns, and have narrower whole numbers.
            compression: ``lz4`` or ``zstd``.

        Raises:
            InvalidInputError: a type that a table cannot hold, a key that is not among the columns, or a wrong option.
        """
        check_columns(schema, primary_key)
        if compression not in ("lz4", "zstd"):
            msg = f"the compression of log.format='arrow' must be 'lz4' or 'zstd', got {compression!r}"
            raise InvalidInputError(msg)
        if max_record_bytes < 1:
            msg = f"max_record_bytes of log.format='arrow' must be at least 1, got {max_record_bytes}"
            raise InvalidInputError(msg)
        self._changes = changes_schema(schema)
        self._record_bytes_max = max_record_bytes
        self._mixed = mixed
        self._compression = compression

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Turn changes into as few records as fit the limit.

        Raises:
            InvalidInputError: the batch has other columns than the table, or a row kind that does not exist.
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
            # A tenth is kept back: the next rows may compress less well, and a record too large is work thrown away.
            guess = max(1, min(count * 4, int(count * 0.9 * self._record_bytes_max / len(value))))
        nothing = pa.nulls(len(values), pa.large_binary())
        return EncodedRecords(nothing, pa.array(values, pa.large_binary()), np.array(rows, np.int64))

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Turn records into changes. Columns that a record lacks are NULL; columns the table lacks are dropped.

        Raises:
            CorruptedError: a record that is damaged, or has a column of another type.
        """
        batches: list[pa.RecordBatch] = []
        record: list[int] = []
        for number, value in enumerate(map(pa.LargeBinaryScalar.as_buffer, as_binary(values))):
            try:
                read = self._read(value)
            except (pa.ArrowException, ValueError, OSError) as error:
                msg = f"record {number}: {error}"
                raise CorruptedError(msg) from error
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
            sink, changes.schema, options=ipc.IpcWriteOptions(compression=self._compression, use_threads=False)
        ) as writer:
            writer.write_batch(changes)
        stream = sink.getvalue()
        return b"".join((stream, _FOOTER.pack(_MAGIC, zlib.crc32(stream))))

    def _read(self, value: pa.Buffer | None) -> list[pa.RecordBatch]:
        """Read one record.

        Raises:
            ValueError: it is damaged, or does not fit the table; pyarrow's own errors pass through too.
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
        """Give a record's batch the columns of the table."""
        if batch.schema == self._changes:
            return batch
        columns = []
        for field in self._changes:
            position = batch.schema.get_field_index(field.name)
            if position < 0 and (not field.nullable or field.name == KIND):
                msg = f"column {field.name!r} is missing and must not be NULL"
                raise ValueError(msg)
            columns.append(pa.nulls(len(batch), field.type) if position < 0 else batch.column(position))
            if self._mixed and _is_narrower(columns[-1].type, field.type):
                columns[-1] = columns[-1].cast(field.type)
            if layout(columns[-1].type) != layout(field.type):
                msg = f"column {field.name!r} must be of type {field.type}, the record has {columns[-1].type}"
                raise ValueError(msg)
        return relabel(pa.RecordBatch.from_arrays(columns, names=self._changes.names), self._changes)


def _is_narrower(came: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether a type of whole numbers is one that was widened to another."""
    signed = pa.types.is_signed_integer(came) and pa.types.is_signed_integer(wanted)
    return bool(signed and came.bit_width < wanted.bit_width)

"""The log format interface: encode Arrow batches of changes as Kafka keys and values, and decode them, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Payloads = Any
"""Record keys or values: a binary array, or a sequence of ``bytes | None``, where None is a Kafka null."""


@dataclass(frozen=True)
class EncodedRecords:
    """Kafka records encoded from one batch of changes, in row order.

    Attributes:
        key_column: large_binary, one key per record; NULL means a null key.
        value_column: large_binary, one value per record; NULL means a null value (a tombstone for the key).
        rows: int64, the number of changes in each record; the sum is the number of rows of the batch.
    """

    key_column: pa.Array
    value_column: pa.Array
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.value_column)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The keys as a list, for code that handles records one by one."""
        found: list[bytes | None] = self.key_column.to_pylist()
        return found

    @cached_property
    def values(self) -> list[bytes | None]:
        """The values as a list, for code that handles records one by one."""
        found: list[bytes | None] = self.value_column.to_pylist()
        return found


@dataclass(frozen=True)
class DecodedChanges:
    """Changes decoded from one list of Kafka records.

    Attributes:
        batch: the table's columns in schema order, then ``_kind`` (int8). A delete may have only its key: its other
            columns are then NULL, even those that the schema declares not nullable.
        record: int64, for each row the position of its record in the list.
    """

    batch: pa.RecordBatch
    record: np.ndarray


class LogFormat(Protocol):
    """Encodes and decodes changes of the log. Use each instance in one thread only; it does not need to be closed."""

    name: str

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Encode changes (the table's columns in schema order, then ``_kind``) as records, in row order."""
        ...

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Decode records into changes, in record order.

        Args:
            keys: the records' keys.
            values: the records' values.
            own: the caller knows that this format wrote the records for this table, so they need no validation.

        Raises:
            BadRecordError: a record is not one this format writes; the error is about the first one.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FormatSettings:
    """The properties of a log that its format depends on.

    Attributes:
        changelog: the log is a full changelog, with UPDATE_BEFORE rows.
        mixed: records may have been written before integers were widened and fields of structs moved.
        max_record_bytes: the most bytes of the value of a record with several rows.
    """

    changelog: bool = False
    mixed: bool = False
    max_record_bytes: int = 900_000


def unchanged(changes: pa.RecordBatch, primary_key: Sequence[str], changelog: bool) -> pa.RecordBatch:
    """Return changes as they are, for a format that loses nothing."""
    return changes


def holds_all(rows: pa.RecordBatch) -> None:
    """Accept any rows, for a format that can hold every value."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A log format and what its records can hold. Nothing else in the package asks for a format by name.

    Attributes:
        name: the value of the option ``log.format``.
        open: creates the encoder and decoder of a log with these columns and this primary key.
        as_read: returns changes as they are read back, given the primary key and ``FormatSettings.changelog``; a format
            may lose part of a change.
        check: raises ``InvalidInputError`` for rows with a value that the format cannot hold. It is called before the
            rows are committed; what is committed must be publishable.
        packs_rows: whether a record holds several rows, compressed; else each row is one record of text.
        keeps_replaced_rows: whether a change can hold the row before it.
        deletes_need_key: whether a deleted row is identified by its primary key only.
        why_not_compacted: why Kafka cannot compact the records by key; empty if it can.
    """

    name: str
    open: Callable[[pa.Schema, Sequence[str], FormatSettings], LogFormat]
    as_read: Callable[[pa.RecordBatch, Sequence[str], bool], pa.RecordBatch] = unchanged
    check: Callable[[pa.RecordBatch], None] = holds_all
    packs_rows: bool = False
    keeps_replaced_rows: bool = True
    deletes_need_key: bool = False
    why_not_compacted: str = ""


def as_binary(payloads: Payloads) -> pa.Array:
    """Return keys or values as a binary array."""
    return payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.large_binary())


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the concatenation of arrays."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

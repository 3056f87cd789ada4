"""What a log format is: changes in Arrow to Kafka keys and values, and back, in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Payloads = Any
"""Keys or values: a binary array, or a sequence of ``bytes | None``; None is null in Kafka too."""


@dataclass(frozen=True)
class EncodedRecords:
    """Kafka records made from one batch of changes, in the order of its rows.

    Attributes:
        key_column: large_binary, one key a record; NULL means a null key.
        value_column: large_binary, one value a record; NULL is a null value, a delete of the key.
        rows: int64, how many changes each record holds; sums to the rows of the batch.
    """

    key_column: pa.Array
    value_column: pa.Array
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.value_column)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The keys, for those who go record by record."""
        found: list[bytes | None] = self.key_column.to_pylist()
        return found

    @cached_property
    def values(self) -> list[bytes | None]:
        """The values, likewise."""
        found: list[bytes | None] = self.value_column.to_pylist()
        return found


@dataclass(frozen=True)
class DecodedChanges:
    """Changes read from one list of Kafka records.

    Attributes:
        batch: the table's columns in schema order, then ``_kind`` (int8). A delete may have nothing but its key: its
            other columns are NULL then, also those that the schema declares not nullable.
        record: int64, for each row the position of the record it came from.
    """

    batch: pa.RecordBatch
    record: np.ndarray


class LogFormat(Protocol):
    """Codes changes for the log. An instance belongs to one thread and holds no outside resource worth closing."""

    name: str

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Turn changes (the table's columns in schema order, then ``_kind``) into records, in row order."""
        ...

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Turn records into changes, in record order.

        Args:
            keys: the records' keys.
            values: their values.
            own: the caller knows that this format wrote the records, for this table: they need no proof.

        Raises:
            CorruptedError: a record is not one this format writes; the message starts with
                ``record N:``, N being the position of the first such record in the list.
        """
        ...


def as_binary(payloads: Payloads) -> pa.Array:
    """Give keys or values as an array."""
    return payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.large_binary())


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Put arrays one after another."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

"""What a log format is: changes in Arrow to Kafka keys and values, and back, in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class EncodedRecords:
    """Kafka records made from one batch of changes, in the order of its rows.

    Attributes:
        keys: one key a record; ``None`` in place of a key means a null key.
        values: one value a record; ``None`` is a null value, a delete of the key.
        rows: int64, how many changes each record holds; sums to the rows of the batch.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    rows: np.ndarray


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

    def decode(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], *, own: bool = False
    ) -> DecodedChanges:
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

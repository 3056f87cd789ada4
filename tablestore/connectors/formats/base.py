"""What a row format is: rows in Arrow to the bytes of Kafka keys or values, and back, in bulk.

The connectors code a record's key and its value each with a row format of its own. A log format (``base``) codes a
whole record of the store's log, key, value and row kind together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

Payloads: TypeAlias = "Sequence[bytes | None] | pa.Array"
"""Payloads, or one column of them (large_binary)."""


@dataclass(frozen=True)
class DecodedRows:
    """Rows read from one list of payloads.

    Attributes:
        batch: the format's columns in schema order, one row for each payload that holds one.
        record: int64, for each row the position of the payload it came from, ascending. Its length is the number of
            rows, also where the format has no columns.
    """

    batch: pa.RecordBatch
    record: np.ndarray


class RowFormat(Protocol):
    """Codes rows. An instance belongs to one thread and holds no outside resource worth closing."""

    name: str

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Turn rows (the format's columns in schema order) into one payload each, in row order; large_binary.

        Raises:
            InvalidInputError: a value that the format cannot hold.
        """
        ...

    def encode(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        """Do the same as ``encode_column``, as Python's bytes."""
        ...

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Turn payloads into rows. A null payload, and what the format's options say to skip, gives no row.

        Raises:
            BadRecordError: the first payload that is no row, with its position, the field at fault and the reason. No
                payload after it is lost to the caller: decode from the next position gives the others.
        """
        ...

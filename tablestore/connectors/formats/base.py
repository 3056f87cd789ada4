"""The interface of a row format: bulk conversion of Arrow rows to the bytes of Kafka keys or values, and back.

The connectors use one row format for a record's key and another for its value. In contrast, a log format
(``log_system.formats.base``) encodes a whole record of the store's log: key, value and row kind together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

Payloads: TypeAlias = "Sequence[bytes | None] | pa.Array"
"""Payloads, as a Python sequence or as a large_binary array."""


@dataclass(frozen=True)
class DecodedRows:
    """Rows decoded from a list of payloads.

    Attributes:
        batch: the format's columns in schema order, with one row for each payload that contains a row.
        record: the position of each row's payload, int64, ascending. Its length is the number of rows, even if the
            format has no columns.
    """

    batch: pa.RecordBatch
    record: np.ndarray


class RowFormat(Protocol):
    """Encodes and decodes rows. An instance is not thread-safe and holds no resources that need closing."""

    name: str

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows (the format's columns in schema order) to one large_binary payload each, in row order.

        Raises:
            InvalidInputError: the format cannot encode a value.
        """
        ...

    def encode(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        """Encode rows like ``encode_column``, but return Python bytes."""
        ...

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. Null payloads, and payloads that the format's options skip, produce no row.

        Raises:
            BadRecordError: a payload is invalid. The error has the position of the first such payload, the invalid
                field and the reason. The caller can decode the remaining payloads from the next position.
        """
        ...

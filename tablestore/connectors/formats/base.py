"""The interface of a row format: bulk conversion of Arrow rows to the bytes of Kafka keys or values, and back.

The connectors use one row format for a record's key and another for its value. In contrast, a log format
(``log_system.formats.base``) encodes a whole record of the store's log: key, value and row kind together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Payloads: TypeAlias = "Sequence[bytes | None] | pa.Array"
"""Payloads, as a Python sequence or as a large_binary array."""


@dataclass(frozen=True)
class MetadataKind:
    """A metadata key of messages.

    Attributes:
        type: the Arrow type of the metadata.
        words: the SQL type, for error messages.
        fits: whether a column of another type can show the metadata.
    """

    type: pa.DataType
    words: str
    fits: Callable[[pa.DataType], bool]


def text_or(*others: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    """Return the check of column types for metadata that a STRING, or a column of another type, can show."""
    return lambda kind: pt.is_string(kind) or any(fits(kind) for fits in others)


@dataclass(frozen=True)
class DecodedRows:
    """Rows decoded from a list of payloads.

    Attributes:
        batch: the format's columns in schema order, with one row for each payload that contains a row. A changelog
            format also has columns for the metadata it was asked for and, last, the row kind; a payload of it can
            contain several rows.
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

        Only `raw` has null payloads, for NULL.

        Raises:
            InvalidInputError: the format cannot encode a value.
        """
        ...

    def encode(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        """Encode rows like ``encode_column``, but return Python bytes."""
        ...

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. Null payloads, and payloads that the format's options skip, produce no row.

        In `raw`, a null payload is a row of NULL, unless its column is NOT NULL.

        Raises:
            BadRecordError: a payload is invalid. The error has the position of the first such payload, the invalid
                field and the reason. The caller can decode the remaining payloads from the next position.
        """
        ...


class ChangelogFormat(RowFormat, Protocol):
    """A row format whose payloads are changes, with their row kinds."""

    def check_writable(self) -> None:
        """Raise if the format's options are for reading only.

        Raises:
            InvalidInputError: they are.
        """
        ...

    def encode_changes(self, rows: pa.RecordBatch, retracted: np.ndarray) -> pa.Array:
        """Encode rows like ``encode_column``; ``retracted`` is a mask of rows that are deleted or updated to others.

        Raises:
            InvalidInputError: the format cannot encode a value.
        """
        ...

"""What all row formats share in decoding: one payload at a time where bulk code could not, and rows from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from log_system.formats.row_values import UnfitError
from log_system.formats.rows import DecodedRows
from snapshot.errors import BadRecordError

Read = Callable[[bytes], dict[str, Any] | None]
"""Reads one payload; None where it gives no row; raises UnfitError where it is none."""


def read_one_by_one(
    payloads: Sequence[bytes | None], positions: Sequence[int], read: Read
) -> tuple[list[dict[str, Any]], list[int]]:
    """Read payloads one at a time.

    Returns:
        The rows, and the position each came from.

    Raises:
        BadRecordError: the first payload at fault.
    """
    rows, record = [], []
    for position in positions:
        payload = payloads[position]
        if payload is None:
            continue
        try:
            row = read(payload)
        except UnfitError as error:
            raise BadRecordError(position, error.reason, error.field) from error
        if row is not None:
            rows.append(row)
            record.append(position)
    return rows, record


def to_batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch of rows; one without columns too knows how many rows it has."""
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decoded(rows: Sequence[dict[str, Any]], record: Sequence[int], schema: pa.Schema) -> DecodedRows:
    """Give rows and their positions as a decoder's answer."""
    return DecodedRows(to_batch(rows, schema), np.array(record, np.int64))

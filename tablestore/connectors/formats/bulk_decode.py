"""What row formats share in decoding: many payloads at once, one at a time where that could not be, rows of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.errors import BadRecordError
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.values import UnfitError

Read = Callable[[bytes], dict[str, Any] | None]
"""Reads one payload; None where it gives no row; raises UnfitError where it is none."""


@dataclass(frozen=True)
class BulkRows:
    """What was read of some payloads at once.

    Attributes:
        position: int64, of the payloads that were read; ascending.
        batch: their rows.
    """

    position: np.ndarray
    batch: pa.RecordBatch


ReadBulk = Callable[[pa.Array], Iterable[BulkRows]]
"""Reads payloads (without NULL and empty ones) of which there is no doubt, and leaves out the others."""

_SLICE_BYTES = 64 << 20
"""Payloads are read in slices of about this many bytes, so that a column of text stays far below Arrow's 2 GB."""


def decode_in_bulk(
    payloads: Payloads, schema: pa.Schema, bulk: ReadBulk, one: Read, *, text: bool = True
) -> DecodedRows:
    """Read payloads: as many as can be at once, and the others one at a time.

    Args:
        payloads: what to read.
        schema: the columns.
        bulk: reads many at once, as large_string, or as large_binary where they are not text.
        one: reads one.
        text: whether payloads are text.

    Raises:
        BadRecordError: the first payload at fault.
    """
    array = payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.large_binary())
    there = pc.fill_null(pc.greater(pc.binary_length(array), 0), fill_value=False)
    positions = np.flatnonzero(there.to_numpy(zero_copy_only=False))
    given = array if len(positions) == len(array) else array.take(pa.array(positions))
    parts: list[BulkRows] = []
    rows_max = max(1, len(given) * _SLICE_BYTES // max(given.nbytes, 1))
    for start in range(0, len(given), rows_max):
        part = given.slice(start, rows_max)
        texts, valid = _texts(part) if text else (part, None)
        here = positions[start : start + rows_max] if valid is None else positions[start : start + rows_max][valid]
        parts += [BulkRows(here[found.position], found.batch) for found in bulk(texts)]
    read = np.zeros(len(payloads), bool)
    for part in parts:
        read[part.position] = True
    rows, record = read_one_by_one(payloads, np.flatnonzero(~read).tolist(), one)
    if rows:
        parts.append(BulkRows(np.array(record, np.int64), to_batch(rows, schema)))
    return _in_order(parts, schema)


def _texts(payloads: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """See payloads as text; those that are no UTF-8 are left out, and which are left is given too, if not all."""
    try:
        return payloads.cast(pa.large_string()), None
    except pa.ArrowInvalid:
        valid = np.array([_is_utf8(payload) for payload in payloads.to_pylist()])
        return payloads.filter(pa.array(valid)).cast(pa.large_string()), valid


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _in_order(parts: Sequence[BulkRows], schema: pa.Schema) -> DecodedRows:
    parts = [part for part in parts if len(part.position)]
    if not parts:
        return decoded([], [], schema)
    if len(parts) == 1:
        return DecodedRows(parts[0].batch, parts[0].position)
    position = np.concatenate([part.position for part in parts])
    batch = pa.concat_batches([part.batch for part in parts])
    if (np.diff(position) < 0).any():
        order = np.argsort(position)
        return DecodedRows(batch.take(pa.array(order)), position[order])
    return DecodedRows(batch, position)


def read_one_by_one(payloads: Payloads, positions: Sequence[int], read: Read) -> tuple[list[dict[str, Any]], list[int]]:
    """Read payloads one at a time.

    Returns:
        The rows, and the position each came from.

    Raises:
        BadRecordError: the first payload at fault.
    """
    rows, record = [], []
    for position in positions:
        payload = payloads[position].as_py() if isinstance(payloads, pa.Array) else payloads[position]
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

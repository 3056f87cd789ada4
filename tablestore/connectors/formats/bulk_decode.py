"""Decoding shared by the row formats: payloads are decoded in bulk where possible, the others one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.base import as_binary
from log_system.formats.thread_duckdb import SLICE_BYTES
from snapshot.arrow_slices import rows_within
from snapshot.errors import BadRecordError
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.values import UnfitError

Read = Callable[[bytes], dict[str, Any] | list[dict[str, Any]] | None]
"""Decodes one payload to a row, to several, or to none (None); raises UnfitError if it is invalid."""


@dataclass(frozen=True)
class BulkRows:
    """Rows decoded in bulk.

    Attributes:
        position: the position of each row's payload, int64, ascending.
        batch: the rows.
        read: positions of all decoded payloads, if some of them produce no row.
    """

    position: np.ndarray
    batch: pa.RecordBatch
    read: np.ndarray | None = None


ReadBulk = Callable[[pa.Array], Iterable[BulkRows]]
"""Decodes the unambiguous ones of some payloads, none of them NULL or empty, and leaves out the others."""


def decode_in_bulk(
    payloads: Payloads, schema: pa.Schema, bulk: ReadBulk, one: Read, *, text: bool = True
) -> DecodedRows:
    """Decode payloads: as many as possible in bulk, and the others one at a time.

    Args:
        payloads: the payloads.
        schema: the columns.
        bulk: decodes many payloads, passed as large_string if they are text, else as large_binary.
        one: decodes one payload.
        text: whether payloads are text.

    Raises:
        BadRecordError: a payload is invalid; the error is about the first one.
    """
    array = as_binary(payloads)
    positions = np.flatnonzero(as_mask(pc.greater(pc.binary_length(array), 0)))
    given = array if len(positions) == len(array) else array.take(pa.array(positions))
    parts: list[BulkRows] = []
    read = np.zeros(len(payloads), bool)
    rows_max = rows_within(given, SLICE_BYTES)
    for start in range(0, len(given), rows_max):
        part = given.slice(start, rows_max)
        texts, valid = _texts(part) if text else (part, None)
        here = positions[start : start + rows_max] if valid is None else positions[start : start + rows_max][valid]
        for found in bulk(texts):
            parts.append(BulkRows(here[found.position], found.batch))
            read[here[found.position if found.read is None else found.read]] = True
    rows, record = read_one_by_one(payloads, np.flatnonzero(~read).tolist(), one)
    if rows:
        parts.append(BulkRows(np.array(record, np.int64), to_batch(rows, schema)))
    return in_order(parts, schema)


def _texts(payloads: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Return the payloads that are valid UTF-8, as text, and a mask of them; the mask is None if all are valid."""
    try:
        return payloads.cast(pa.large_string()), None
    except pa.ArrowInvalid:
        valid = np.array([is_utf8(payload) for payload in payloads.to_pylist()])
        return payloads.filter(pa.array(valid)).cast(pa.large_string()), valid


def as_mask(values: pa.Array) -> np.ndarray:
    """Return booleans as a mask, which is false where they are NULL."""
    return np.array(pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False), bool)


def is_utf8(payload: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def in_order(parts: Sequence[BulkRows], schema: pa.Schema) -> DecodedRows:
    """Join rows that were decoded in parts, in the order of their payloads."""
    parts = [part for part in parts if len(part.position)]
    if not parts:
        return decoded([], [], schema)
    if len(parts) == 1:
        return DecodedRows(parts[0].batch, parts[0].position)
    position = np.concatenate([part.position for part in parts])
    batch = pa.concat_batches([part.batch for part in parts])
    if (np.diff(position) < 0).any():
        order = np.argsort(position, kind="stable")
        return DecodedRows(batch.take(pa.array(order)), position[order])
    return DecodedRows(batch, position)


def read_one_by_one(
    payloads: Payloads, positions: Sequence[int], read: Read, absent: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], list[int]]:
    """Decode payloads one at a time; return the rows, and the position of each row's payload.

    Args:
        payloads: the payloads.
        positions: those to decode.
        read: decodes a payload.
        absent: the row of a null payload; None for no row.

    Raises:
        BadRecordError: a payload is invalid; the error is about the first one.
    """
    rows, record = [], []
    for position in positions:
        payload = payloads[position].as_py() if isinstance(payloads, pa.Array) else payloads[position]
        try:
            row = absent if payload is None else read(payload)
        except UnfitError as error:
            raise BadRecordError(position, error.reason, error.field) from error
        found = row if isinstance(row, list) else [] if row is None else [row]
        rows += found
        record += [position] * len(found)
    return rows, record


def to_batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as a batch; a batch without columns also has the right number of rows."""
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decoded(rows: Sequence[dict[str, Any]], record: Sequence[int], schema: pa.Schema) -> DecodedRows:
    """Return rows and their payload positions as ``DecodedRows``."""
    return DecodedRows(to_batch(rows, schema), np.array(record, np.int64))

"""What every row format starts from: it travels by what it was made from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from log_system.formats.base import joined
from log_system.formats.columns import relabel, without_offsets
from log_system.formats.duck import Duck
from log_system.formats.row_texts import Pieces
from snapshot.errors import InvalidInputError

MEMORY_LIMIT = "256MB"
"""How much memory the DuckDB of one format may use."""
_SLICE_BYTES = 64 << 20


class PortableFormat(ABC):
    """A row format that pickle makes anew from its schema and options; what it has prepared or opened stays behind."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], side: str) -> None:
        """Keep what it is made from."""
        self._schema = schema
        self._made_from = (schema, dict(options), side)

    @abstractmethod
    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Turn rows into one payload each, large_binary."""

    def encode(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        """Do the same as ``encode_column``, as Python's bytes."""
        payloads: list[bytes] = self.encode_column(rows).to_pylist()
        return payloads

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel by what it was made from."""
        return _make, (type(self), *self._made_from)


Fast = Callable[[pa.Array], Pieces | None]
"""Writes a column as texts, or gives None where only DuckDB can."""


def texts_of(
    rows: pa.RecordBatch, fast: Fast, expressions: Sequence[str], duck: Duck, seen: pa.Schema, name: str
) -> list[Pieces]:
    """Write each column as texts, NULL where it is: by Arrow where that can be, all others by one query.

    Args:
        rows: the rows.
        fast: writes a column by Arrow.
        expressions: SQL that writes each column.
        duck: runs the query.
        seen: names and types under which ``expressions`` see the columns.
        name: of the format, for messages.

    Raises:
        InvalidInputError: a row cannot be written in the format ``name``.
    """
    found = [fast(column) for column in rows.columns]
    left = [number for number, pieces in enumerate(found) if pieces is None]
    if left:
        sql = f"SELECT {', '.join(expressions[number] for number in left)} FROM seen"
        given = relabel(rows.select(left), pa.schema([seen.field(number) for number in left]))
        try:
            made = duck.run(sql, seen=without_offsets(given))
        except duckdb.Error as error:
            msg = f"rows cannot be written as {name.upper()}: {error}"
            raise InvalidInputError(msg) from error
        for number, texts in zip(left, made.columns, strict=True):
            found[number] = Pieces("", texts, "")
    return [pieces for pieces in found if pieces is not None]


def in_slices(rows: pa.RecordBatch, write: Callable[[pa.RecordBatch], pa.Array]) -> pa.Array:
    """Write rows (at least one) in slices, so that what one becomes stays far below Arrow's 2 GB; large_binary."""
    rows_max = max(1, len(rows) * _SLICE_BYTES // max(rows.nbytes, 1))
    parts = [write(rows.slice(start, rows_max)) for start in range(0, len(rows), rows_max)]
    return joined([part.cast(pa.binary()).cast(pa.large_binary()) for part in parts])


def repeated(payload: bytes, count: int) -> pa.Array:
    """Give the same payload for each of so many rows."""
    return pa.repeat(pa.scalar(payload, pa.large_binary()), count)


def _make(kind: Callable[..., Any], schema: pa.Schema, options: Mapping[str, str], side: str) -> Any:
    return kind(schema, options, side=side)

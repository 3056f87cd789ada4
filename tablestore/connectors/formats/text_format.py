"""Base classes of the row formats: pickling by constructor arguments, and encoding of rows as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from log_system.formats.base import joined
from log_system.formats.changes_schema import relabel
from log_system.formats.duckdb_json import numbered_types
from log_system.formats.thread_duckdb import SLICE_BYTES, Duck
from snapshot.arrow_slices import slices
from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.column_texts import Pieces
from tablestore.connectors.formats.types import check_rows, check_years

MEMORY_LIMIT = "256MB"
"""Memory limit of one format's DuckDB instance."""

Fast: TypeAlias = Callable[[pa.Array], Pieces | None]
"""Writes a column as text with Arrow; returns None if only DuckDB can write it."""
ToSql: TypeAlias = Callable[[pa.DataType, str], str]
"""Returns the SQL that writes a column of a given type and name as text."""


class PortableFormat(ABC):
    """A row format that is pickled as its schema and options; prepared state and open resources are not pickled."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], side: str) -> None:
        """Keep the constructor arguments for pickling."""
        self._schema = schema
        self._made_from = (schema, dict(options), side)

    @abstractmethod
    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows to one large_binary payload each."""

    def encode(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        """Encode rows like ``encode_column``, but return Python bytes."""
        payloads: list[bytes] = self.encode_column(rows).to_pylist()
        return payloads

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the constructor arguments."""
        schema, options, side = self._made_from
        return partial(type(self), side=side), (schema, options)


class TextFormat(PortableFormat):
    """A row format that encodes each row as text.

    Attributes:
        name: the format's name.
        empty: the payload of a row without columns.
    """

    name: str
    empty: bytes

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], side: str, to_sql: ToSql) -> None:
        """Prepare the SQL that writes each column."""
        super().__init__(schema, options, side)
        self._seen = numbered_types(schema)
        self._expressions = [to_sql(kind, name) for kind, name in zip(schema.types, self._seen.names, strict=True)]
        self._duck = Duck(MEMORY_LIMIT)

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows to one payload each.

        Raises:
            InvalidInputError: the columns do not match the schema, a NULL is not allowed, or a date or timestamp is
                outside the years 1 to 9999.
        """
        check_rows(rows, self._schema, self.name)
        if not len(self._schema) or not len(rows):
            return repeated(self.empty, len(rows))
        check_years(rows, self.name)
        return in_slices(rows, self._texts)

    @abstractmethod
    def _texts(self, rows: pa.RecordBatch) -> pa.Array:
        """Return one text for each row; there is at least one row and one column."""

    def _pieces(self, rows: pa.RecordBatch, fast: Fast) -> list[Pieces]:
        """Return the texts of each column, using ``fast`` where it can and one DuckDB query for all other columns.

        NULL values stay NULL.

        Raises:
            InvalidInputError: a row cannot be written in this format.
        """
        found = [fast(column) for column in rows.columns]
        left = [number for number, pieces in enumerate(found) if pieces is None]
        if left:
            sql = f"SELECT {', '.join(self._expressions[number] for number in left)} FROM seen"
            given = relabel(rows.select(left), pa.schema([self._seen.field(number) for number in left]))
            try:
                made = self._duck.run(sql, seen=given)
            except duckdb.Error as error:
                msg = f"rows cannot be written as {self.name.upper()}: {error}"
                raise InvalidInputError(msg) from error
            for number, texts in zip(left, made.columns, strict=True):
                found[number] = Pieces("", texts, "")
        return [pieces for pieces in found if pieces is not None]


def in_slices(rows: pa.RecordBatch, write: Callable[[pa.RecordBatch], pa.Array]) -> pa.Array:
    """Write rows (at least one) in slices, and return large_binary payloads."""
    parts = map(write, slices(rows, SLICE_BYTES))
    return joined([part.cast(pa.binary()).cast(pa.large_binary()) for part in parts])


def repeated(payload: bytes, count: int) -> pa.Array:
    """Return a column that repeats one payload ``count`` times."""
    return pa.repeat(pa.scalar(payload, pa.large_binary()), count)

"""What every row format starts from: it travels by what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from log_system.formats.columns import relabel, without_offsets
from log_system.formats.duck import Duck
from snapshot.errors import InvalidInputError

MEMORY_LIMIT = "256MB"
"""How much memory the DuckDB of one format may use."""


class PortableFormat:
    """A row format that pickle makes anew from its schema and options; what it has prepared or opened stays behind."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], side: str) -> None:
        """Keep what it is made from."""
        self._schema = schema
        self._made_from = (schema, dict(options), side)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel by what it was made from."""
        return _make, (type(self), *self._made_from)


def written(duck: Duck, expression: str, rows: pa.RecordBatch, seen: pa.Schema, name: str) -> Sequence[bytes]:
    """Write each row as the text that an SQL expression over columns of the names and types of ``seen`` makes of it.

    Raises:
        InvalidInputError: a row cannot be written in the format ``name``.
    """
    try:
        made = duck.run(f"SELECT {expression} FROM seen", seen=without_offsets(relabel(rows, seen))).column(0)
    except duckdb.Error as error:
        msg = f"rows cannot be written as {name.upper()}: {error}"
        raise InvalidInputError(msg) from error
    payloads: list[bytes] = made.cast(pa.binary()).to_pylist()
    return payloads


def _make(kind: Callable[..., Any], schema: pa.Schema, options: Mapping[str, str], side: str) -> Any:
    return kind(schema, options, side=side)

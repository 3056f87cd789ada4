"""Log formats: encode changes as Kafka keys and values, and decode them.

Call ``open_format``. ``base`` defines the interface; ``docs/reference/formats.md`` describes the formats.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from log_system.formats.arrow import ArrowFormat
from log_system.formats.base import DecodedChanges, EncodedRecords, LogFormat
from log_system.formats.debezium import DebeziumFormat
from log_system.formats.json import JsonFormat
from log_system.formats.truncate import TruncatingFormat
from snapshot.errors import InvalidInputError

FORMATS = ("json", "arrow", "debezium-json")
"""The values of the option ``log.format``."""

__all__ = ["FORMATS", "DecodedChanges", "EncodedRecords", "LogFormat", "open_format"]


def open_format(
    name: str,
    schema: pa.Schema,
    primary_key: Sequence[str],
    *,
    changelog: bool = False,
    mixed: bool = False,
    max_record_bytes: int = 900_000,
    memory_limit: str = "256MB",
) -> LogFormat:
    """Create the format of a table's log.

    Args:
        name: the value of the option ``log.format``.
        schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
        primary_key: the primary key columns in order; empty for a table without a primary key.
        changelog: whether the log is a full changelog, with UPDATE_BEFORE rows (``debezium-json``).
        mixed: records may have been written before columns were widened (``arrow``; numbers in text have no width).
        max_record_bytes: the most bytes of one record's value (``arrow``; in ``json`` each row is one record).
        memory_limit: how much memory DuckDB may use (``json``, ``debezium-json``).

    Returns:
        The format, which can be pickled both before and after its first use.

    Raises:
        InvalidInputError: the name is unknown, a column has a type that a table cannot hold, or a key column does not
            exist.
    """
    if name == "json":
        return TruncatingFormat(JsonFormat(schema, primary_key, memory_limit=memory_limit))
    if name == "arrow":
        return ArrowFormat(schema, primary_key, max_record_bytes=max_record_bytes, mixed=mixed)
    if name == "debezium-json":
        return TruncatingFormat(DebeziumFormat(schema, primary_key, changelog=changelog, memory_limit=memory_limit))
    msg = f"log.format must be one of {', '.join(map(repr, FORMATS))}, got {name!r}"
    raise InvalidInputError(msg)

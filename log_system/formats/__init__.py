"""Log formats: how changes become the bytes of Kafka records, and come back.

Call ``open_format``; ``base`` has the interface and ``docs/reference/formats.md`` what is written.
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
    """Make the format of a table's log.

    Args:
        name: the value of the option ``log.format``.
        schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
        primary_key: the key's columns in order; empty for a table without one.
        changelog: the changes are all that there are, rows before an update included (``debezium-json``).
        mixed: records may be older than the table's columns (``arrow``; what is text has no width anyway).
        max_record_bytes: the most bytes of one record's value (``arrow``; in ``json`` a row is a record).
        memory_limit: how much memory DuckDB may use (``json``, ``debezium-json``).

    Returns:
        The format, picklable before its first use and after.

    Raises:
        InvalidInputError: an unknown name, a type a table cannot hold, or a key that is not among the columns.
    """
    if name == "json":
        return TruncatingFormat(JsonFormat(schema, primary_key, memory_limit=memory_limit))
    if name == "arrow":
        return ArrowFormat(schema, primary_key, max_record_bytes=max_record_bytes, mixed=mixed)
    if name == "debezium-json":
        return TruncatingFormat(DebeziumFormat(schema, primary_key, changelog=changelog, memory_limit=memory_limit))
    msg = f"log.format must be one of {', '.join(map(repr, FORMATS))}, got {name!r}"
    raise InvalidInputError(msg)

"""Log formats: encode changes as Kafka keys and values, and decode them.

Call ``open_format``. ``base`` defines the interface; ``docs/reference/formats.md`` describes the formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from log_system.formats import arrow, debezium, json
from log_system.formats.base import DecodedChanges, EncodedRecords, Format, FormatSettings, LogFormat
from snapshot.errors import InvalidInputError

FORMATS: Mapping[str, Format] = {each.name: each for each in (json.FORMAT, arrow.FORMAT, debezium.FORMAT)}
"""The formats by the value of the option ``log.format``."""

__all__ = ["FORMATS", "DecodedChanges", "EncodedRecords", "Format", "LogFormat", "open_format"]


def open_format(name: str, schema: pa.Schema, primary_key: Sequence[str], **settings: Any) -> LogFormat:
    """Create the format of a table's log, which can be pickled both before and after its first use.

    Args:
        name: the value of the option ``log.format``.
        schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
        primary_key: the primary key columns in order; empty for a table without a primary key.
        **settings: see ``FormatSettings``.

    Raises:
        InvalidInputError: the name is unknown, a column has a type that a table cannot hold, or a key column does not
            exist.
    """
    if name not in FORMATS:
        msg = f"log.format must be one of {', '.join(map(repr, FORMATS))}, got {name!r}"
        raise InvalidInputError(msg)
    return FORMATS[name].open(schema, primary_key, FormatSettings(**settings))

"""The row formats of the connectors by name: how a record's key or value becomes bytes, and comes back.

``rows`` has the interface and ``docs/reference/formats.md`` what is written. They are Flink's formats, under Flink's
names and options, so that a topic can be shared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.avro.format import AvroRowFormat
from tablestore.connectors.formats.base import RowFormat
from tablestore.connectors.formats.csv.format import CsvRowFormat
from tablestore.connectors.formats.json.format import JsonRowFormat
from tablestore.connectors.formats.raw import RawRowFormat

_FORMATS: dict[str, Callable[..., RowFormat]] = {
    "json": JsonRowFormat,
    "csv": CsvRowFormat,
    "avro": AvroRowFormat,
    "raw": RawRowFormat,
}

ROW_FORMATS = tuple(_FORMATS)
"""The values of the options ``format``, ``key.format`` and ``value.format``."""


def open_row_format(name: str, schema: pa.Schema, options: Mapping[str, str], *, side: str) -> RowFormat:
    """Make a row format.

    Args:
        name: one of ``ROW_FORMATS``.
        schema: the columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``. A timestamp's declared
            precision is in its field's metadata, under ``row_types.PRECISION``.
        options: the format's own options, the prefix already cut: ``{"ignore-parse-errors": "true"}``.
        side: ``key``, ``value``, or empty where the table has one format; only for messages, which give an option's
            full name (``value.json.ignore-parse-errors``).

    Returns:
        The format, picklable before its first use and after; it belongs to one thread.

    Raises:
        InvalidInputError: an unknown format or option, a wrong value, or a column that the format cannot hold.
    """
    if name not in _FORMATS:
        option = f"{side}.format" if side else "format"
        msg = f"{option} must be one of {', '.join(map(repr, ROW_FORMATS))}, got {name!r}"
        raise InvalidInputError(msg)
    return _FORMATS[name](schema, options, side=side)

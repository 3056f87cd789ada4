"""The registry of the connectors' row formats by name.

The formats, their names and their options are Flink's, so that Flink and this library can share a topic. ``base``
defines the interface, and ``docs/reference/formats.md`` describes the encodings.
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
"""The valid values of the options ``format``, ``key.format`` and ``value.format``."""


def open_row_format(name: str, schema: pa.Schema, options: Mapping[str, str], *, side: str) -> RowFormat:
    """Open a row format by name.

    Args:
        name: one of ``ROW_FORMATS``.
        schema: the columns, with the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``. The declared
            precision of a timestamp is in its field's metadata under ``types.PRECISION``.
        options: the format's options without prefix, such as ``{"ignore-parse-errors": "true"}``.
        side: ``key``, ``value``, or empty if the table has a single format. It is used only in error messages, which
            show full option names (``value.json.ignore-parse-errors``).

    Returns:
        The format. It can be pickled at any time and is not thread-safe.

    Raises:
        InvalidInputError: the format or an option is unknown, an option value is invalid, or the format does not
            support a column.
    """
    if name not in _FORMATS:
        option = f"{side}.format" if side else "format"
        msg = f"{option} must be one of {', '.join(map(repr, ROW_FORMATS))}, got {name!r}"
        raise InvalidInputError(msg)
    return _FORMATS[name](schema, options, side=side)

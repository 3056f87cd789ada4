"""The registry of the connectors' row formats by name.

The formats, their names and their options are Flink's, so that Flink and this library can share a topic. ``base``
defines the interface, and ``docs/reference/formats.md`` describes the encodings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.avro.format import AvroRowFormat
from tablestore.connectors.formats.avro.registry_formats import DebeziumAvroFormat, RegistryAvroFormat
from tablestore.connectors.formats.base import ChangelogFormat, MetadataKind, RowFormat
from tablestore.connectors.formats.changelog.format import ChangelogJsonFormat
from tablestore.connectors.formats.changelog.layouts import LAYOUTS
from tablestore.connectors.formats.csv.format import CsvRowFormat
from tablestore.connectors.formats.json.format import JsonRowFormat
from tablestore.connectors.formats.raw import RawRowFormat

_FORMATS: dict[str, Callable[..., RowFormat]] = {
    "json": JsonRowFormat,
    "csv": CsvRowFormat,
    "avro": AvroRowFormat,
    "raw": RawRowFormat,
    "avro-confluent": RegistryAvroFormat,
}

ROW_FORMATS: Final = tuple(_FORMATS)
"""The formats whose payloads are rows: valid values of the options ``format``, ``key.format`` and ``value.format``."""

CHANGELOG_FORMATS: Final = (*LAYOUTS, DebeziumAvroFormat.name)
"""The formats whose payloads are changes: values of ``format`` and ``value.format`` of the ``kafka`` connector."""

WITH_REGISTRY: Final = (RegistryAvroFormat.name, DebeziumAvroFormat.name)
"""The formats whose schemas are in a schema registry."""


def open_row_format(name: str, schema: pa.Schema, options: Mapping[str, str], *, side: str) -> RowFormat:
    """Open a row format by name; it can be pickled at any time and is not thread-safe.

    Args:
        name: one of ``ROW_FORMATS``.
        schema: the columns, with the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``. The declared
            precision of a timestamp is in its field's metadata under ``types.PRECISION``.
        options: the format's options without prefix, such as ``{"ignore-parse-errors": "true"}``.
        side: ``key``, ``value``, or empty if the table has a single format. It is used only in error messages, which
            show full option names (``value.json.ignore-parse-errors``).

    Raises:
        InvalidInputError: the format or an option is unknown, an option value is invalid, or the format does not
            support a column.
    """
    _check_name(name, side)
    if name in CHANGELOG_FORMATS:
        return open_changelog_format(name, schema, options, side=side)
    return _FORMATS[name](schema, options, side=side)


def open_changelog_format(
    name: str, schema: pa.Schema, options: Mapping[str, str], *, side: str, metadata: Sequence[str] = ()
) -> ChangelogFormat:
    """Open a changelog format by name; ``metadata`` are the metadata keys to decode, the rest as `open_row_format`."""
    if name == DebeziumAvroFormat.name:
        return DebeziumAvroFormat(schema, options, side=side)
    return ChangelogJsonFormat(schema, options, name=name, side=side, metadata=metadata)


def format_metadata(name: str) -> Mapping[str, MetadataKind]:
    """Return the metadata keys of a format; only changelog formats have any."""
    return LAYOUTS[name].metadata if name in LAYOUTS else {}


def _check_name(name: str, side: str) -> None:
    option = f"{side}.format" if side else "format"
    known = ROW_FORMATS if side == "key" else (*ROW_FORMATS, *CHANGELOG_FORMATS)
    if name not in known:
        msg = f"{option} must be one of {', '.join(map(repr, known))}, got {name!r}"
        raise InvalidInputError(msg)

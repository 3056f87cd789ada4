"""Schema and value checks shared by the row formats, and the declared precision of timestamp and time columns.

Arrow's timestamps have a unit but no precision: ``TIMESTAMP(3)`` and ``TIMESTAMP(6)`` are both ``timestamp[us]``. The
declared precision is therefore stored under ``PRECISION`` in the metadata of the Arrow field (column, list element, map
value or struct field). A field without it has precision 6. The same holds for ``TIME``, which Spark passes as
``time64[ns]``.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.changes_schema import check_columns, forbids_nulls, has_forbidden_null, layout, leaves
from snapshot.errors import InvalidInputError
from snapshot.schema.arrow_types import types_within

PRECISION = b"precision"
"""Field metadata key: the number of fractional-second digits of a timestamp or time, ``0`` to ``6``."""

TIME = pa.time64("ns")
"""The type of ``TIME`` columns, which only the connectors have: Delta has no such type."""
DAY_NANOS = 86_400_000_000_000
"""The number of nanoseconds in a day, which no time reaches."""

_FIRST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The first and last microsecond and day of the years 1 to 9999, the range that all text formats can represent."""


def precision(field: pa.Field) -> int:
    """Return the declared precision of a timestamp or time field."""
    return int((field.metadata or {}).get(PRECISION, b"6"))


def with_precision(field: pa.Field, digits: int) -> pa.Field:
    """Return a timestamp or time field with the given declared precision."""
    return field.with_metadata({**(field.metadata or {}), PRECISION: str(digits).encode()})


def cut_times(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column of times without digits beyond the declared precision, as Flink reads it; others unchanged."""
    if not pt.is_time(field.type):
        return column
    nanos, unit = column.view(pa.int64()), 10 ** (9 - precision(field))
    return pc.multiply(pc.divide(nanos, unit), unit).view(TIME)


def check_schema(schema: pa.Schema, check: Callable[[pa.Field, str], None]) -> None:
    """Check that a format supports a schema.

    ``check`` is called with each field, at every nesting level, and its path; it raises if the format does not support
    it.

    Raises:
        InvalidInputError: the connectors do not support a type or a name, or ``check`` raises it.
    """
    check_columns(schema, [], more=[TIME])
    for field in schema:
        _walk(field, field.name, check)


def _walk(field: pa.Field, path: str, check: Callable[[pa.Field, str], None]) -> None:
    check(field, path)
    data_type = field.type
    if pt.is_struct(data_type):
        for inner in data_type:
            _walk(inner, f"{path}.{inner.name}", check)
    elif pt.is_list(data_type):
        _walk(data_type.value_field, f"{path}.element", check)
    elif pt.is_map(data_type):
        _walk(data_type.item_field, f"{path}.value", check)


def check_rows(rows: pa.RecordBatch, schema: pa.Schema, name: str) -> None:
    """Check rows to encode against the format's schema.

    Raises:
        InvalidInputError: the columns do not match the schema, or the schema does not allow a NULL.
    """
    if rows.schema.names != schema.names or any(
        given != wanted and layout(given) != layout(wanted)
        for given, wanted in zip(rows.schema.types, schema.types, strict=True)
    ):
        msg = f"rows for format {name!r} need the columns\n{schema}\nin this order, got\n{rows.schema}"
        raise InvalidInputError(msg)
    for column, field in zip(rows.columns, schema, strict=True):
        if (not field.nullable or forbids_nulls(field.type)) and has_forbidden_null(column, field):
            msg = f"column {field.name!r} is NULL, or holds a NULL, where the schema does not allow it"
            raise InvalidInputError(msg)


def in_years_1_to_9999(leaf: pa.Array) -> bool:
    """Return whether all dates or timestamps of an array are within the years 1 to 9999."""
    if pt.is_date32(leaf.type):
        numbers, first, last = leaf.view(pa.int32()), _FIRST_DAY, _LAST_DAY
    else:
        numbers, first, last = leaf.view(pa.int64()), _FIRST_TIME, _LAST_TIME
    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low is None or (low >= first and high <= last)


def check_years(rows: pa.RecordBatch, name: str) -> None:
    """Raise if a date or timestamp cannot be represented in a text format.

    Raises:
        InvalidInputError: a date or timestamp is outside the years 1 to 9999.
    """
    for column, field in zip(rows.columns, rows.schema, strict=True):
        if _has_dates(field.type) and not all(
            in_years_1_to_9999(leaf) for leaf in leaves(column) if _has_dates(leaf.type)
        ):
            msg = f"column {field.name!r}: format {name!r} writes the years 1 to 9999 only"
            raise InvalidInputError(msg)


def _has_dates(data_type: pa.DataType) -> bool:
    return any(pt.is_date(each) or pt.is_timestamp(each) for each in types_within(data_type))

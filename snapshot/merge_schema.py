"""The schema changes after which rows of other columns have a place in a table (``merge_schema=True``)."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from snapshot.evolve import AddColumn, Change, WidenColumn
from snapshot.quoting import backquoted
from snapshot.schema import RESERVED
from snapshot.spark_schema import can_widen


def merging_changes(came: StructType, there: StructType) -> list[Change]:
    """Find the columns and fields that a table lacks, and the types that it needs wider.

    Args:
        came: the columns of the rows.
        there: the table's columns.

    Returns:
        What to change. A type that cannot become that of the rows is left as it is: the write will say so.
    """
    found: list[Change] = []
    _merge(came, there, (), found)
    return found


def _merge(came: DataType, there: DataType, place: tuple[str, ...], found: list[Change]) -> None:
    if isinstance(came, StructType) and isinstance(there, StructType):
        known = {field.name.lower(): field for field in there.fields}
        for field in came.fields:
            path = (*place, field.name)
            held = known.get(field.name.lower())
            if held is not None:
                _merge(field.dataType, held.dataType, (*place, held.name), found)
            elif place or field.name.lower() not in RESERVED:
                found.append(AddColumn(_text(path), field.dataType, comment=(field.metadata or {}).get("comment")))
    elif isinstance(came, ArrayType) and isinstance(there, ArrayType):
        _merge(came.elementType, there.elementType, (*place, "element"), found)
    elif isinstance(came, MapType) and isinstance(there, MapType):
        _merge(came.valueType, there.valueType, (*place, "value"), found)
    elif not can_widen(came, there) and can_widen(there, came):
        found.append(WidenColumn(_text(place), came))


def _text(path: tuple[str, ...]) -> str:
    return ".".join(map(backquoted, path))

"""Names and stored names (``columns.py``) of columns as Spark's types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from snapshot.columns import STORED_NAME
from snapshot.errors import InvalidInputError

_PART = re.compile(r"`((?:[^`]|``)+)`(?:\.|$)|([^.`]+)(?:\.|$)")


def with_stored_names(schema_json: str) -> StructType:
    """Read the columns of a definition, with their stored names in their metadata."""
    return StructType.fromJson(json.loads(schema_json))


def stored_name(field: StructField) -> str:
    """Give the name under which files hold a column or a field."""
    return str((field.metadata or {}).get(STORED_NAME, field.name))


def visible(schema: StructType) -> StructType:
    """Give columns as users see them: without stored names."""
    return _fields_mapped(schema, lambda f: StructField(f.name, f.dataType, f.nullable, without_stored(f)))


def stored(schema: StructType) -> StructType:
    """Give columns as files hold them, in the same order."""
    return _fields_mapped(schema, lambda f: StructField(stored_name(f), f.dataType, f.nullable, without_stored(f)))


def without_stored(field: StructField) -> dict[str, object]:
    """Give a field's metadata as users see it."""
    return {key: value for key, value in (field.metadata or {}).items() if key != STORED_NAME}


def stored_paths(schema: StructType) -> set[tuple[str, ...]]:
    """Give the paths of all fields by their stored names, in lower case."""
    found: set[tuple[str, ...]] = set()

    def walk(kind: DataType, place: tuple[str, ...]) -> None:
        if isinstance(kind, StructType):
            for field in kind.fields:
                path = (*place, stored_name(field).lower())
                found.add(path)
                walk(field.dataType, path)
        elif isinstance(kind, ArrayType):
            walk(kind.elementType, (*place, "element"))
        elif isinstance(kind, MapType):
            walk(kind.keyType, (*place, "key"))
            walk(kind.valueType, (*place, "value"))

    walk(schema, ())
    return found


def path_of(text: str, schema: StructType) -> tuple[str, ...]:
    """Split a dotted path; a name with dots in it stands in backquotes, unless it is a column's whole name.

    Raises:
        InvalidInputError: it is no path.
    """
    if text.lower() in (name.lower() for name in schema.fieldNames()):
        return (text,)
    parts: list[str] = []
    place = 0
    while place < len(text) or not parts:
        found = _PART.match(text, place)
        if found is None:
            msg = f"column {text!r}: expected a name, or names with dots between them such as 'struct.field'."
            raise InvalidInputError(msg)
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        place = found.end()
    if text.endswith("."):
        msg = f"column {text!r}: a name has to follow the last dot."
        raise InvalidInputError(msg)
    return tuple(parts)


def _fields_mapped(struct: StructType, change: Callable[[StructField], StructField]) -> StructType:
    """Change every field of a struct and of the structs in it."""

    def mapped(kind: DataType) -> DataType:
        if isinstance(kind, StructType):
            return _fields_mapped(kind, change)
        if isinstance(kind, ArrayType):
            return ArrayType(mapped(kind.elementType), kind.containsNull)
        if isinstance(kind, MapType):
            return MapType(mapped(kind.keyType), mapped(kind.valueType), kind.valueContainsNull)
        return kind

    fields = [change(field) for field in struct.fields]
    return StructType([StructField(f.name, mapped(f.dataType), f.nullable, f.metadata) for f in fields])

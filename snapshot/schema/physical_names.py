"""Physical names: the names of columns in files, as in Delta's column mapping.

A column gets its physical name when it is added. It never changes, and no other column of the table ever gets the same
one. So a renamed column keeps its values, and a column that is dropped and added again starts empty. If the physical
name differs from the column's name, it is stored in the column's metadata. The same applies to fields of structs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapshot.schema.json_types import arrow_columns

PHYSICAL_NAME = "tablestore.stored-name"
"""Key in a field's metadata; absent if the physical name equals the field's name."""


_MIXED = b"tablestore.mixed"


@dataclass(frozen=True)
class Columns:
    """Columns of a table as Arrow types. Picklable.

    Attributes:
        named: the columns by name.
        physical: the same columns in the same order, by physical name, including struct fields.
    """

    named: pa.Schema
    physical: pa.Schema

    @classmethod
    def of(cls, schema_json: str) -> Columns:
        """Parse Spark's schema JSON, which has physical names in its metadata."""
        if PHYSICAL_NAME not in schema_json:
            schema = arrow_columns(schema_json)
            return cls(schema, schema)
        return cls(arrow_columns(visible_json(schema_json)), arrow_columns(physical_json(schema_json)))

    def loosened(self, but: Collection[str]) -> Columns:
        """Return the same columns, all nullable except the named ones."""
        named = [f if f.name in but else f.with_nullable(True) for f in self.named]
        stored = [f.with_nullable(n.nullable) for f, n in zip(self.physical, named, strict=True)]
        return Columns(pa.schema(named), pa.schema(stored))

    def until(self, later: Columns) -> Columns:
        """Return the same columns as rows may have them that were written until the table had ``later`` columns.

        They have their later types and nullability; a column that was dropped is nullable.
        """
        known = dict(zip(later.physical.names, zip(later.named, later.physical, strict=True), strict=True))
        named, stored = [], []
        for field, held in zip(self.named, self.physical, strict=True):
            now = known.get(held.name, (field.with_nullable(True), held.with_nullable(True)))
            named.append(now[0].with_name(field.name))
            stored.append(now[1])
        return Columns(pa.schema(named), pa.schema(stored))


def with_dropped(columns: pa.Schema, past: Sequence[pa.Schema]) -> pa.Schema:
    """Return columns by physical name whose structs have a field in common with each earlier form of them.

    DuckDB casts a struct to another one only if they have a field in common. A struct none of whose fields an earlier
    form had gets a dropped field of it, after its own. Columns whose fields have changed are marked (``is_mixed``).

    Args:
        columns: the columns by physical name.
        past: earlier columns by physical name, oldest first.
    """

    def scanned(field: pa.Field) -> pa.Field:
        forms = _types_of(field.name, past)
        if not pa.types.is_nested(field.type) or forms == [field.type] * len(past):
            return field
        return field.with_type(_with_dropped(field.type, forms)).with_metadata({_MIXED: ""})

    return pa.schema([scanned(field) for field in columns])


def is_mixed(field: pa.Field) -> bool:
    """Return whether files may hold a column of ``with_dropped`` with other fields, or the same at other places."""
    return _MIXED in (field.metadata or {})


def _with_dropped(kind: pa.DataType, past: Sequence[pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = list(kind)
        for form in reversed(past):
            if not any(form.get_field_index(field.name) >= 0 for field in fields):
                # Its type as of the newest form that had the field: it may have been widened since.
                fields.append(form.field(0).with_type(_types_of(form.field(0).name, past)[-1]))
        return pa.struct([field.with_type(_with_dropped(field.type, _types_of(field.name, past))) for field in fields])
    return _with_inner(kind, lambda inner: _with_dropped(inner, list(map(_inner, past))))


def without_dropped(kind: pa.DataType, named: pa.DataType) -> pa.DataType:
    """Return a type of ``with_dropped`` without dropped fields, given the column's type by name."""
    if pa.types.is_struct(kind):
        own = zip(kind, named, strict=False)
        return pa.struct([held.with_type(without_dropped(held.type, field.type)) for held, field in own])
    return _with_inner(kind, lambda inner: without_dropped(inner, _inner(named)))


def _types_of(name: str, past: Iterable[pa.Schema | pa.StructType]) -> list[pa.DataType]:
    return [each.field(name).type for each in past if each.get_field_index(name) >= 0]


def _inner(kind: pa.DataType) -> pa.DataType:
    """Return the type of a list's elements or of a map's values."""
    return kind.item_type if pa.types.is_map(kind) else kind.value_type


def _with_inner(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a list or map with its elements or values of another type; another type as it is."""
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(change(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)))
    return kind


def visible_json(schema_json: str) -> str:
    """Return Spark's schema JSON as users see it, without physical names."""
    return schema_json if PHYSICAL_NAME not in schema_json else _renamed(schema_json, _as_named)


def physical_json(schema_json: str) -> str:
    """Return Spark's schema JSON with the physical names in place of the others, as Delta's log has it."""
    return schema_json if PHYSICAL_NAME not in schema_json else _renamed(schema_json, _as_stored)


def both_names_json(schema_json: str) -> str:
    """Return Spark's schema JSON with both names of each column as its name: equal ones are those of one column."""
    return _renamed(schema_json, lambda field: {**field, "name": compact([field["name"], _as_stored(field)["name"]])})


def compact(schema: object) -> str:
    """Return a schema's JSON as Spark writes it, so that equal schemas have equal texts."""
    return json.dumps(schema, separators=(",", ":"), sort_keys=True)


def _as_named(field: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in (field.get("metadata") or {}).items() if key != PHYSICAL_NAME}
    return {**field, "metadata": metadata}


def _as_stored(field: dict[str, Any]) -> dict[str, Any]:
    return _as_named({**field, "name": (field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"])})


def _renamed(schema_json: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Return the schema with each field changed, including fields of nested structs."""

    def mapped(kind: Any) -> Any:
        if isinstance(kind, str):
            return kind
        if kind["type"] == "struct":
            return {**kind, "fields": [{**change(f), "type": mapped(f["type"])} for f in kind["fields"]]}
        return {key: mapped(inner) if key in _INNER else inner for key, inner in kind.items()}

    return compact(mapped(json.loads(schema_json)))


_INNER = ("elementType", "keyType", "valueType")

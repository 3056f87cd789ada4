"""Physical names: the names of columns in files, as in Delta's column mapping.

A column gets its physical name when it is added. It never changes, and no other column of the table ever gets the same
one. So a renamed column keeps its values, and a column that is dropped and added again starts empty. If the physical
name differs from the column's name, it is stored in the column's metadata. The same applies to fields of structs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapshot.schema.json_types import arrow_columns

PHYSICAL_NAME = "tablestore.stored-name"
"""Key in a field's metadata; absent if the physical name equals the field's name."""


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


def visible_json(schema_json: str) -> str:
    """Return Spark's schema JSON as users see it, without physical names."""
    return schema_json if PHYSICAL_NAME not in schema_json else _renamed(schema_json, _as_named)


def physical_json(schema_json: str) -> str:
    """Return Spark's schema JSON with the physical names in place of the others, as Delta's log has it."""
    return schema_json if PHYSICAL_NAME not in schema_json else _renamed(schema_json, _as_stored)


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

"""What a column is called: by users, by its name; in files, by its stored name.

A stored name is given when the column is added, never changes, and no other column of the table ever has it: so a
renamed column finds its old values, and a column that is dropped and added again does not. It is kept in the metadata
of the column where it is another than the column's name. The same holds for the fields of a struct, wherever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapshot.schema.json_types import arrow_columns

PHYSICAL_NAME = "tablestore.stored-name"
"""Key in a field's metadata; absent where the field is stored under its name."""


@dataclass(frozen=True)
class Columns:
    """Columns of a table as Arrow types. Picklable.

    Attributes:
        named: by their names.
        physical: the same, in the same order, by their stored names, of struct fields too.
    """

    named: pa.Schema
    physical: pa.Schema

    @classmethod
    def of(cls, schema_json: str) -> Columns:
        """Read Spark's schema JSON, with stored names in its metadata."""
        if PHYSICAL_NAME not in schema_json:
            schema = arrow_columns(schema_json)
            return cls(schema, schema)
        return cls(arrow_columns(visible_json(schema_json)), arrow_columns(_renamed(schema_json, _as_stored)))

    def loosened(self, but: Collection[str]) -> Columns:
        """Return the same columns, all nullable except the named ones."""
        named = [f if f.name in but else f.with_nullable(True) for f in self.named]
        stored = [f.with_nullable(n.nullable) for f, n in zip(self.physical, named, strict=True)]
        return Columns(pa.schema(named), pa.schema(stored))


def visible_json(schema_json: str) -> str:
    """Return Spark's schema JSON as users see it, without physical names."""
    return schema_json if PHYSICAL_NAME not in schema_json else _renamed(schema_json, _as_named)


def compact(schema: object) -> str:
    """Write a schema as Spark does, so that equal ones have equal texts."""
    return json.dumps(schema, separators=(",", ":"), sort_keys=True)


def _as_named(field: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in (field.get("metadata") or {}).items() if key != PHYSICAL_NAME}
    return {**field, "metadata": metadata}


def _as_stored(field: dict[str, Any]) -> dict[str, Any]:
    return _as_named({**field, "name": (field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"])})


def _renamed(schema_json: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Change each field, also those of structs in it."""

    def mapped(kind: Any) -> Any:
        if isinstance(kind, str):
            return kind
        if kind["type"] == "struct":
            return {**kind, "fields": [{**change(f), "type": mapped(f["type"])} for f in kind["fields"]]}
        return {key: mapped(inner) if key in _INNER else inner for key, inner in kind.items()}

    return compact(mapped(json.loads(schema_json)))


_INNER = ("elementType", "keyType", "valueType")

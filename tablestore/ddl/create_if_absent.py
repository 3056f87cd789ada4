"""``create`` of a table that may exist already, as ``CREATE TABLE IF NOT EXISTS``."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from log_system.kafka.client.access_policy import Allowed
from snapshot.errors import AlreadyExistsError
from snapshot.schema.spark_types import visible
from tablestore.context import TableContext
from tablestore.ddl.alter import is_changeable
from tablestore.ddl.create_drop import create, exists
from tablestore.ddl.table_definition import TableDefinition
from tablestore.options.specification import LOG_SYSTEM


def create_if_absent(
    definition: TableDefinition, runtime: Mapping[str, object] | None = None, allowed: Allowed | None = None
) -> TableContext:
    """Create a table or, if there is one at the path, open it; the arguments are those of ``create``.

    Raises:
        AlreadyExistsError: the table has other columns, another key, other partitions, another log, or another value
            of an option that is given here and cannot change after ``create``; or something else is at the path.
        InvalidInputError: as for ``create``.
        UnavailableError: as for ``create``.
    """
    if not exists(definition.path):
        try:
            return create(definition, runtime, allowed)
        except AlreadyExistsError:
            # Another program may have created it in the meantime.
            if not exists(definition.path):
                raise
    table = TableContext.open(definition.path, runtime, allowed)
    if found := _differences(table, definition):
        msg = f"{table.path}: a table exists with {'; '.join(found)}. Open it, or create another one at another path."
        raise AlreadyExistsError(msg)
    return table


def _differences(table: TableContext, definition: TableDefinition) -> list[str]:
    """Return how a table differs from the one that is asked for: what it has, and what was expected."""
    spec = table.spec
    has, wants = table.options.to_properties(), definition.parsed.to_properties()
    fixed = {LOG_SYSTEM.name, *(name for name in definition.named_options if not is_changeable(name))}
    parts = [
        *_column_differences(visible(spec.schema), definition.stored_schema),
        ("primary_key", list(spec.primary_key), list(definition.primary_key)),
        ("partition_by", list(spec.partition_by), list(definition.partition_by)),
        *((f"option {name!r}", has.get(name), wants.get(name)) for name in sorted(fixed)),
    ]
    return [f"{what} {given!r}, expected {wanted!r}" for what, given, wanted in parts if given != wanted]


def _column_differences(has: StructType, wants: StructType) -> list[tuple[str, object, object]]:
    if has.fieldNames() != wants.fieldNames():
        return [("columns", has.fieldNames(), wants.fieldNames())]
    return [
        (
            f"column {a.name!r}",
            _shown(a.dataType.simpleString(), a.nullable),
            _shown(b.dataType.simpleString(), b.nullable),
        )
        for a, b in zip(has.fields, wants.fields, strict=True)
    ]


def _shown(data_type: str, nullable: bool) -> str:
    return data_type if nullable else f"{data_type} NOT NULL"

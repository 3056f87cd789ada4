"""Merges a store table's actual columns into its SQL definition.

The table's files determine which columns it has, since Python code may change them without SQL. The definition adds
Flink's names of the types, and the computed columns.
"""

from __future__ import annotations

from dataclasses import replace

from snapshot.errors import NotFoundError
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore.sql.parser.statements import Column, CreateTable, PhysicalColumn
from tablestore.sql.parser.types import of_spark


def as_stored(made: CreateTable, place: Storage) -> CreateTable:
    """Return a definition with the columns of its store table, or unchanged if the table does not exist (yet)."""
    try:
        spec = TableFiles.open(place).spec
    except NotFoundError:
        return made
    return _with_columns(made, spec)


def _with_columns(made: CreateTable, spec: TableSpec) -> CreateTable:
    words = {column.name: column for column in made.physical}
    columns: list[Column] = []
    for field in spec.schema.fields:
        said = words.get(field.name)
        if said is None or said.type.spark != field.dataType or said.type.nullable != field.nullable:
            comment = (field.metadata or {}).get("comment", None if said is None else said.comment)
            said = PhysicalColumn(field.name, of_spark(field.dataType, nullable=field.nullable), comment)
        columns.append(said)
    if columns == list(made.physical):
        return made
    before: Column | None = None
    for column in made.columns:
        if not isinstance(column, PhysicalColumn):
            # A computed column stays after the column it was declared after, or first.
            number = columns.index(before) + 1 if before in columns else 0 if before is None else len(columns)
            columns.insert(number, column)
        kept = next((each for each in columns if each.name == column.name), None)
        before = kept if kept is not None else before
    return replace(made, columns=tuple(columns))

"""The definition of a store table beside the table itself, whose columns may have been changed from Python.

The columns that a store table has are what its files say. Its definition adds Flink's words for their types, and the
columns that are computed.
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
    """Give a definition the columns of its store table; one whose table is not there (yet) stays as it is."""
    try:
        spec = TableFiles.open(place).spec
    except NotFoundError:
        return made
    return _with_columns(made, spec)


def _with_columns(made: CreateTable, spec: TableSpec) -> CreateTable:
    words = {column.name: column for column in made.columns if isinstance(column, PhysicalColumn)}
    columns: list[Column] = []
    for field in spec.schema.fields:
        said = words.get(field.name)
        if said is None or said.type.spark != field.dataType or said.type.nullable != field.nullable:
            comment = (field.metadata or {}).get("comment", None if said is None else said.comment)
            said = PhysicalColumn(field.name, of_spark(field.dataType, nullable=field.nullable), comment)
        columns.append(said)
    if columns == [column for column in made.columns if isinstance(column, PhysicalColumn)]:
        return made
    before: Column | None = None
    for column in made.columns:
        if not isinstance(column, PhysicalColumn):
            # It stays behind the column that it stands behind, or comes first.
            number = columns.index(before) + 1 if before in columns else 0 if before is None else len(columns)
            columns.insert(number, column)
        kept = next((each for each in columns if each.name == column.name), None)
        before = kept if kept is not None else before
    return replace(made, columns=tuple(columns))

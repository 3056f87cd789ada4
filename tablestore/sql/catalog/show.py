"""Runs ``SHOW`` and ``DESCRIBE``, without Spark."""

from __future__ import annotations

from typing import Final

from snapshot.errors import InvalidInputError
from tablestore.sql.catalog.binding import connector_of
from tablestore.sql.catalog.definitions import Definition, Made
from tablestore.sql.catalog.results import Result
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.parser.render import render
from tablestore.sql.parser.statements import (
    Column,
    ComputedColumn,
    CreateTable,
    CreateView,
    Describe,
    MetadataColumn,
    SetOption,
    ShowCreate,
    ShowTables,
)

_DESCRIBED: Final = ("name", "type", "null", "key", "extras", "watermark")


def show_tables(scope: Scope, shown: ShowTables) -> Result:
    """List tables and views with their names and kinds."""
    found = [each for each in scope.all() if not shown.views_only or isinstance(each.made, CreateView)]
    return Result(shown, columns=("name", "kind"), rows=tuple((each.name, kind_of(each)) for each in found))


def show_create(made: Made, shown: ShowCreate) -> Result:
    """Return the statement that creates a table or view, with credentials masked."""
    if shown.is_view is isinstance(made, CreateTable):
        msg = f"'{shown.name}' is a {'table' if shown.is_view else 'view'}."
        raise InvalidInputError(msg)
    return Result(shown, columns=("statement",), rows=((render(made),),))


def describe(made: Made, described: Describe) -> Result:
    """List the columns of a table, as Flink does, with their comments if any has one; for a view, its statement."""
    if isinstance(made, CreateView):
        return Result(described, columns=("view",), rows=((render(made),),))
    rows = tuple(_described(made, column) for column in made.columns)
    if all(column.comment is None for column in made.columns):
        return Result(described, columns=_DESCRIBED, rows=rows)
    comments = (column.comment or "" for column in made.columns)
    commented = tuple((*row, comment) for row, comment in zip(rows, comments, strict=True))
    return Result(described, columns=(*_DESCRIBED, "comment"), rows=commented)


def show_settings(scope: Scope, shown: SetOption) -> Result:
    """List the session's settings."""
    return Result(shown, columns=("key", "value"), rows=scope.settings.items())


def kind_of(definition: Definition) -> str:
    """Return the kind of a definition: "view", "store table" or the connector's name."""
    if isinstance(definition.made, CreateView):
        return "view"
    connector = connector_of(definition.made)
    return "store table" if connector is None else connector.value


def _described(made: CreateTable, column: Column) -> tuple[str, ...]:
    key = f"PRI({', '.join(made.primary_key)})" if column.name in made.primary_key else ""
    watermark = made.watermark.expression if made.watermark and made.watermark.column == column.name else ""
    if isinstance(column, ComputedColumn):
        return column.name, "", "", key, f"AS {column.expression}", watermark
    extras = ""
    if isinstance(column, MetadataColumn):
        extras = f"METADATA FROM '{column.key}'" + " VIRTUAL" * column.is_virtual
    return column.name, column.type.text, "TRUE" if column.type.nullable else "FALSE", key, extras, watermark

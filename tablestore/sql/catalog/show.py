"""Runs ``SHOW`` and ``DESCRIBE``; Spark is needed only for the types of computed columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructField

from snapshot.errors import InvalidInputError
from tablestore.sql.catalog.binding import connector_of, is_proctime_column, schema_of, stored_columns
from tablestore.sql.catalog.definitions import Definition, Made
from tablestore.sql.catalog.results import Result
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_frames import with_computed
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
from tablestore.sql.parser.types import of_spark

_DESCRIBED: Final = ("name", "type", "null", "key", "extras", "watermark")


def show_tables(scope: Scope, shown: ShowTables) -> Result:
    """List tables and views with their names and kinds."""
    parts = {"%": ".*", "_": "."}
    pattern = re.compile("".join(parts.get(each) or re.escape(each) for each in shown.like), re.DOTALL)
    found = [each for each in scope.all() if bool(pattern.fullmatch(each.name)) is not shown.is_negated]
    if shown.views_only:
        found = [each for each in found if isinstance(each.made, CreateView)]
    return Result(shown, columns=("name", "kind"), rows=tuple((each.name, kind_of(each)) for each in found))


def show_create(made: Made, shown: ShowCreate) -> Result:
    """Return the statement that creates a table or view, with credentials masked."""
    if shown.is_view is isinstance(made, CreateTable):
        msg = f"'{shown.name}' is a {'table' if shown.is_view else 'view'}."
        raise InvalidInputError(msg)
    return Result(shown, columns=("statement",), rows=((render(made),),))


def describe(scope: Scope, made: Made, described: Describe) -> Result:
    """List the columns of a table, as Flink does, with their comments if any has one; for a view, its statement."""
    if isinstance(made, CreateView):
        return Result(described, columns=("view",), rows=((render(made),),))
    computed = _computed(scope, made)
    rows = tuple(_described(made, column, computed) for column in made.columns)
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


def _computed(scope: Scope, made: CreateTable) -> Mapping[str, StructField]:
    """Return the computed columns, as Spark computes them, by name, where it can; without ``PROCTIME()``."""
    wanted = [each for each in made.computed if not is_proctime_column(each)]
    if not wanted:
        return {}
    stored = scope.spark.createDataFrame([], schema_of(stored_columns(made)))
    found = {}
    for each in wanted:
        # Another program may have dropped a column that it is computed from. A query says so.
        with suppress(AnalysisException):
            found[each.name] = with_computed(stored, replace(made, columns=(each,))).schema[0]
    return found


def _described(made: CreateTable, column: Column, computed: Mapping[str, StructField]) -> tuple[str, ...]:
    key = f"PRI({', '.join(made.primary_key)})" if column.name in made.primary_key else ""
    is_timed = made.watermark is not None and made.watermark.column == column.name
    watermark = made.watermark.expression if made.watermark is not None and is_timed else ""
    if isinstance(column, ComputedColumn):
        extras = f"AS {column.expression}"
        if is_proctime_column(column):
            return column.name, "TIMESTAMP_LTZ(3) *PROCTIME*", "FALSE", key, extras, watermark
        if (field := computed.get(column.name)) is None:
            return column.name, "", "", key, extras, watermark
        text, nullable = _text_of(field), field.nullable
    else:
        text, nullable, extras = column.type.text, column.type.nullable, ""
    if isinstance(column, MetadataColumn):
        extras = f"METADATA FROM '{column.key}'" + " VIRTUAL" * column.is_virtual
    return column.name, text + " *ROWTIME*" * is_timed, "TRUE" if nullable else "FALSE", key, extras, watermark


def _text_of(field: StructField) -> str:
    try:
        return of_spark(field.dataType).text
    except ValueError:
        # An interval, say, which only a computed column can be.
        return field.dataType.simpleString().upper()

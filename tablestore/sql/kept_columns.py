"""Checks that the state of a query fits the columns of the tables it reads.

Joins, Top-N, DISTINCT and the changes of keyed tables keep rows in the state, by the places of their columns. Spark
checks only the types when a query continues, and would take the values of one column for those of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import StructType
from sqlglot import exp

from snapshot.errors import InvalidInputError
from snapshot.schema.physical_names import physical_json
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore.sql.catalog.binding import name_of
from tablestore.sql.catalog.definitions import Definition
from tablestore.sql.catalog.hints import with_hints
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.settings import NAME
from tablestore.sql.catalog.table_references import definition_of, is_inside, tables_in
from tablestore.sql.parser.statements import ComputedColumn, CreateTable, CreateView, Insert, Query
from tablestore.sql.queries.batch_query import open_table
from tablestore.sql.queries.sources import is_endless, keeps_rows

COLUMNS: Final = "tablestore-columns"
"""The file in a checkpoint that holds the columns of the tables whose rows are in the query's state."""
_KEEP_ROWS: Final = (exp.Join, exp.In, exp.Exists, exp.Distinct, exp.Window, exp.Limit, exp.Fetch, exp.SetOperation)


def check_columns(scope: Scope, statement: Insert, checkpoint: str) -> None:
    """Check that the tables of a query have the columns that are in its state; store them on the first call.

    A renamed column is the same one. A query without a name starts over when a definition changes, so it is not
    checked.

    Raises:
        InvalidInputError: columns were added, moved, dropped or changed.
    """
    name = scope.settings.get(NAME)
    if not name:
        return
    queries = list(_queries(scope, with_hints(scope, statement.query)))
    keeps_all = any(query.tree.find(*_KEEP_ROWS) for query in queries)
    folder = Storage.at(checkpoint)
    # Without Spark's own file, the query has not begun.
    text = folder.read(COLUMNS) if folder.exists("metadata") else None
    known: dict[str, list[list[str]]] = {} if text is None else json.loads(text)
    found: dict[str, list[list[str]]] = {}
    for each in dict.fromkeys(each for query in queries for each in tables_in(query)):
        definition = definition_of(scope, each)
        made = definition.made
        if not isinstance(made, CreateTable) or is_inside(scope, each) or not is_endless(scope, each):
            continue
        in_changes = keeps_rows(open_table(scope, each))
        if not in_changes and not keeps_all:
            continue
        columns = found[name_of(made)] = _columns(scope, definition, computed=keeps_all)
        before = known.get(name_of(made), columns)
        # Joins may leave out a column that was added at the end.
        if columns[: len(before)] != before or (in_changes and columns != before):
            msg = (
                f"query '{name}' into '{statement.target}': columns of '{name_of(made)}' were added, moved, dropped or "
                "changed since the query began, and its state keeps rows with the columns as they were. Start over "
                f"with another '{NAME}'; the query then reads all rows again."
            )
            raise InvalidInputError(msg)
    if found != known:
        folder.put(COLUMNS, json.dumps(found).encode())


def _queries(scope: Scope, query: Query) -> Iterator[Query]:
    """Yield a query and those of the views that it reads."""
    yield query
    for name in tables_in(query):
        made = definition_of(scope, name).made
        if isinstance(made, CreateView):
            yield from _queries(scope, with_hints(scope, made.query))


def _columns(scope: Scope, definition: Definition, *, computed: bool) -> list[list[str]]:
    """Return the names and types of a table's columns in their order; those of a store table by physical name."""
    assert isinstance(definition.made, CreateTable), "views have no columns of their own"
    stored: dict[str, list[str]] = {}
    if definition.path is not None:
        spec = TableFiles.open(Storage.at(scope.place_of(definition))).spec
        physical = StructType.fromJson(json.loads(physical_json(spec.schema_json)))
        pairs = zip(spec.arrow.names, physical, strict=True)
        stored = {name: [field.name, field.dataType.simpleString()] for name, field in pairs}
    columns: list[list[str]] = []
    for each in definition.made.columns:
        if not isinstance(each, ComputedColumn):
            columns.append(stored.get(each.name) or [each.name, each.type.spark.simpleString()])
        elif computed:
            columns.append([each.name, "computed"])
    return columns

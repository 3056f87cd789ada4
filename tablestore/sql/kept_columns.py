"""Checks that the state of a query fits the columns of the tables it reads.

Joins, Top-N, DISTINCT and the changes of keyed tables keep rows in the state, by the places of their columns, and
groups keep what was made of columns by their names. Spark checks only the types when a query continues, and would take
the values of one column for those of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType
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
from tablestore.sql.catalog.table_references import definition_of, definitions_in, is_inside, tables_in
from tablestore.sql.parser.statements import ComputedColumn, CreateTable, CreateView, Insert, Query
from tablestore.sql.queries.batch_query import open_table
from tablestore.sql.queries.sources import is_endless, keeps_rows

COLUMNS: Final = "tablestore-columns"
"""The file in a checkpoint that holds the columns of the tables of which something is in the query's state."""
_KEEP_ROWS: Final = (exp.Distinct, exp.Window, exp.Limit, exp.Fetch, exp.Exists)
_KEEP_VALUES: Final = (exp.Group, exp.AggFunc)


@dataclass(frozen=True)
class _Kept:
    """The columns of a table of which a state has something.

    Attributes:
        places: names and types of the columns in their order, of a store table by physical name; empty if the state
            has none of its rows.
        names: the physical name of each column and field of a store table that the query may name, in lower case.
    """

    places: list[list[str]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def goes_on_as(self, now: _Kept, *, may_grow: bool) -> bool:
        """Return whether a state still fits; if it ``may_grow``, columns may have been added at the end."""
        until = len(self.places) if may_grow else None
        return now.places[:until] == self.places and all(
            now.names.get(name, stored) == stored for name, stored in self.names.items()
        )


def check_columns(scope: Scope, statement: Insert, checkpoint: str) -> None:
    """Check that the tables of a query have the columns that are in its state; store them on the first call.

    A renamed column is the same one, but another one under its old name is not. A query without a name starts over
    when a definition changes, so it is not checked.

    Raises:
        InvalidInputError: columns were added, moved, dropped or changed.
    """
    name = scope.settings.get(NAME)
    if not name:
        return
    views = [each.made for each in definitions_in(scope, statement.query) if isinstance(each.made, CreateView)]
    queries = [with_hints(scope, each) for each in (statement.query, *(view.query for view in views))]
    keeps_all = any(_keeps_rows(query) for query in queries)
    keeps_values = keeps_all or any(query.tree.find(*_KEEP_VALUES) for query in queries)
    keeps_all = keeps_all or (keeps_values and _names_by_place(views, queries))
    said = {each.name.lower() for query in queries for each in query.tree.find_all(exp.Identifier)}
    folder = Storage.at(checkpoint)
    # Without Spark's own file, the query has not begun.
    text = folder.read(COLUMNS) if folder.exists("metadata") else None
    known = {} if text is None else {table: _Kept(**kept) for table, kept in json.loads(text).items()}
    found: dict[str, _Kept] = {}
    for each in dict.fromkeys(each for query in queries for each in tables_in(query)):
        definition = definition_of(scope, each)
        made = definition.made
        if not isinstance(made, CreateTable) or is_inside(scope, each) or not is_endless(scope, each):
            continue
        in_changes = keeps_rows(open_table(scope, each))
        if not in_changes and not keeps_values:
            continue
        named, stored = _columns(scope, definition)
        places = _places(made, named, stored, computed=keeps_all) if in_changes or keeps_all else []
        names = {path: name for path, name in _names(named, stored) if keeps_values and path.partition(".")[0] in said}
        now = found[name_of(made)] = _Kept(places, names)
        # Joins may leave out a column that was added at the end.
        if not known.get(name_of(made), now).goes_on_as(now, may_grow=not in_changes):
            msg = (
                f"query '{name}' into '{statement.target}': columns of '{name_of(made)}' were added, moved, dropped or "
                "changed since the query began, and its state has the columns as they were. Start over "
                f"with another '{NAME}'; the query then reads all rows again."
            )
            raise InvalidInputError(msg)
    if found != known:
        folder.put(COLUMNS, json.dumps({table: asdict(kept) for table, kept in found.items()}).encode())


def _keeps_rows(query: Query) -> bool:
    """Return whether a query keeps rows in its state, whatever its tables."""
    tree = query.tree
    return (
        tree.find(*_KEEP_ROWS) is not None
        or any(not isinstance(each.this, exp.Unnest | exp.Lateral) for each in tree.find_all(exp.Join))
        or any(each.args.get("query") for each in tree.find_all(exp.In))
        or any(each.args.get("distinct") or not isinstance(each, exp.Union) for each in tree.find_all(exp.SetOperation))
    )


def _names_by_place(views: Sequence[CreateView], queries: Sequence[Query]) -> bool:
    """Return whether columns of ``*`` get names by their places, as in ``(SELECT * FROM t) AS q (a, b)``."""
    named = [view.query for view in views if view.columns]
    for query in queries:
        aliases = query.tree.find_all(exp.TableAlias)
        if query.tree.find(exp.SetOperation) or any(each.args.get("columns") for each in aliases):
            named.append(query)
    return any(not isinstance(each.parent, exp.Count) for query in named for each in query.tree.find_all(exp.Star))


def _columns(scope: Scope, definition: Definition) -> tuple[StructType, StructType]:
    """Return the columns of a store table, and the same ones by physical name; none of a table of a connector."""
    if definition.path is None:
        return StructType(), StructType()
    schema = TableFiles.open(Storage.at(scope.place_of(definition))).spec.schema_json
    return StructType.fromJson(json.loads(schema)), StructType.fromJson(json.loads(physical_json(schema)))


def _places(made: CreateTable, named: StructType, stored: StructType, *, computed: bool) -> list[list[str]]:
    """Return the names and types of a table's columns in their order; those of a store table by physical name."""
    held = {name: [each.name, each.dataType.simpleString()] for name, each in zip(named.names, stored, strict=True)}
    columns: list[list[str]] = []
    for each in made.columns:
        if not isinstance(each, ComputedColumn):
            columns.append(held.get(each.name) or [each.name, each.type.spark.simpleString()])
        elif computed:
            columns.append([each.name, "computed"])
    return columns


def _names(named: DataType, stored: DataType, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each column and field, in lower case, and its physical name."""
    if isinstance(named, StructType) and isinstance(stored, StructType):
        for one, other in zip(named, stored, strict=True):
            at = f"{path}.{one.name.lower()}" if path else one.name.lower()
            yield at, other.name
            yield from _names(one.dataType, other.dataType, at)
    elif isinstance(named, ArrayType) and isinstance(stored, ArrayType):
        yield from _names(named.elementType, stored.elementType, f"{path}.element")
    elif isinstance(named, MapType) and isinstance(stored, MapType):
        yield from _names(named.keyType, stored.keyType, f"{path}.key")
        yield from _names(named.valueType, stored.valueType, f"{path}.value")

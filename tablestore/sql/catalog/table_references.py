"""The tables and views that a query names."""

from __future__ import annotations

from sqlglot import exp

from snapshot.errors import NotFoundError
from tablestore.inspect.metadata_tables import INSPECTED
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.parser.error_location import RefusedError, placed
from tablestore.sql.parser.statements import Query


def tables_in(query: Query) -> tuple[str, ...]:
    """Give the names of tables and views that a query reads, without those it defines itself.

    Raises:
        InvalidInputError: a name has others before it.
    """
    own = {cte.alias for cte in query.tree.find_all(exp.CTE)}
    found: dict[str, None] = {}
    for table in query.tree.find_all(exp.Table):
        if table.db:
            reason = f"'{table.db}.{table.name}': a warehouse is one database. Give the name of the table alone."
            raise placed(RefusedError(table, reason), query)
        if table.name not in own and isinstance(table.this, exp.Identifier):
            found[table.name] = None
    return tuple(found)


def is_inside(scope: Scope, name: str) -> bool:
    """Tell whether a name is that of something inside a table, and no table's or view's own."""
    table, _, what = name.rpartition("$")
    return bool(table) and what in INSPECTED and scope.find(name) is None


def check_there(scope: Scope, query: Query) -> None:
    """See that all tables and views that a query reads are there.

    Raises:
        NotFoundError: one is not; says where it is named, and which may be meant.
    """
    for name in tables_in(query):
        if scope.find(name) is None and not is_inside(scope, name):
            node = next(each for each in query.tree.find_all(exp.Table) if each.name == name)
            raise NotFoundError(str(placed(RefusedError(node, str(scope.missing(name))), query)))

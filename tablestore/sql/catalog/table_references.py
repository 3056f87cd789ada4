"""The tables and views that a query names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from snapshot.errors import NotFoundError
from tablestore.inspect.metadata_tables import INSPECTED, OF_SNAPSHOT
from tablestore.sql.catalog.binding import is_proctime_column
from tablestore.sql.catalog.definitions import Definition
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.parser.error_location import RefusedError, placed
from tablestore.sql.parser.functions.calls import called
from tablestore.sql.parser.functions.time_functions import PROCTIME
from tablestore.sql.parser.statements import CreateTable, CreateView, Query

AUDIT_LOG: Final = "audit_log"
BINLOG: Final = "binlog"
COMPACTED: Final = "ro"
METADATA_TABLES: Final = (*INSPECTED, AUDIT_LOG, BINLOG, COMPACTED)
"""What follows the name of a table and ``$``."""
TAKE_HINTS: Final = (*OF_SNAPSHOT, AUDIT_LOG, BINLOG)
"""Those of which a hint chooses the snapshot or the changes."""


def tables_in(query: Query) -> tuple[str, ...]:
    """Return the names of the tables and views that a query reads, without its own common table expressions.

    Raises:
        InvalidInputError: a name is qualified with a database.
    """
    own = {cte.alias for cte in query.tree.find_all(exp.CTE)}
    tables: dict[str, None] = {}
    for table in query.tree.find_all(exp.Table):
        if table.db:
            reason = f"'{table.db}.{table.name}': a warehouse is one database. Give the name of the table alone."
            raise placed(RefusedError(table, reason), query)
        if table.name not in own and isinstance(table.this, exp.Identifier):
            tables[table.name] = None
    return tuple(tables)


def is_inside(scope: Scope, name: str) -> bool:
    """Return whether a name is that of a metadata table such as ``t$snapshots``, and not of a table or view itself."""
    table, _, what = name.rpartition("$")
    return bool(table) and what in METADATA_TABLES and scope.find(name, stored=False) is None


def is_change_table(scope: Scope, name: str) -> bool:
    """Return whether a name is ``t$audit_log`` or ``t$binlog``, the changes of a table, which are unbounded."""
    return is_inside(scope, name) and name.rpartition("$")[2] in {AUDIT_LOG, BINLOG}


def definition_of(scope: Scope, name: str) -> Definition:
    """Return the definition of a table or view; for a metadata table, that of its table.

    Raises:
        NotFoundError: there is no such table or view.
    """
    return scope.definition(name.rpartition("$")[0] if is_inside(scope, name) else name)


def definitions_in(scope: Scope, query: Query) -> Iterator[Definition]:
    """Yield the definitions of the tables and views that a query reads, after each view those that it reads itself."""
    for name in tables_in(query):
        found = definition_of(scope, name)
        yield found
        if isinstance(found.made, CreateView):
            yield from definitions_in(scope, found.made.query)


def check_there(scope: Scope, query: Query) -> None:
    """Check that all tables and views that a query reads exist.

    Raises:
        NotFoundError: one does not; the message has its position in the text and a similar name.
    """
    for name in tables_in(query):
        reason = missing_reason(scope, name)
        if reason:
            node = next(each for each in query.tree.find_all(exp.Table) if each.name == name)
            raise NotFoundError(str(placed(RefusedError(node, reason), query)))


def missing_reason(scope: Scope, name: str) -> str:
    """Return that there is no table or view of a name, with similar ones; empty if there is one."""
    if scope.find(name, stored=False) is not None or is_inside(scope, name):
        return ""
    table, _, what = name.rpartition("$")
    if table and scope.find(table, stored=False) is not None:
        return f"'{name}': there is no metadata table '{what}'. There are {', '.join(METADATA_TABLES)}."
    return str(scope.missing(name))


def is_proctime(scope: Scope, moment: exp.Expr, query: Query) -> bool:
    """Return whether the time of FOR SYSTEM_TIME AS OF is ``PROCTIME()`` or a column of it."""
    if isinstance(moment, exp.Column):
        return moment.name.lower() in _proctimes(scope, query)
    return called(moment) == PROCTIME


def _proctimes(scope: Scope, query: Query) -> set[str]:
    """Return the lower-case names of all ``PROCTIME()`` columns that a query reads, through views too."""
    found = {alias.alias.lower() for alias in query.tree.find_all(exp.Alias) if called(alias.this) == PROCTIME}
    for name in tables_in(query):
        made = definition_of(scope, name).made
        if not isinstance(made, CreateTable):
            found |= _proctimes(scope, made.query)
            continue
        found |= {each.name.lower() for each in made.computed if is_proctime_column(each)}
    return found

"""Plans lookup joins: ``JOIN t FOR SYSTEM_TIME AS OF s.proctime``, of a stream with a store table's current rows.

The table may be a view of store tables, such as of those rows that are in the newest partition.

Spark reads a static table as planned at the start of a query. So each micro-batch is joined by itself, with the
snapshot that is the newest at that time. Results already written are not corrected when the table changes later.
Tables of a connector are joined by ``temporal_joins.py``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from sqlglot import exp

from tablestore.spark.connect import is_remote
from tablestore.sql.catalog.binding import connector_of
from tablestore.sql.catalog.hints import LookupHint, lookup_hints
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_references import tables_in
from tablestore.sql.parser.statements import CreateView
from tablestore.sql.queries.append_query import is_grouped
from tablestore.sql.queries.batch_query import batch_table, over
from tablestore.sql.queries.query_inputs import Parts, QueryInput
from tablestore.sql.queries.relation import Relation
from tablestore.sql.queries.unsupported import BATCH, refuse

_INSTEAD: Final = "INSERT its result INTO a table and read that"


def lookups_in(select: exp.Select) -> list[exp.Join]:
    """Return the lookup joins of a SELECT."""
    return [join for join in select.args.get("joins") or [] if join.this.args.get("version") is not None]


def side_of(join: exp.Join) -> str:
    """Return ``INNER`` or ``LEFT``.

    Raises:
        RefusedError: the join is of another kind.
    """
    side = join.side or join.kind or "INNER"
    if side not in {"INNER", "LEFT"} or join.method or join.args.get("using"):
        name = join.method or ("USING in a" if join.args.get("using") else side)
        refuse(join.this, f"{name} JOIN FOR SYSTEM_TIME AS OF", "use INNER or LEFT JOIN ... ON")
    return side


def take_lookups(scope: Scope, select: exp.Select) -> dict[str, exp.Table]:
    """Replace the lookup tables of a SELECT by names of frames.

    Args:
        scope: the session's scope.
        select: the SELECT, which is changed in place.

    Returns:
        The replaced tables, by the names of their frames.

    Raises:
        RefusedError: a lookup table is a view of other than store tables, or the join is neither INNER nor LEFT.
    """
    found: dict[str, exp.Table] = {}
    for number, join in enumerate(lookups_in(select)):
        table = join.this
        made = scope.definition(table.name).made
        if isinstance(made, CreateView):
            _check_view(scope, made, table)
        side_of(join)
        key = f"{table.name}@lookup{number}"
        place = exp.to_table("x")
        place.set("this", exp.to_identifier(key, quoted=True))
        place.set("alias", exp.TableAlias(this=exp.to_identifier(table.alias or table.name, quoted=True)))
        table.replace(place)
        found[key] = table
    _check_hints(select, found)
    return found


def _check_hints(select: exp.Select, tables: dict[str, exp.Table]) -> None:
    """Check that LOOKUP hints are of store tables; the rows of others are kept as state, not looked up again.

    Raises:
        RefusedError: one is not.
    """
    for hint in lookup_hints(select):
        if not any(map(hint.is_of, tables.values())):
            why = "its rows are read as a stream; a row that has no match when it comes stays without"
            refuse(select.expressions[0], f"hint LOOKUP for '{hint.table}', a table of a connector,", why)


def _check_view(scope: Scope, view: CreateView, place: exp.Table) -> None:
    """Check that a view reads store tables only, whose current rows each micro-batch can read.

    Raises:
        RefusedError: it reads a table of a connector.
    """
    for name in tables_in(view.query):
        definition = scope.find(name)
        if definition is None:
            continue
        if isinstance(definition.made, CreateView):
            _check_view(scope, definition.made, place)
        elif connector_of(definition.made) is not None:
            why = f"'{name}' in it is a table of a connector; INSERT its rows INTO a store table, and look that up"
            refuse(place, f"the view '{view.name}' FOR SYSTEM_TIME AS OF", why)


def looked_up(scope: Scope, select: exp.Select, parts: Parts, tables: dict[str, exp.Table]) -> Relation:
    """Plan a SELECT with lookup joins.

    Raises:
        RefusedError: it cannot be computed for each micro-batch by itself.
    """
    stream = _stream(select, parts)
    rows = stream.relation.rows
    assert rows is not None, "rows are only added"
    others = {key: frame for key, frame in parts.frames().items() if key != stream.key}
    if others and is_remote(scope.spark):
        why = f"not over Spark Connect: their rows cannot be joined with a micro-batch on the server; {_INSTEAD}"
        refuse(select.expressions[0], "a lookup join with further tables", why)
    retries = {
        key: hint
        for hint in lookup_hints(select)
        for key, table in tables.items()
        if hint.attempts is not None and hint.is_of(table)
    }
    joined = _LookedUp(scope, select, tables, stream.key, others, retries)
    # The result's columns do not depend on rows: a lookup table has the same columns at any time.
    shape = joined(rows)
    return Relation(tuple(shape.columns), rows, chained=stream.relation.chained, each=joined, shape=shape)


@dataclass(frozen=True)
class _LookedUp:
    """Joins a micro-batch with the newest rows of tables; over Spark Connect, in a process of the server.

    Attributes:
        scope: where the tables are defined.
        select: the SELECT.
        tables: the looked-up tables, by the names of their frames.
        stream: the name of the micro-batch's frame.
        others: further frames by their names; none over Spark Connect.
        retries: how often rows without a match are looked up again, by the name of the looked-up frame.
    """

    scope: Scope
    select: exp.Select
    tables: dict[str, exp.Table]
    stream: str
    others: dict[str, DataFrame]
    retries: dict[str, LookupHint]

    def __call__(self, batch: DataFrame) -> DataFrame:
        """Return the joined rows of a micro-batch."""
        # A micro-batch has its own Spark session, and everything joined with it must be read in that session.
        scope = self.scope.within(batch.sparkSession)
        frames = {key: batch_table(scope, table.name, depth=0) for key, table in self.tables.items()}
        frames |= {**self.others, self.stream: batch}
        # The shape of the result is asked for before there is a micro-batch.
        for key, hint in self.retries.items() if not batch.isStreaming else ():
            missed = _missed(self.select, key)
            for _ in range(hint.attempts or 0):
                if over(batch.sparkSession, missed, frames).isEmpty():
                    break
                time.sleep((hint.delay_ms or 0) / 1000)
                frames[key] = batch_table(scope, self.tables[key].name, depth=0)
        return over(batch.sparkSession, self.select, frames)


def _missed(select: exp.Select, key: str) -> exp.Select:
    """Return the query of the rows that have no match in a looked-up frame."""
    made = exp.select("1")
    made.set("from_", select.args["from_"].copy())
    for join in select.args["joins"]:
        made.append("joins", join.copy())
        if join.this.name == key:
            made.args["joins"][-1].set("side", "LEFT")
            made.args["joins"][-1].set("kind", "ANTI")
            return made
    raise AssertionError(key)


def _stream(select: exp.Select, parts: Parts) -> QueryInput:
    at = select.expressions[0]
    if is_grouped(select) or select.args.get("distinct"):
        refuse(at, "an aggregate or DISTINCT over a lookup join", _INSTEAD)
    if len(parts.endless) != 1:
        refuse(at, "a lookup with a join of unbounded tables", _INSTEAD)
    (stream,) = parts.endless
    if not stream.relation.grows:
        why = (
            "a retraction could differ from the row that was added; join the tables without FOR SYSTEM_TIME AS OF, or "
            f"{BATCH}"
        )
        refuse(stream.place, f"a lookup for '{stream.alias}', whose rows change,", why)
    return stream

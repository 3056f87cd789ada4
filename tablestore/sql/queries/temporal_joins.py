"""Plans joins FOR SYSTEM_TIME AS OF with tables of a connector whose rows change: of each key, with one version.

A row is joined with the version that is valid in its micro-batch, which the operator keeps as state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.option_names import Connector
from tablestore.sql.catalog.binding import connector_of, is_changelog
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.operators.version_join import DELETED, TIME, version_join
from tablestore.sql.parser.qualify import Source, qualified
from tablestore.sql.parser.statements import CreateTable, Query
from tablestore.sql.queries.joins import JOINED, JoinedRows, equalities, over_join
from tablestore.sql.queries.lookup_joins import is_proctime, lookups_in, side_of
from tablestore.sql.queries.query_inputs import Parts, QueryInput
from tablestore.sql.queries.relation import of_rows
from tablestore.sql.queries.sources import is_endless, source
from tablestore.sql.queries.unsupported import refuse


@dataclass(frozen=True)
class Versioned:
    """A table whose versions are joined.

    Attributes:
        node: the table in the query.
        made: its definition.
        is_left: whether rows without a version are kept.
    """

    node: exp.Table
    made: CreateTable
    is_left: bool

    @property
    def alias(self) -> str:
        """The table's alias in the query."""
        return self.node.alias or self.node.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return tuple(column.name for column in self.made.columns)


def take_versions(scope: Scope, select: exp.Select, query: Query) -> dict[str, Versioned]:
    """Replace the tables of a SELECT whose versions are joined by names.

    Args:
        scope: the session's scope.
        select: the SELECT, which is changed in place.
        query: the whole query that contains it.

    Returns:
        The replaced tables, by these names; store tables are not among them.

    Raises:
        RefusedError: a table has no versions, or the join is neither INNER nor LEFT.
    """
    found: dict[str, Versioned] = {}
    for number, join in enumerate(lookups_in(select)):
        table = join.this
        what = f"'{table.name}' FOR SYSTEM_TIME AS OF"
        made = scope.definition(table.name).made
        if not isinstance(made, CreateTable) or connector_of(made) is None:
            continue
        if connector_of(made) is not Connector.UPSERT and not (is_changelog(made) and made.primary_key):
            why = "its rows have no versions: CREATE it as 'upsert-kafka', or in a changelog format with a PRIMARY KEY"
            refuse(table, what, why)
        if not is_endless(scope, made.name):
            refuse(table, f"{what} a bounded table", "remove 'scan.bounded.mode'")
        moment = table.args["version"].expression
        if not is_proctime(scope, moment, query):
            why = "only current rows can be joined: use a column AS PROCTIME(), or join the tables"
            refuse(moment, f"{what} a time that is not PROCTIME()", why)
        key = f"{table.name}@version{number}"
        found[key] = Versioned(table.copy(), made, side_of(join) == "LEFT")
        place = exp.to_table("x")
        place.set("this", exp.to_identifier(key, quoted=True))
        place.set("alias", exp.TableAlias(this=exp.to_identifier(found[key].alias, quoted=True)))
        table.replace(place)
    return found


def version_joined(
    scope: Scope, select: exp.Select, parts: Parts, versions: Mapping[str, Versioned], place: Callable[[], StatePlace]
) -> tuple[exp.Select, Parts]:
    """Join the input of a SELECT with versions of tables.

    Args:
        scope: the session's scope.
        select: the SELECT, as `take_versions` leaves it.
        parts: its other inputs.
        versions: the tables.
        place: returns where the next operator keeps its state.

    Returns:
        The SELECT over the join, and the join as its input.

    Raises:
        RefusedError: the join is not supported; the message has an alternative.
    """
    stream = _stream(select, parts)
    rows = stream.relation.rows
    assert rows is not None, "`_stream` says so"
    sources = parts.sources() | {each.alias.lower(): Source(each.alias, each.names) for each in versions.values()}
    said = qualified(select, sources)
    names = {(stream.alias, name): f"_{number}" for number, name in enumerate(stream.relation.names)}
    # The versions of a micro-batch are before its rows.
    rows = rows.toDF(*names.values()).withColumn(TIME, F.lit(1).cast("bigint"))
    conditions: list[exp.Expr] = []
    for join in said.args.get("joins") or []:
        each = versions[join.this.name]
        own = {name: f"_{len(names) + number}" for number, name in enumerate(each.names)}
        frame = _versions(scope, each, own)
        equal, others = equalities(join.args.get("on"), names, each.alias)
        pairs = {right: left for left, right in equal}
        missing = [name for name in each.made.primary_key if name not in pairs]
        if missing:
            why = f"ON must equal its whole PRIMARY KEY ({', '.join(each.made.primary_key)}) with columns of the rows"
            refuse(each.node, f"a join FOR SYSTEM_TIME AS OF without '{missing[0]}'", why)
        others += [_equal(pairs.pop(name), own[name]) for name in list(pairs) if name not in each.made.primary_key]
        if others and each.is_left:
            why = "they would have to be met by the one version of a row's time; use an INNER JOIN, or CASE in SELECT"
            refuse(each.node, "a LEFT JOIN FOR SYSTEM_TIME AS OF with further conditions in ON", why)
        keys = [_key(rows, pairs[name], frame, own[name], each) for name in each.made.primary_key]
        rows = version_join(rows, frame, keys, place(), is_left=each.is_left)
        names |= {(each.alias, name): column for name, column in own.items()}
        conditions += others
    relation = of_rows(rows.drop(TIME), chained=True)
    made, part = over_join(said, JoinedRows(relation, names), conditions)
    return made, Parts((part,), parts.inner)


def _stream(select: exp.Select, parts: Parts) -> QueryInput:
    """Return the input whose rows are joined."""
    if len(parts.inputs) != 1 or len(select.args.get("joins") or []) != len(lookups_of(select)):
        why = "INSERT the other join INTO a table, and read that"
        refuse(select.expressions[0], "another join in a query with a join FOR SYSTEM_TIME AS OF", why)
    (stream,) = parts.inputs
    if not stream.relation.grows or not stream.relation.endless or stream.relation.each is not None:
        why = (
            "its rows may be retracted later, when the version of their time is no longer kept; join without the clause"
        )
        refuse(stream.place, f"a join FOR SYSTEM_TIME AS OF of '{stream.alias}', whose rows change or end,", why)
    if stream.relation.final:
        why = "INSERT its result INTO a table, and read that"
        refuse(stream.place, "a join FOR SYSTEM_TIME AS OF over windows or outer joins of event time", why)
    return stream


def lookups_of(select: exp.Select) -> list[exp.Join]:
    """Return the joins of a SELECT whose tables `take_versions` has replaced."""
    return [join for join in select.args.get("joins") or [] if "@version" in join.this.name]


def _versions(scope: Scope, each: Versioned, own: Mapping[str, str]) -> DataFrame:
    """Return the versions of a table: its columns by their new names, ``_time``, ``_seq`` and ``_deleted``."""
    changes = source(scope, each.made).changes()
    changes = changes.where(F.col(CHANGE_TYPE) != RowKind.UPDATE_BEFORE.change_type)
    columns = [F.col(backquoted(name)).alias(new) for name, new in own.items()]
    zero = F.lit(0).cast("bigint")
    is_deleted = F.col(CHANGE_TYPE) == RowKind.DELETE.change_type
    return changes.select(*columns, zero.alias(TIME), zero.alias(SEQ), is_deleted.alias(DELETED))


def _equal(left: str, right: str) -> exp.Expr:
    return exp.EQ(
        this=exp.column(left, table=JOINED, quoted=True), expression=exp.column(right, table=JOINED, quoted=True)
    )


def _key(rows: DataFrame, left: str, frame: DataFrame, right: str, each: Versioned) -> tuple[Column, Column]:
    """Return both sides of an equality in the type that can hold the values of both."""
    try:
        kind = rows.select(left).union(frame.select(right)).schema[0].dataType
    except AnalysisException:
        kinds = rows.schema[left].dataType.simpleString(), frame.schema[right].dataType.simpleString()
        refuse(each.node, f"a join FOR SYSTEM_TIME AS OF by {kinds[0]} = {kinds[1]}", "CAST one in a query in FROM")
    return F.col(left).cast(kind), F.col(right).cast(kind)

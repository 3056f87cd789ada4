"""Plans joins FOR SYSTEM_TIME AS OF with tables whose rows change, by event time or with tables of a connector.

By PROCTIME() a row is joined with the version that is valid in its micro-batch. By event time it is joined with the
version that is valid at its time: Spark holds rows and versions until the watermark of the query, the least of both
tables, has passed them, and drops those that come after it. So the operator gets them in the order of time, and keeps
the last version of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField
from sqlglot import exp

from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.option_names import Connector
from tablestore.connectors.spark.partition_watermarks import MARK as WATERMARK
from tablestore.connectors.spark.partition_watermarks import complete_at, instant
from tablestore.spark.changelog import holds_map
from tablestore.sql.catalog.binding import connector_of, is_changelog
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_references import is_proctime
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.operators.version_join import DELETED, TIME, version_join
from tablestore.sql.parser.qualify import Source, named_table, qualified
from tablestore.sql.parser.statements import CreateTable, MetadataColumn, Query
from tablestore.sql.queries.joins import JOINED, JoinedRows, common_type, equalities, over_join
from tablestore.sql.queries.lookup_joins import lookups_in, side_of
from tablestore.sql.queries.relation import Parts, QueryInput, of_rows
from tablestore.sql.queries.sources import is_endless, source, timed_changes
from tablestore.sql.queries.unsupported import refuse

_MARK: Final = "_version_mark"
"""Name of the watermark column by which Spark knows that rows and versions up to a time are complete."""


@dataclass(frozen=True)
class Versioned:
    """A table whose versions are joined.

    Attributes:
        node: the table in the query.
        made: its definition.
        is_left: whether rows without a version are kept.
        moment: the column of event time; None if the versions are those of ``PROCTIME()``.
    """

    node: exp.Table
    made: CreateTable
    is_left: bool
    moment: exp.Column | None

    @property
    def alias(self) -> str:
        """The table's alias in the query."""
        return self.node.alias or self.node.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return tuple(column.name for column in self.made.columns)


def take_versions(scope: Scope, select: exp.Select, query: Query) -> dict[str, Versioned]:
    """Replace the tables of a SELECT in a query whose versions are joined by names, in place.

    Returns:
        The replaced tables, by these names; store tables whose current rows are looked up are not among them.

    Raises:
        RefusedError: a table has no versions, or the join is neither INNER nor LEFT.
    """
    found: dict[str, Versioned] = {}
    for number, join in enumerate(lookups_in(select)):
        table = join.this
        what = f"'{table.name}' FOR SYSTEM_TIME AS OF"
        made = scope.definition(table.name).made
        moment = table.args["version"].expression
        is_now = is_proctime(scope, moment, query)
        if not isinstance(made, CreateTable):
            if not is_now:
                refuse(table, what, "a view has no versions of an event time; join its tables")
            continue
        connector = connector_of(made)
        if is_now and connector is None:
            continue
        has_versions = connector in (None, Connector.UPSERT) or is_changelog(made)
        if not has_versions or not made.primary_key:
            why = "its rows have no versions: CREATE it as 'upsert-kafka', or in a changelog format with a PRIMARY KEY"
            refuse(table, what, why)
        if not is_endless(scope, made.name):
            refuse(table, f"{what} a bounded table", "remove 'scan.bounded.mode'")
        timed = None if is_now else _event_time(moment, table, made)
        if found and any((each.moment is None) != (timed is None) for each in found.values()):
            why = "join by one of them, and INSERT the result INTO a table"
            refuse(moment, "joins FOR SYSTEM_TIME AS OF by event time and by PROCTIME() in one SELECT", why)
        key = f"{table.name}@version{number}"
        found[key] = Versioned(table.copy(), made, side_of(join) == "LEFT", timed)
        table.replace(named_table(key, found[key].alias))
    return found


def _event_time(moment: exp.Expr, table: exp.Table, made: CreateTable) -> exp.Column:
    """Return the column of event time for which versions are joined."""
    what = f"'{table.name}' FOR SYSTEM_TIME AS OF"
    if not isinstance(moment, exp.Column):
        refuse(moment, f"{what} an expression", "use a column with a WATERMARK, or one AS PROCTIME()")
    if made.watermark is None:
        why = (
            "versions by event time need it to know when one is complete: declare WATERMARK FOR the time of its "
            "versions, or use a column AS PROCTIME() to join with current rows"
        )
        refuse(table, f"{what} a time that is not PROCTIME(), without a WATERMARK of '{table.name}',", why)
    return moment


def is_event_time(scope: Scope, table: exp.Table, query: Query) -> bool:
    """Return whether a table in a query is joined by event time, for which its watermark is needed."""
    version = table.args.get("version")
    return version is not None and not is_proctime(scope, version.expression, query)


def version_joined(
    scope: Scope, select: exp.Select, parts: Parts, versions: Mapping[str, Versioned], place: Callable[[], StatePlace]
) -> tuple[exp.Select, Parts]:
    """Join the input of a SELECT, as `take_versions` leaves it, with versions; return what ``over_join`` does.

    Raises:
        RefusedError: the join is not supported; the message has an alternative.
    """
    stream = _stream(select, parts, versions)
    rows = stream.relation.rows
    assert rows is not None, "`_stream` says so"
    sources = parts.sources() | {each.alias.lower(): Source(each.alias, each.names) for each in versions.values()}
    said = qualified(select, sources)
    names = {(stream.alias, name): f"_{number}" for number, name in enumerate(stream.relation.names)}
    joins = [(join, versions[join.this.name]) for join in said.args.get("joins") or []]
    moments = [each.moment for _, each in joins if each.moment is not None]
    times = {names[stream.alias, _time_of(stream, moment)] for moment in moments}
    rows = rows.toDF(*names.values())
    if times:
        (time,) = times
        rows = held(rows.withColumn(TIME, micros(F.col(time), rows.schema[time], stream.alias)))
    else:
        # The versions of a micro-batch are before its rows.
        rows = rows.withColumn(TIME, F.lit(1).cast("bigint"))
    conditions: list[exp.Expr] = []
    for join, each in joins:
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
    for time in times:
        # Rows come in the order of this time, so windows of it may follow.
        rows = rows.withColumn(time, F.col(time).alias(time, metadata={WATERMARK: 0}))
    relation = of_rows(rows.drop(TIME), chained=True, final=bool(times))
    made, part = over_join(said, JoinedRows(relation, names), conditions)
    return made, Parts((part,), parts.inner)


def _stream(select: exp.Select, parts: Parts, versions: Collection[str]) -> QueryInput:
    """Return the input whose rows are joined with versions, the tables of these names."""
    if len(parts.inputs) != 1 or any(join.this.name not in versions for join in select.args.get("joins") or []):
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


def _time_of(stream: QueryInput, moment: exp.Column) -> str:
    """Return the name of the stream's column of event time that a query refers to."""
    rows = stream.relation.rows
    assert rows is not None, "`_stream` says so"
    own = moment.table.lower() in {"", stream.alias.lower()}
    name = next((name for name in stream.relation.names if own and name.lower() == moment.name.lower()), None)
    if name is None or WATERMARK not in rows.schema[name].metadata:
        why = f"it has no watermark; declare WATERMARK FOR it in the table of '{stream.alias}', or use PROCTIME()"
        refuse(moment, f"a join FOR SYSTEM_TIME AS OF '{moment.name}', a time that is not PROCTIME(),", why)
    return name


def micros(time: Column, field: StructField, table: str) -> Column:
    """Return an event time in microseconds; a row of a table without one fails the query."""
    msg = f"'{table}': a row or a delete has no event time (NULL), so it has no place in the order of time."
    missing = F.raise_error(F.lit(msg)).cast("bigint")
    return F.when(time.isNull(), missing).otherwise(F.unix_micros(instant(time, field.dataType)))


def held(rows: DataFrame, *, later: int = 0) -> DataFrame:
    """Return rows once the watermark of the query has passed their `TIME`; those that come after it are dropped.

    With ``later``, the watermark is to pass a time that is so many microseconds later.
    """
    mark = complete_at(F.timestamp_micros(F.col(TIME) + later), _MARK)
    bare = [F.col(name).alias(name, metadata={}) for name in rows.columns]
    spread = F.xxhash64(*(F.col(field.name) for field in rows.schema if not holds_map(field.dataType))).alias("_spread")
    groups = rows.select(mark, spread, F.struct(*bare).alias("_row")).groupBy(_MARK, "_spread")
    return groups.agg(F.collect_list("_row").alias("_rows")).select(F.inline("_rows"))


def _versions(scope: Scope, each: Versioned, own: Mapping[str, str]) -> DataFrame:
    """Return the versions of a table: its columns by their new names, ``_time``, ``_seq`` and ``_deleted``."""
    if each.moment is not None:
        return _timed_versions(scope, each, own)
    changes = source(scope, each.made).changes()
    changes = changes.where(F.col(CHANGE_TYPE) != RowKind.UPDATE_BEFORE.change_type)
    columns = [F.col(backquoted(name)).alias(new) for name, new in own.items()]
    zero = F.lit(0).cast("bigint")
    is_deleted = F.col(CHANGE_TYPE) == RowKind.DELETE.change_type
    return changes.select(*columns, zero.alias(TIME), zero.alias(SEQ), is_deleted.alias(DELETED))


def _timed_versions(scope: Scope, each: Versioned, own: Mapping[str, str]) -> DataFrame:
    """Return the same, each at its event time.

    The row that an update replaces ends its version just before the new one begins. A time among the columns of a
    message's value is none for a delete: of an upsert it is NULL, and of a change that of the row that goes.
    """
    assert each.made.watermark is not None, "`_event_time` says so"
    changes, name = timed_changes(scope, each.made), each.made.watermark.column
    kind, time = F.col(CHANGE_TYPE), micros(F.col(backquoted(name)), changes.schema[name], each.alias)
    is_deleted = kind.isin(RowKind.DELETE.change_type, RowKind.UPDATE_BEFORE.change_type)
    column = next(column for column in each.made.columns if column.name == name)
    if not isinstance(column, MetadataColumn):
        changes = changes.where(kind != RowKind.UPDATE_BEFORE.change_type)
        msg = (
            f"'{each.alias}': a row was deleted, and when is not known: '{name}' is a column of the row. Declare the "
            "time of versions as METADATA of a connector's table, such as FROM 'timestamp', or keep the row and say in "
            "a column of it that it has ended."
        )
        time = F.when(is_deleted, F.raise_error(F.lit(msg)).cast("bigint")).otherwise(time)
    order = F.col(SEQ) * 2 + F.when(is_deleted, 0).otherwise(1)
    columns = [F.col(backquoted(name)).alias(new) for name, new in own.items()]
    return held(changes.select(*columns, time.alias(TIME), order.alias(SEQ), is_deleted.alias(DELETED)))


def _equal(left: str, right: str) -> exp.Expr:
    return exp.EQ(
        this=exp.column(left, table=JOINED, quoted=True), expression=exp.column(right, table=JOINED, quoted=True)
    )


def _key(rows: DataFrame, left: str, frame: DataFrame, right: str, each: Versioned) -> tuple[Column, Column]:
    """Return both sides of an equality in the type that can hold the values of both."""
    try:
        kind = common_type(rows, left, frame, right)
    except AnalysisException:
        kinds = rows.schema[left].dataType.simpleString(), frame.schema[right].dataType.simpleString()
        refuse(each.node, f"a join FOR SYSTEM_TIME AS OF by {kinds[0]} = {kinds[1]}", "CAST one in a query in FROM")
    return F.col(left).cast(kind), F.col(right).cast(kind)

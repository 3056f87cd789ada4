"""Plans ``OVER (PARTITION BY ... ORDER BY event time)``: for each row, aggregates of the rows before it.

Spark holds rows until the watermark of the query has passed them, and drops those that come after it. So the operator
`preceding_rows` gets them in the order of time, and adds the earlier rows of their groups. Over both, Spark's window
functions compute the result of a micro-batch, without the rows that were added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from tablestore.connectors.spark.partition_watermarks import MARK as WATERMARK
from tablestore.sql.operators.held_types import is_held
from tablestore.sql.operators.preceding_rows import IS_EARLIER, NUMBER, Preceding, preceding_rows
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.operators.version_join import TIME
from tablestore.sql.parser.qualify import own_nodes, qualified
from tablestore.sql.parser.window_types import microseconds
from tablestore.sql.queries.batch_query import over
from tablestore.sql.queries.joins import JOINED, JoinedRows, over_join
from tablestore.sql.queries.relation import Parts, Relation, distinct, of_rows
from tablestore.sql.queries.temporal_joins import held, micros
from tablestore.sql.queries.unsupported import BATCH, TOP_N, refuse
from tablestore.sql.queries.windows import is_of_windows

_FRAME: Final = "RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW, or ROWS BETWEEN 5 PRECEDING AND CURRENT ROW"
_WITHOUT_FRAME: Final = (exp.RowNumber, exp.Lag)
_BEFORE_END: Final = 1000
"""How many microseconds the time of a window is before its end, when its rows come."""
_OF_LATER_ROWS: Final = (exp.Lead, exp.Ntile, exp.PercentRank, exp.CumeDist)


def _expressions(select: exp.Select) -> list[exp.Window]:
    """Return the expressions with OVER of a SELECT, without those of queries in it."""
    return [node for node in own_nodes(select) if isinstance(node, exp.Window) and node.args.get("over")]


def with_preceding(
    spark: SparkSession,
    select: exp.Select,
    parts: Parts,
    plan: Callable[[exp.Select], Relation],
    place: Callable[[], StatePlace],
) -> Relation | None:
    """Plan a SELECT with OVER; None if it has none.

    Args:
        spark: the session.
        select: the SELECT.
        parts: its inputs.
        plan: plans a SELECT over the same inputs.
        place: returns where the next operator keeps its state.

    Raises:
        RefusedError: it is not supported; the message has an alternative.
    """
    if not _expressions(select):
        return None
    said = qualified(select, parts.sources())
    windows = _with_definitions(said)
    first = windows[0]
    aggregates = (node for node in own_nodes(said) if isinstance(node, exp.AggFunc))
    if said.args.get("group") or any(each.find_ancestor(exp.Window) is None for each in aggregates):
        refuse(first, "OVER (...) beside an aggregation", f"write the GROUP BY as a query in FROM, or {BATCH}")
    groups, time = _same(windows)
    needed = reduce(Preceding.and_also, map(_needed, windows))
    columns = dict.fromkeys((each.table, each.name) for each in own_nodes(said) if isinstance(each, exp.Column))
    names = {column: f"_{number}" for number, column in enumerate(columns)}
    group_names = [f"_group_{number}" for number in range(len(groups))]
    inner = said.copy()
    outputs = [*(exp.column(name, table=table, quoted=True) for table, name in names), *groups]
    named = zip(outputs, [*names.values(), *group_names], strict=True)
    inner.set("expressions", [exp.alias_(each, name, quoted=True) for each, name in named])
    inner.set("distinct", None)
    source = plan(inner)
    rows, event_time = source.rows, names[time.table, time.name]
    field = None if rows is None else rows.schema[event_time]
    if rows is None or field is None or source.each is not None:
        why = f"its rows must come in the order of event time; INSERT them INTO a table and read that, or {BATCH}"
        refuse(first, "OVER (...) over rows that change, or a lookup join", why)
    if WATERMARK not in field.metadata and not is_of_windows(field):
        _refuse_order(time)
    for each in rows.schema:
        if not is_held(each.dataType):
            refuse(first, f"a column of type {each.dataType.simpleString()} beside OVER", "CAST it to STRING")
    used = [names[each.table, each.name] for window in windows for each in window.find_all(exp.Column)]
    rows = rows.withColumn(TIME, micros(F.col(event_time), field, time.table))
    rows = held(rows, later=_BEFORE_END if is_of_windows(field) else 0)
    frame = preceding_rows(rows, group_names, used, needed, place())
    # Rows come in the order of this time, so windows of it may follow.
    metadata = field.metadata if is_of_windows(field) else {WATERMARK: 0}
    frame = frame.withColumn(event_time, F.col(event_time).alias(event_time, metadata=metadata))
    for window in windows:
        _over_numbers(window, group_names)
    said.set("where", None)
    is_distinct = said.args.get("distinct") is not None
    said.set("distinct", None)
    tree, part = over_join(said, JoinedRows(of_rows(frame), names), [])
    shown = over(spark, tree.select(exp.column(IS_EARLIER, table=JOINED, quoted=True)), {part.key: frame})
    found = of_rows(shown.where(~F.col(IS_EARLIER)).drop(IS_EARLIER), chained=True, final=True)
    return distinct(found) if is_distinct else found


def _with_definitions(said: exp.Select) -> list[exp.Window]:
    """Return the expressions with OVER; those that name a window of the clause WINDOW get its definition, in place."""
    known = {each.name.lower(): each for each in said.args.get("windows") or []}
    said.set("windows", None)
    found = _expressions(said)
    for each in found:
        definition = known.get(each.alias.lower())
        if definition is not None:
            for part in ("partition_by", "order", "spec"):
                each.set(part, each.args.get(part) or definition.copy().args.get(part))
            each.set("alias", None)
    return found


def _same(windows: list[exp.Window]) -> tuple[list[exp.Expr], exp.Column]:
    """Return what PARTITION BY and ORDER BY name, which are the same in all windows, as in Flink."""
    first = windows[0]
    groups: list[exp.Expr] = first.args.get("partition_by") or []
    for each in windows:
        order = each.args.get("order")
        items = order.expressions if order is not None else []
        if len(items) != 1 or items[0].args.get("desc") or not isinstance(items[0].this, exp.Column):
            _refuse_order(each)
        if (each.args.get("partition_by") or []) != groups or order != first.args["order"]:
            what = "OVER (...) with different PARTITION BY or ORDER BY in one SELECT"
            refuse(each, what, "write one of them in a query in FROM")
    time = first.args["order"].expressions[0].this
    assert isinstance(time, exp.Column), "checked above"
    return [each.copy() for each in groups], time


def _refuse_order(node: exp.Expr) -> NoReturn:
    why = (
        "the rows before a row are known only in the order of event time; use ORDER BY a column with a WATERMARK, "
        f"ascending. For the first rows of groups: {TOP_N}; or {BATCH}"
    )
    refuse(node, "OVER (...) in another order than that of event time", why)


def _needed(window: exp.Window) -> Preceding:
    """Return the rows that an expression needs besides those of its micro-batch.

    Raises:
        RefusedError: it needs later rows.
    """
    function, spec = window.this, window.args.get("spec")
    if isinstance(function, _OF_LATER_ROWS):
        refuse(window, f"{function.sql_name()} OVER (...)", f"it needs the rows after a row; {BATCH}")
    if isinstance(function, exp.Lag):
        offset = function.args.get("offset")
        if offset is not None and not (isinstance(offset, exp.Literal) and offset.name.isdigit()):
            refuse(offset, "LAG with another offset than a number", "write the number")
        return Preceding(rows=int(offset.name) if offset is not None else 1)
    if spec is None or isinstance(function, exp.RowNumber):
        return Preceding(all=True)
    start, end = spec.args.get("start"), spec.args.get("end")
    if end not in {None, "CURRENT ROW"} or spec.args.get("start_side") not in {None, "PRECEDING"}:
        refuse(window, "OVER (...) with a frame that does not end with the current row", f"use {_FRAME}")
    if start == "UNBOUNDED":
        return Preceding(all=True)
    if start == "CURRENT ROW":
        return Preceding()
    if spec.args["kind"] == "RANGE":
        return Preceding(microseconds=microseconds(start))
    if not (isinstance(start, exp.Literal) and start.name.isdigit()):
        refuse(window, "OVER (ROWS ...) with another start than a number of rows", f"use {_FRAME}")
    return Preceding(rows=int(start.name))


def _over_numbers(window: exp.Window, groups: list[str]) -> None:
    """Let an expression be over the columns of `preceding_rows`, in place."""
    spec = window.args.get("spec")
    is_by_row = isinstance(window.this, _WITHOUT_FRAME) or (spec is not None and spec.args["kind"] == "ROWS")
    by = exp.column(NUMBER if is_by_row else TIME, table=JOINED, quoted=True)
    window.set("partition_by", [exp.column(name, table=JOINED, quoted=True) for name in groups])
    window.set("order", exp.Order(expressions=[exp.Ordered(this=by)]))
    if spec is not None and isinstance(spec.args.get("start"), exp.Interval):
        size = exp.Literal.number(microseconds(spec.args["start"]))
        spec.set("start", exp.cast(size, "BIGINT"))

"""Plans window table functions, such as ``TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE))``, on DataFrames.

Flink's windows are columns, ``window_start`` and ``window_end``. A query that groups by both emits each group once,
when the watermark passes the window's end. Spark does the same for a query that groups by a column with a watermark,
so such a column is added to the window columns. The same column makes a join by both ends of windows one whose state
Spark removes when they have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, TimestampNTZType, TimestampType
from sqlglot import exp

from snapshot.quoting import backquoted
from tablestore.connectors.spark.partition_watermarks import MARK as WATERMARK
from tablestore.connectors.spark.partition_watermarks import complete_at, instant
from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.parser.functions.calls import call
from tablestore.sql.parser.qualify import conjuncts, qualified
from tablestore.sql.parser.window_types import END, START, TIME, WindowKind, Windows
from tablestore.sql.queries.relation import Parts, QueryInput, Relation, with_metadata, without_watermarks
from tablestore.sql.queries.unsupported import refuse

_OF_WINDOWS: Final = "window_time"
"""Key in the metadata of a column with the time of windows that have ended."""
MARK: Final = "_window_mark"
"""Name of the hidden watermark column by which Spark knows when a window has ended."""


def windowed(frame: DataFrame, windows: Windows, node: exp.Expr) -> DataFrame:
    """Return a frame with the window of each row; a row in several windows is repeated for each.

    Returns:
        The frame's columns, ``window_start``, ``window_end``, ``window_time``, and `MARK`. For SESSION only the frame's
        columns, the time with a watermark: grouping determines a session.

    Raises:
        RefusedError: the time column is not a timestamp, or the frame is a stream without a watermark on it.
    """
    field = next((each for each in frame.schema if each.name.lower() == windows.column.lower()), None)
    if field is None or not isinstance(field.dataType, TimestampType | TimestampNTZType):
        what = "there is no such column" if field is None else f"it is {field.dataType.simpleString()}"
        raise RefusedError(node, f"DESCRIPTOR({windows.column}): expected a column of type TIMESTAMP; {what}.")
    is_timed = WATERMARK in field.metadata or not frame.isStreaming
    if not is_timed and not is_of_windows(field):
        why = (
            f"without it no window ever ends; declare WATERMARK FOR {backquoted(windows.column)} AS ... in CREATE TABLE"
        )
        refuse(node, f"a window over '{windows.column}', which has no watermark,", why)
    if windows.kind is WindowKind.SESSION:
        return frame if is_timed else with_metadata(frame, [frame.columns.index(field.name)], {WATERMARK: 0})
    taken = [name for name in frame.columns if name.lower() in {START, END, TIME}]
    if taken:
        names = " and ".join(f"'{name}'" for name in taken)
        raise RefusedError(node, f"windows add columns to the table, which has {names} already; rename it.")
    time = F.col(backquoted(windows.column))
    # Rows before the watermark whose windows have not ended are not late, so their own times lose it.
    frame = without_watermarks(frame)
    columns = [F.col(backquoted(name)) for name in frame.columns]
    slide = windows.step_us if windows.kind is WindowKind.HOP else windows.size_us
    whole = F.window(time, _said(windows.size_us), _said(slide), _said(windows.offset_us))
    made = frame.select(*columns, whole.alias("_window"))
    made = made.select(*columns, F.col("_window.start").alias(START), F.col("_window.end").alias(END))
    if windows.kind is WindowKind.CUMULATE:
        # A row is in the windows that end with its own step and with each later step up to the full size.
        step = F.window(time, _said(windows.step_us), _said(windows.step_us), _said(windows.offset_us))
        made = made.select(*columns, START, END, step.alias("_step"))
        ends = F.sequence(F.col("_step.end"), F.col(END), F.expr(f"INTERVAL '{windows.step_us / 1e6:f}' SECOND"))
        made = made.select(*columns, START, F.explode(ends).alias(END))
    over = instant(F.col(END), field.dataType)
    last = F.col(END) - F.expr("INTERVAL '0.001' SECOND")
    return made.select(*columns, START, END, last.alias(TIME), complete_at(over, MARK))


def timed(frame: DataFrame, positions: Sequence[int]) -> DataFrame:
    """Return the rows of windows that have ended, of which further windows can be over ``window_time`` columns.

    These are no columns with a watermark: one that is a millisecond before the end of a window equals its time, so
    that Spark would take the window's rows for late ones.
    """
    return with_metadata(frame, positions, {_OF_WINDOWS: True})


def is_of_windows(field: StructField) -> bool:
    """Return whether a column has the time of windows that have ended, a millisecond before their end."""
    return _OF_WINDOWS in field.metadata


def marked(frame: DataFrame, end: str) -> DataFrame:
    """Return rows that are in windows, with the column `MARK` made of the windows' end, and no other watermark."""
    over = instant(F.col(backquoted(end)), frame.schema[end].dataType)
    return without_watermarks(frame).withColumn(MARK, complete_at(over, MARK))


def ends_of(part: QueryInput) -> tuple[str, str] | None:
    """Return the names of the two ends of the windows that an input's rows are in; None if they are in none."""
    if part.windows is not None:
        return None if part.windows.kind is WindowKind.SESSION else (START, END)
    if part.relation.windows is None:
        return None
    start, end = (part.relation.names[position] for position in part.relation.windows)
    return start, end


def joined_by_windows(select: exp.Select, parts: Parts) -> tuple[exp.Select, Parts]:
    """Return a SELECT whose joins by both ends of windows are joins by `MARK` too, and its inputs with that column.

    Spark then drops late rows, removes the rows of windows that have ended, and emits those without a partner.
    """
    ends = {part.alias: found for part in parts.endless if part.relation.grows and (found := ends_of(part))}
    if len(ends) < 2:
        return select, parts
    said = qualified(select, parts.sources())
    marks: set[str] = set()
    seen = [said.args["from_"].this.alias_or_name]
    for join in said.args["joins"]:
        alias, equal = join.this.alias_or_name, _equal_columns(join.args.get("on"))
        for other in (name for name in seen if name in ends and alias in ends):
            pairs = zip(ends[other], ends[alias], strict=True)
            if {frozenset(((other, one), (alias, own))) for one, own in pairs} <= equal:
                both = (exp.column(MARK, table=name, quoted=True) for name in (other, alias))
                join.set("on", exp.and_(join.args["on"], exp.EQ(this=next(both), expression=next(both))))
                marks |= {other, alias}
                break
        seen.append(alias)
    if not marks:
        return select, parts
    places = [said.args["from_"].this, *(join.this for join in said.args["joins"])]
    inputs: list[QueryInput] = []
    for part in parts.inputs:
        place = next(each for each in places if each.name == part.key)
        relation = _marked(part.relation, ends[part.alias][1]) if part.alias in marks else part.relation
        inputs.append(replace(part, relation=relation, place=place))
    return said, Parts(tuple(inputs), parts.inner)


def _equal_columns(condition: exp.Expr | None) -> set[frozenset[tuple[str, str]]]:
    """Return the pairs of columns that a condition equates, each with its table."""
    equal = [each for each in (each.unnest() for each in conjuncts(condition)) if isinstance(each, exp.EQ)]
    pairs = [(each.this, each.expression) for each in equal]
    return {
        frozenset((each.table, each.name) for each in pair)
        for pair in pairs
        if all(isinstance(each, exp.Column) for each in pair)
    }


def _marked(relation: Relation, end: str) -> Relation:
    rows = relation.rows
    assert rows is not None, "rows in windows are append-only"
    return replace(relation, rows=rows if MARK in rows.columns else marked(rows, end))


def is_by_windows(condition: exp.Expr | None) -> bool:
    """Return whether the condition of a join has `MARK`."""
    return condition is not None and any(column.name == MARK for column in condition.find_all(exp.Column))


def windows_in(select: exp.Select, parts: Parts) -> dict[str, tuple[str, str]]:
    """Return the names of both ends of the windows of inputs, by alias, by which a query's rows can be grouped.

    With several unbounded inputs these are the ones whose rows a join by windows always has; then the ends of another
    may be NULL.
    """
    found = {part.alias: ends for part in parts.endless if (ends := ends_of(part)) is not None}
    endless = {part.alias for part in parts.endless}
    kept: set[str] = set()
    seen = False
    for item in [select.args["from_"], *(select.args.get("joins") or [])]:
        alias, side = item.this.alias_or_name, item.args.get("side")
        if alias not in endless:
            continue
        if seen and not is_by_windows(item.args.get("on")):
            return {}
        if side in {"RIGHT", "FULL"}:
            kept.clear()
        if side not in {"LEFT", "FULL"}:
            kept.add(alias)
        seen = True
    return {alias: ends for alias, ends in found.items() if alias in kept}


def over_sessions(select: exp.Select, alias: str, windows: Windows) -> None:
    """Rewrite GROUP BY of both ends of SESSION windows into Spark's form, in place.

    ``alias`` is that of the table with the windows.

    Raises:
        RefusedError: GROUP BY does not match the declaration of the windows.
    """
    group = select.args.get("group")
    by: list[exp.Expr] = list(group.expressions) if group is not None else []
    own = [each for each in by if isinstance(each, exp.Column) and each.table == alias]
    ends = [each for each in own if each.name in {START, END, TIME}]
    others = {each.name for each in by if isinstance(each, exp.Column) and each not in ends}
    is_whole = {START, END} <= {each.name for each in ends}
    if not is_whole or others != set(windows.partition) or len(by) != len(ends) + len(others):
        wanted = ", ".join([*windows.partition, START, END])
        refuse(select.expressions[0], "a SESSION window without its GROUP BY", f"use GROUP BY {wanted}")
    gap = exp.Literal.string(_said(windows.size_us))
    time = exp.column(windows.column, table=alias, quoted=True)
    session = call("SESSION_WINDOW", time, gap)
    # Spark refuses a stream that is grouped by its sessions alone, or by a constant that it recognizes.
    same = exp.Mod(this=call("XXHASH64", time.copy()), expression=exp.Literal.number(1))
    keys = [each for each in by if each not in ends] or [same]
    select.args["group"].set("expressions", [*keys, session])
    for column in list(select.find_all(exp.Column)):
        if column.table == alias and column.name in {START, END, TIME}:
            if column.find_ancestor(exp.Order) is not None:
                # ORDER BY sorts the result, in which the column has its own name.
                column.replace(exp.column(column.name))
                continue
            made: exp.Expr = exp.column("start" if column.name == START else "end", table="session_window")
            if column.name == TIME:
                made = exp.Paren(this=exp.Sub(this=made, expression=exp.Interval(this=exp.Literal.string("0.001"), unit=exp.var("SECOND"))))  # fmt: skip  # noqa: E501
            column.replace(exp.alias_(made, column.name) if column.parent is select else made)


def _said(microseconds: int) -> str:
    return f"{microseconds} microseconds"

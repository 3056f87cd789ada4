"""Queries over endless tables: what can be had, as a frame that goes on; what cannot, refused by name.

A continuous query's result is right or it is refused: nothing is answered that later rows would make wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from snapshot.errors import InvalidInputError
from snapshot.rowkind import CHANGE_TYPE
from tablestore.sql.bound import connector_of
from tablestore.sql.ddl import tables_in
from tablestore.sql.explode import MARK, ROWS, counter, explode, groups_of, has_distinct
from tablestore.sql.frames import batch_frame, of_view, open_table, over
from tablestore.sql.scope import Scope
from tablestore.sql.statements import CreateTable, CreateView, Query
from tablestore.sql.tables import with_computed
from tablestore.store import TableStore

_BATCH: Final = "SET 'execution.runtime-mode' = 'batch' reads what is there now"
_CHECK: Final = "spark.sql.streaming.unsupportedOperationCheck"
APPEND: Final = "append"
UPDATE: Final = "update"


@dataclass(frozen=True)
class Plan:
    """A query's result.

    Attributes:
        frame: the rows; they go on where it is a streaming one.
        mode: ``append``, or ``update`` where a row replaces an earlier one of its key.
        keys: positions of the columns that make that key.
        chained: whether it is a chain of stateful operators that Spark's check refuses though it does them right.
        changes: whether the last column says what each row does to the result.
    """

    frame: DataFrame
    mode: str = APPEND
    keys: tuple[int, ...] = ()
    chained: bool = False
    changes: bool = False


def plan(scope: Scope, query: Query, depth: int = 0) -> Plan:
    """Plan a query in streaming mode.

    Raises:
        InvalidInputError: it cannot be had as a continuous query; says why, and what to do instead.
    """
    tables = {name: _source(scope, name, depth) for name in tables_in(query)}
    if not any(each.frame.isStreaming for each in tables.values()):
        return Plan(batch_frame(scope, query))
    endless = {name for name, each in tables.items() if each.frame.isStreaming}
    frames = {name: each.frame for name, each in tables.items()}
    tree = query.tree
    check(tree, endless)
    changing = sorted(name for name, each in tables.items() if each.changes)
    if changing:
        return _changes(scope.spark, tree, frames, changing[0])
    if isinstance(tree, exp.Select) and _is_grouped(tree):
        return _grouped(scope.spark, tree, frames)
    if isinstance(tree, exp.Select) and tree.args.get("distinct"):
        rows = tree.copy()
        rows.set("distinct", None)
        return Plan(over(scope.spark, rows, frames).dropDuplicates())
    return Plan(over(scope.spark, tree, frames))


@contextmanager
def allowed(spark: SparkSession, chained: bool) -> Iterator[None]:
    """Let a chain of stateful operators start, whose result is right though Spark cannot know it."""
    if not chained:
        yield
        return
    before = spark.conf.get(_CHECK, "true") or "true"
    spark.conf.set(_CHECK, "false")
    try:
        yield
    finally:
        spark.conf.set(_CHECK, before)


def check(tree: exp.Expr, endless: set[str]) -> None:
    """Refuse what has no answer, or none yet, where a table has no end.

    Raises:
        InvalidInputError: with what to do instead.
    """
    for node in tree.walk():
        if isinstance(node, exp.Window):
            _refuse("OVER (...)", f"it needs all rows; {_BATCH}")
        if isinstance(node, exp.Order):
            _refuse("ORDER BY", f"there is no last row to sort; {_BATCH}")
        if isinstance(node, exp.Limit | exp.Fetch | exp.Offset):
            _refuse("LIMIT", f"which rows come first is chance; {_BATCH}")
        if isinstance(node, exp.SetOperation) and (not isinstance(node, exp.Union) or node.args.get("distinct")):
            _refuse(node.key.upper(), f"say UNION ALL, or {_BATCH}")
        if isinstance(node, exp.Having):
            _refuse(
                "HAVING",
                f"a group that ceases to fulfil it would stay in the result; filter where it is read, or {_BATCH}",
            )
        if isinstance(node, exp.Select) and node is not tree and (_is_grouped(node) or node.args.get("distinct")):
            _refuse("an aggregate within a query", f"INSERT it INTO a table and read that, or {_BATCH}")
    for select in tree.find_all(exp.Select):
        read = [table.name for table in select.find_all(exp.Table) if table.name in endless]
        if len(read) > 1 and not select.find(exp.SetOperation):
            _refuse(
                f"a join of '{read[0]}' and '{read[1]}'", f"both have no end; write one into a store table, or {_BATCH}"
            )


def _refuse(what: str, why: str) -> NoReturn:
    msg = f"{what} is not supported in a continuous query: {why}."
    raise InvalidInputError(msg)


def _is_grouped(select: exp.Select) -> bool:
    aggregates = (each for output in select.expressions for each in output.find_all(exp.AggFunc))
    return select.args.get("group") is not None or any(each.find_ancestor(exp.Query) is select for each in aggregates)


def _source(scope: Scope, name: str, depth: int) -> Plan:
    """Plan a table or view of a query."""
    made = scope.definition(name).made
    if isinstance(made, CreateView):
        planned: list[Plan] = []

        def frame_of(query: Query) -> DataFrame:
            planned.append(plan(scope, query, depth + 1))
            return planned[0].frame

        frame = of_view(made, frame_of, depth)
        if planned[0].mode is not APPEND or planned[0].chained:
            _refuse(f"view '{name}', which aggregates", f"INSERT its query INTO a table and read that, or {_BATCH}")
        return Plan(frame, changes=planned[0].changes)
    if not _is_endless(made):
        return Plan(batch_frame(scope, _all_of(name)))
    table = open_table(scope, name)
    if not isinstance(table, TableStore):
        return Plan(table.read_stream(), changes=bool(made.primary_key))
    frame = table.read_stream()
    # A table without a key only grows, so that its changes are its rows.
    frame = frame if made.primary_key else frame.drop(CHANGE_TYPE)
    return Plan(with_computed(frame, made), changes=bool(made.primary_key))


def _is_endless(made: CreateTable) -> bool:
    if connector_of(made) is None:
        return True
    return dict(made.options).get("scan.bounded.mode", "unbounded").lower() == "unbounded"


def _all_of(name: str) -> Query:
    tree = exp.select("*").from_(exp.Table(this=exp.to_identifier(name, quoted=True)))
    return Query("", tree)


def _changes(spark: SparkSession, tree: exp.Expr, frames: Mapping[str, DataFrame], name: str) -> Plan:
    """Pass changes on, of which each still says what it does."""
    simple = not any(
        tree.args.get(part) for part in ("where", "group", "joins", "distinct", "having", "laterals", "with_")
    )
    if (
        not isinstance(tree, exp.Select)
        or not simple
        or len(frames) != 1
        or _is_grouped(tree)
        or tree.find(exp.Subquery)
    ):
        _refuse(
            f"more than columns of '{name}', whose rows change,",
            f"filters, joins and aggregates would have to take rows back, which is not there yet; {_BATCH}",
        )
    passing = tree.copy()
    table = passing.find(exp.Table)
    column = exp.column(CHANGE_TYPE, table=table.alias_or_name if table else name, quoted=True)
    stars = [each for each in passing.expressions if each.is_star]
    if not stars:
        passing = passing.select(column)
    elif len(passing.expressions) > 1:
        # The star brings the column of the changes, which has to be the last.
        _refuse(f"* beside other columns of '{name}', whose rows change,", "name the columns")
    return Plan(over(spark, passing, frames), mode=UPDATE, changes=True)


def _grouped(spark: SparkSession, tree: exp.Select, frames: Mapping[str, DataFrame]) -> Plan:
    if tree.args.get("distinct"):
        _refuse("SELECT DISTINCT with GROUP BY", "groups are distinct; leave one of them out")
    groups = groups_of(tree)
    outputs = [each.this if isinstance(each, exp.Alias) else each for each in tree.expressions]
    keys = tuple(outputs.index(group) for group in groups if group in outputs)
    # A result without all of its key does not say which row it replaces.
    whole = keys if len(keys) == len(groups) else ()
    if not has_distinct(tree):
        return Plan(over(spark, tree, frames), UPDATE, whole)
    parts = explode(tree)
    rows = over(spark, parts.inner, frames)
    kinds = {field.name: field.dataType for field in rows.schema}

    def branch(frame: DataFrame, kept: tuple[str, ...], mark: int | None, own: int | None) -> DataFrame:
        columns = [F.col(name) for name in parts.keys]
        columns += [
            (F.col(name) if name in kept else F.lit(None)).cast(kinds[name]).alias(name) for name in parts.plain
        ]
        columns.append(F.lit(mark).cast("bigint").alias(MARK))
        numbers = range(len(parts.distinct))
        columns += [F.lit(1 if number == own else None).cast("bigint").alias(counter(number)) for number in numbers]
        return frame.select(*columns)

    branches = [branch(rows, parts.plain, 1, None)]
    for number, names in enumerate(parts.distinct):
        there = reduce(lambda one, other: one & other, (F.col(name).isNotNull() for name in names))
        new = rows.where(there).select(*parts.keys, *names).dropDuplicates()
        branches.append(branch(new, (), None, number))
    exploded = reduce(DataFrame.union, branches)
    return Plan(over(spark, parts.outer, {ROWS: exploded}), UPDATE, whole, chained=True)

"""Runs the statements that change rows of store tables, such as ``DELETE`` and ``MERGE INTO``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from sqlglot import exp

from snapshot.errors import InvalidInputError, NotFoundError
from snapshot.messages import counted
from snapshot.quoting import backquoted
from snapshot.records import Snapshot
from snapshot.schema.spark_types import as_nullable, can_widen
from tablestore.dml.conditions import empty, evaluated
from tablestore.dml.merge_clauses import Clause, Match
from tablestore.dml.merge_join import SOURCE, TARGET
from tablestore.options.declaration import OptionSpec
from tablestore.options.value_types import BOOLEAN
from tablestore.sql.catalog.binding import connector_of, expression_of, partition_values, stored_columns
from tablestore.sql.catalog.results import Result
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.settings import Mode
from tablestore.sql.catalog.table_frames import expression_in_spark
from tablestore.sql.catalog.table_references import missing_reason
from tablestore.sql.inserted_rows import aligned, goes_into
from tablestore.sql.inserts import inserted_columns, refuse_hints, with_partition
from tablestore.sql.parser.errors import error_at
from tablestore.sql.parser.parse import parse_query
from tablestore.sql.parser.statements import (
    Assignments,
    CreateTable,
    Delete,
    DropPartitions,
    Expression,
    Merge,
    MergeClause,
    Overwrite,
    ShowPartitions,
    Truncate,
    Update,
    Verb,
)
from tablestore.sql.queries.batch_query import batch_frame, open_table, opened
from tablestore.sql.queries.continuous_query import Plan
from tablestore.table.store import TableStore

_DYNAMIC: Final = "dynamic-partition-overwrite"
"""Option of hints of ``INSERT OVERWRITE``, which the table may have too."""


def run_verb(scope: Scope, statement: Verb) -> Result:
    """Run a statement that changes rows and return its result, with the number of changes and the snapshot.

    Raises:
        SqlError: the target is not a store table.
        InvalidInputError: a condition or value cannot be evaluated, or its type does not fit; nothing was written.
        ConflictError: all retries lost to commits of other writers; nothing was written.
    """
    match statement:
        case Delete():
            table, definition = _store_table(scope, statement.name, statement)
            on = empty(scope.spark, table.schema)
            made = table.delete(_condition(statement.where, _own(definition, statement), on))
        case Update():
            table, definition = _store_table(scope, statement.name, statement)
            on = empty(scope.spark, table.schema)
            names = _own(definition, statement)
            values = _values(statement.assignments, table.schema, on, names, statement.name)
            made = table.update(_condition(statement.where, names, on), values)
        case Truncate():
            made = _store_table(scope, statement.name, statement)[0].truncate()
        case DropPartitions():
            made = _drop_partitions(scope, statement)
        case Overwrite():
            made = _overwrite(scope, statement)
        case Merge():
            made = _merge(scope, statement)
    return Result(statement, _told(made))


def show_partitions(scope: Scope, shown: ShowPartitions) -> Result:
    """List the partitions that have rows now, in the order of their values, as ``day=2024-01-31/hour=7``.

    Raises:
        NotFoundError: there is no such table.
        InvalidInputError: it has no partitions, or a column or value of PARTITION (...) does not fit.
    """
    table = open_table(scope, shown.name)
    names = table.partition_by if isinstance(table, TableStore) else ()
    if not isinstance(table, TableStore) or not names:
        msg = f"SHOW PARTITIONS: table '{shown.name}' is not partitioned: it has no PARTITIONED BY."
        raise InvalidInputError(msg)
    made = scope.definition(shown.name).made
    assert isinstance(made, CreateTable), "a store table is one"
    wanted = _in_partition(_partition_values(scope, table, made, shown.partition))
    columns = [F.col(backquoted(name)) for name in names]
    texts = [F.coalesce(column.cast("string"), F.lit("NULL")) for column in columns]
    named = F.concat_ws("/", *(F.concat(F.lit(f"{name}="), text) for name, text in zip(names, texts, strict=True)))
    found = table.read(columns=names).where(wanted).distinct().sort(*columns).select(named).collect()
    return Result(shown, columns=("partition name",), rows=tuple((row[0],) for row in found))


def _told(made: Snapshot | None) -> str:
    return "nothing to change" if made is None else f"{counted(made.rows, 'change')}, snapshot {made.id}"


def _store_table(scope: Scope, name: str, statement: Verb) -> tuple[TableStore, CreateTable]:
    """Open the store table that a statement changes, and return it with its definition.

    Raises:
        NotFoundError: there is no table of that name.
        SqlError: the name is that of a view or a connector table.
    """
    definition = scope.definition(name)
    made = definition.made
    connector = connector_of(made) if isinstance(made, CreateTable) else None
    if not isinstance(made, CreateTable) or connector is not None:
        what = f"a '{connector.value}' table" if connector is not None else "a view"
        reason = f"only rows of a store table can be changed; '{name}' is {what}"
        if not statement.place.source:
            raise InvalidInputError(reason)
        raise error_at(statement.place.source, statement.place.start, statement.place.end, reason)
    table = opened(scope, definition)
    assert isinstance(table, TableStore)
    return table, made


def _drop_partitions(scope: Scope, statement: DropPartitions) -> Snapshot | None:
    """Delete the rows of partitions; a value for some of the partition columns selects several.

    Raises:
        NotFoundError: there is no such table, or none of the partitions has rows, without IF EXISTS.
        InvalidInputError: a column is no partition column, or a value does not fit it.
    """
    if statement.if_exists and scope.find(statement.name, stored=False) is None:
        return None
    table, definition = _store_table(scope, statement.name, statement)
    where = F.lit(False)
    for partition in statement.partitions:
        where = where | _in_partition(_partition_values(scope, table, definition, partition))
    made = table.delete(where)
    if made is None and not statement.if_there:
        columns = ", ".join(name for name, _ in statement.partitions[0])
        msg = (
            f"table '{statement.name}': DROP PARTITION: no row has these values of {columns}. To allow that, "
            "use DROP IF EXISTS PARTITION."
        )
        raise NotFoundError(msg)
    return made


def _partition_values(scope: Scope, table: TableStore, made: CreateTable, fixed: Assignments) -> dict[str, Column]:
    """Return the values of partition columns, cast to their types.

    Raises:
        InvalidInputError: a column is no partition column, or a value does not fit it.
    """
    unknown = [column for column, _ in fixed if column not in table.partition_by]
    if unknown:
        msg = f"table '{made.name}': {unknown} are not partition columns; it has {list(table.partition_by)}."
        raise InvalidInputError(msg)
    on = empty(scope.spark, StructType())
    literals = _values(partition_values(made, fixed), table.schema, on, _Names(), made.name)
    return {
        column: (F.expr(value) if isinstance(value, str) else value).cast(table.schema[column].dataType)
        for column, value in literals.items()
    }


def _in_partition(values: Mapping[str, Column]) -> Column:
    where = F.lit(True)
    for name, value in values.items():
        where = where & F.col(backquoted(name)).eqNullSafe(value)
    return where


def _overwrite(scope: Scope, statement: Overwrite) -> Snapshot | None:
    """Overwrite a table with the rows of a query.

    In a partitioned table only some partitions are replaced: the one in PARTITION (...) if it gives a value for every
    partition column, else those that occur in the rows, or with ``dynamic-partition-overwrite=false`` those in
    PARTITION (...).

    Raises:
        InvalidInputError: the session is in streaming mode, or the query's rows do not fit the table.
    """
    if scope.settings.mode is not Mode.BATCH:
        msg = (
            f"INSERT OVERWRITE '{statement.target}' is not supported in streaming mode: a query that never ends has no "
            "complete result to replace the rows with. SET 'execution.runtime-mode' = 'batch', or use INSERT INTO."
        )
        raise InvalidInputError(msg)
    hints = dict(statement.hints)
    dynamic = hints.pop(_DYNAMIC, None)
    if statement.hints:
        refuse_hints(scope, f"INSERT OVERWRITE '{statement.target}'", tuple(hints.items()))
    table, made = _store_table(scope, statement.target, statement)
    fixed = tuple((name, value) for name, value in statement.partition if value is not None)
    values = _partition_values(scope, table, made, fixed)
    written = with_partition(made, statement)
    columns = inserted_columns(made, written)
    frame = aligned(Plan(batch_frame(scope, written.query)), made, columns, scope.settings.enforcers)
    is_dynamic = table.options.partition.overwrite_dynamic
    if dynamic is not None:
        is_dynamic = OptionSpec(_DYNAMIC, BOOLEAN).parse(str(dynamic))
    if len(fixed) < len(table.partition_by) and is_dynamic:
        return table.overwrite(frame, dynamic=True)
    return table.overwrite(frame, _in_partition(values) if values else None)


def _merge(scope: Scope, statement: Merge) -> Snapshot | None:
    table, made = _store_table(scope, statement.name, statement)
    query = statement.source
    if isinstance(query, str) and (missing := missing_reason(scope, query)):
        msg = f"MERGE INTO '{statement.name}' USING: {missing}"
        raise NotFoundError(msg)
    source = batch_frame(scope, parse_query(f"SELECT * FROM {backquoted(query)}") if isinstance(query, str) else query)
    names = _Names.of(made, statement.alias, TARGET)
    if statement.source_alias:
        names = replace(names, qualifiers={**names.qualifiers, statement.source_alias.lower(): SOURCE})
    here, there = empty(scope.spark, table.schema).alias(TARGET), empty(scope.spark, source.schema).alias(SOURCE)
    sides = {
        Match.MATCHED: here.crossJoin(there),
        Match.NOT_MATCHED: there,
        Match.NOT_MATCHED_BY_SOURCE: here,
    }
    clauses = [_clause(each, table.schema, sides[each.match], names, statement.name) for each in statement.clauses]
    return table.merge(source, _said(statement.on, names, sides[Match.MATCHED]), clauses)


def _clause(clause: MergeClause, schema: StructType, on: DataFrame, names: _Names, table: str) -> Clause:
    condition = None if clause.condition is None else _said(clause.condition, names, on)
    assignments = clause.assignments
    if clause.values:
        if len(clause.values) != len(schema.names):
            msg = (
                f"MERGE INTO '{table}': INSERT VALUES: expected a value for each column ({', '.join(schema.names)}), "
                f"got {counted(len(clause.values), 'value')}. Add the others, or name the columns: INSERT (...) VALUES."
            )
            raise InvalidInputError(msg)
        assignments = tuple(zip(schema.names, clause.values, strict=True))
    values = _values(assignments, schema, on, names, table) if assignments else None
    return Clause(clause.match, clause.action, condition, values)


def _own(made: CreateTable, statement: Delete | Update) -> _Names:
    """Return names without qualifiers: the only table is the statement's own."""
    return _Names.of(made, statement.alias, "")


def _condition(where: Expression | None, names: _Names, on: DataFrame) -> str:
    return "true" if where is None else _said(where, names, on)


def _values(
    assignments: Assignments, schema: StructType, on: DataFrame, names: _Names, table: str
) -> dict[str, str | Column]:
    """Return the value for each assigned column, cast to the column's type where ``INSERT INTO`` would cast it.

    Raises:
        InvalidInputError: a value's type needs an explicit CAST, or a column is set twice.
    """
    fields = {field.name.lower(): field for field in schema.fields}
    values: dict[str, str | Column] = {}
    for name, value in assignments:
        text = _said(value, names, on)
        if name in values:
            msg = f"table '{table}': column '{name}' is set twice."
            raise InvalidInputError(msg)
        values[name] = text
        field = fields.get(name.lower())
        if field is None:
            continue
        column, actual = evaluated(text, on, f"table '{table}': column '{name}'")
        if can_widen(actual, as_nullable(field.dataType)):
            continue
        if not goes_into(actual, field.dataType):
            kind = field.dataType.simpleString()
            msg = f"table '{table}': column '{name}' is {kind}, got {actual.simpleString()}. Use CAST(... AS {kind})."
            raise InvalidInputError(msg)
        values[name] = column.cast(as_nullable(field.dataType))
    return values


def _said(expression: Expression, names: _Names, on: DataFrame) -> str:
    """Return an expression over a frame in Spark SQL."""
    there = {name.lower() for name in on.columns}
    return expression_in_spark(expression.tree.transform(names.resolved, there), on)


@dataclass(frozen=True)
class _Names:
    """What the columns in a statement's expressions stand for.

    Attributes:
        qualifiers: what replaces each qualifier, a table's name or alias in lower case; "" removes it.
        target: what replaces that of the table whose rows change.
        computed: the expressions of that table's computed columns, by name in lower case.
    """

    qualifiers: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    computed: Mapping[str, exp.Expr] = field(default_factory=dict)

    @classmethod
    def of(cls, made: CreateTable, alias: str, target: str) -> _Names:
        """Return the names of a store table, whose columns are qualified by ``target``."""
        stored = {column.name.lower() for column in stored_columns(made)}

        def qualified(node: exp.Expr) -> exp.Expr:
            if not target or not isinstance(node, exp.Column) or node.parts[0].name.lower() not in stored:
                return node
            return _column(target, node.parts)

        computed = {
            column.name.lower(): exp.paren(expression_of(column).transform(qualified), copy=False)
            for column in made.computed
        }
        return cls({made.name.lower(): target, (alias or made.name).lower(): target}, target, computed)

    def resolved(self, node: exp.Expr, there: Collection[str]) -> exp.Expr:
        """Return a column with the qualifier it has in Spark, and a computed one as its expression.

        A name without a qualifier that is ``there``, among the frame's columns, is one of these.
        """
        if not isinstance(node, exp.Column):
            return node
        first, *rest = node.parts
        qualifier = self.qualifiers.get(first.name.lower()) if rest else None
        name, *fields = node.parts if qualifier is None else rest
        is_target = name.name.lower() not in there if qualifier is None else qualifier == self.target
        computed = self.computed.get(name.name.lower()) if is_target else None
        if computed is not None:
            return exp.Dot.build([computed.copy(), *fields]) if fields else computed.copy()
        return node if qualifier is None else _column(qualifier, rest)


def _column(qualifier: str, parts: Sequence[exp.Expr]) -> exp.Column:
    """Return a column with a qualifier; "" is none."""
    named = [exp.to_identifier(qualifier), *parts] if qualifier else parts
    return exp.Column(**dict(zip(("this", "table", "db", "catalog"), reversed(named), strict=False)))

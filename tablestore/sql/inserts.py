"""Runs ``INSERT INTO``: bounded queries as one write, unbounded ones as a streaming query."""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from sqlglot import exp

from log_system.kafka.client.cluster import Partition
from snapshot.errors import InvalidInputError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from snapshot.storage import Storage
from tablestore.connectors.option_names import Connector
from tablestore.connectors.spark.partition_watermarks import check_partitions, partitions_noted
from tablestore.options.merge_options import AGGREGATION_REMOVE, Engine
from tablestore.options.rule_of_options import merge_rule
from tablestore.sql.catalog.binding import (
    SHOWN,
    Columns,
    check_sink,
    connector_of,
    insertable_columns,
    is_changelog,
    is_idle,
    partition_values,
)
from tablestore.sql.catalog.execute_ddl import create_table, drop
from tablestore.sql.catalog.hints import check_hints_allowed, hinted, with_hints
from tablestore.sql.catalog.session_scope import Scope, folder_name
from tablestore.sql.catalog.settings import NAME, Mode
from tablestore.sql.catalog.table_frames import ConnectorTable
from tablestore.sql.catalog.table_references import check_there, definition_of, definitions_in
from tablestore.sql.inserted_rows import aligned
from tablestore.sql.kept_columns import check_columns
from tablestore.sql.parser.render import render
from tablestore.sql.parser.statements import (
    CreateTable,
    CreateTableAs,
    Drop,
    Insert,
    Options,
    Overwrite,
    PhysicalColumn,
    Query,
    StatementSet,
)
from tablestore.sql.parser.types import of_spark
from tablestore.sql.queries.batch_query import batch_frame, open_table
from tablestore.sql.queries.continuous_query import Plan, allowed, check_replaced, plan_into, plan_shown, relation
from tablestore.sql.queries.relation import UPDATE, Relation
from tablestore.sql.queries.sources import ends_with_changes
from tablestore.sql.queries.unsupported import ONE_ROW
from tablestore.table.store import TableStore

InsertOrOverwrite = TypeVar("InsertOrOverwrite", bound=Insert | Overwrite)
logger: Final = logging.getLogger("tablestore")
_STATEMENT: Final = "tablestore-statement"
"""The file in the checkpoint of a query without a name that holds a digest of its statement."""
_OWN_ERROR = re.compile(rf"{InvalidInputError.__module__}\.{InvalidInputError.__name__}: (.*)", re.DOTALL)
"""The message of an error that Python code in a task of Spark has raised."""


def _planned(scope: Scope, query: Query) -> Relation | DataFrame:
    """Plan a query; in batch mode its rows are a frame."""
    return batch_frame(scope, query) if scope.settings.mode is Mode.BATCH else relation(scope, query)


def insert(scope: Scope, statement: Insert, planned_query: Relation | DataFrame | None = None) -> StreamingQuery | None:
    """Write a query's rows into a table; return the streaming query, or None once a bounded query has ended.

    Raises:
        InvalidInputError: the rows do not fit the table; nothing was written.
    """
    into = _into(scope, statement, planned_query)
    if not into.frame.isStreaming:
        # Tasks write at the same time, so rows in the order of the statement are written by one.
        with _own_errors():
            into.table.write(into.frame.coalesce(1) if _has_order(statement, into.made) else into.frame)
        return None
    if into.ends:
        _run_to_the_end(scope, statement, into)
        return None
    checkpoint = _checkpoint(scope, statement)
    check_partitions(checkpoint, into.read)
    check_columns(scope, statement, checkpoint)
    if not scope.settings.get(NAME):
        _warn_of_start(scope, statement, checkpoint)
    return _started(scope, statement, into, checkpoint, scope.settings.trigger)


def _warn_of_start(scope: Scope, statement: Insert, checkpoint: str) -> None:
    """Log a warning if a query without a name starts over, because a definition was changed since it first started."""
    text, place = hashlib.sha256(render(statement).encode()).hexdigest().encode(), Storage.at(checkpoint)
    if place.exists(_STATEMENT):
        return
    folder, own = Storage.at(scope.checkpoints), folder_name(statement.target, "")
    others = (f"{name}/{_STATEMENT}" for name in folder.names() if name.startswith(own))
    if any(folder.read(each) == text for each in others):
        logger.warning(
            "INSERT INTO '%s' starts over: a definition that it uses was changed since it began. It reads all rows "
            "again, so a table that appends or adds up rows gets them twice. A query that has a 'pipeline.name' from "
            "its first start on continues after such changes.",
            statement.target,
        )
    place.put(_STATEMENT, text)


def _run_to_the_end(scope: Scope, statement: Insert, into: _Into) -> None:
    """Write every change of bounded tables; a later run reads them again, so the checkpoint is for this one only."""
    folder = Storage.at(scope.checkpoints)
    name = folder_name(statement.target, uuid.uuid4().hex[:16])
    try:
        query = _started(scope, statement, into, folder.child(name).root, {"availableNow": True})
        try:
            query.awaitTermination()
        finally:
            query.stop()
    finally:
        folder.remove_tree(name)


def _started(
    scope: Scope, statement: Insert, into: _Into, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    made, columns, planned = into.made, into.columns, into.planned
    each, enforcers = planned.transform, scope.settings.enforcers
    with allowed(scope.spark, chained=planned.chained, timed=planned.timed):
        return into.table.write_stream(
            into.frame,
            checkpoint=checkpoint,
            output_mode=planned.mode,
            trigger=trigger,
            query_name=f"{given}: {statement.target}" if (given := scope.settings.get(NAME)) else None,
            transform=each
            and (lambda batch: aligned(Plan(each(batch), changes=planned.changes), made, columns, enforcers)),
        )


def explained_insert(scope: Scope, statement: Insert) -> Plan:
    """Plan an INSERT with all its checks, and write nothing.

    Raises:
        InvalidInputError: the rows do not fit the table.
    """
    return _into(scope, statement).planned


@dataclass(frozen=True)
class _Into:
    """A query that is planned for the table that it writes into.

    Attributes:
        read: the topics that it reads with a watermark.
        ends: whether its streaming frame ends by itself.
    """

    made: CreateTable
    table: ConnectorTable | TableStore
    columns: Columns
    planned: Plan
    frame: DataFrame
    read: list[tuple[str, list[Partition]]]
    ends: bool


def _into(scope: Scope, statement: Insert, planned_query: Relation | DataFrame | None = None) -> _Into:
    name, made = _target(scope, statement)
    check_sink(made)
    written = with_partition(made, statement)
    columns = inserted_columns(made, written)
    table = open_table(scope, name)
    ends = planned_query is None and _ends_with_deletes(scope, made, written.query)
    with partitions_noted() as read, ExitStack() as planning:
        if ends:
            planning.enter_context(scope.without_checkpoint())
            planning.enter_context(scope.with_every_change())
        found = _planned(scope, written.query) if planned_query is None else planned_query
        if isinstance(found, DataFrame):
            planned = Plan(found)
        else:
            preimages = False
            if not found.grows and isinstance(table, TableStore):
                preimages = needs_preimages(table, made.name, every=found.every is not None)
            planned = replace(planned_into(found, made, columns, preimages=preimages), timed=found.timed)
    frame = aligned(planned, made, columns, scope.settings.enforcers)
    if planned.transform is not None:
        # `aligned` has checked the columns on the planned shape; the rows are transformed and aligned per micro-batch.
        frame = planned.frame
    return _Into(made, table, columns, planned, frame, read, ends)


def _ends_with_deletes(scope: Scope, made: CreateTable, query: Query) -> bool:
    """Return whether a query ends by itself, and may delete rows that the table had before."""
    if scope.settings.mode is Mode.BATCH or not (made.primary_key or is_changelog(made)):
        return False
    check_there(scope, query)
    return ends_with_changes(scope, with_hints(scope, query))


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise an error of this program in a task of Spark as it was raised there.

    Raises:
        InvalidInputError: a task raised one.
    """
    try:
        yield
    except PythonException as error:
        found = _OWN_ERROR.search(str(error))
        if found is None:
            raise
        raise InvalidInputError(found[1].strip()) from error


def create_table_as(scope: Scope, statement: CreateTableAs) -> StreamingQuery | None:
    """Create a table with the columns of a query, and insert its rows.

    A rejected INSERT has changed nothing, so a table that was created for it is dropped again. After any other error it
    stays: the INSERT may have committed.

    Raises:
        InvalidInputError: a column has no name, or a type that a table cannot have.
        AlreadyExistsError: there is a table of that name.
    """
    found, made = _planned(scope, statement.query), statement.table
    frame = found if isinstance(found, DataFrame) else (found.shape or found.rows or found.changes()).drop(CHANGE_TYPE)
    columns: dict[str, PhysicalColumn] = {}
    for field in frame.schema:
        try:
            columns[field.name] = PhysicalColumn(field.name, of_spark(field.dataType))
        except ValueError as error:
            msg = f"CREATE TABLE '{made.name}' AS: column '{field.name}': {error}. Use CAST(... AS ...) in the query."
            raise InvalidInputError(msg) from error
    if statement.names and sorted(statement.names) != sorted(columns):
        msg = (
            f"CREATE TABLE '{made.name}' AS: expected the names of the query's columns in some order "
            f"({', '.join(columns)}), got {', '.join(statement.names)}. Declare other columns with a type."
        )
        raise InvalidInputError(msg)
    declared = {column.name: column for column in made.columns}
    # As in Flink, new columns come first, and those of the query may be declared with another type.
    in_order = [column for name, column in declared.items() if name not in columns]
    in_order += [declared.get(name, columns[name]) for name in statement.names or columns]
    made = replace(made, columns=tuple(in_order))
    is_new = create_table(scope, made)
    names = frame.columns if frame.columns != [each.name for each in insertable_columns(made)] else []
    try:
        return insert(scope, Insert(made.name, statement.query, tuple(names)), found)
    except InvalidInputError:
        if is_new:
            drop(scope, Drop(made.name, temporary=made.temporary))
        raise


def _target(scope: Scope, statement: Insert) -> tuple[str, CreateTable]:
    """Return the name and the definition of the table that a statement writes to, with the options of its hint."""
    made = scope.definition(statement.target).made
    if not isinstance(made, CreateTable):
        msg = f"INSERT INTO '{statement.target}': this is a view; write into its tables."
        raise InvalidInputError(msg)
    if not statement.hints:
        return statement.target, made
    if connector_of(made) is None:
        refuse_hints(scope, f"INSERT INTO '{statement.target}'", statement.hints)
        return statement.target, made
    name = hinted(scope, statement.target, statement.hints)
    made = scope.definition(name).made
    assert isinstance(made, CreateTable), "a hinted table is one"
    return name, made


def refuse_hints(scope: Scope, what: str, options: Options) -> None:
    """Check that a hint of a store table that is written to changes nothing, since its own options apply.

    Raises:
        InvalidInputError: hints are switched off, or an option would change something.
    """
    check_hints_allowed(scope)
    for key, _ in options:
        if not is_idle(key):
            rule = "a store table is written with its own options"
            msg = f"{what}: option '{key}' of a hint: {rule}. Remove the hint, or set it by ALTER TABLE ... SET."
            raise InvalidInputError(msg)


def with_partition(made: CreateTable, statement: InsertOrOverwrite) -> InsertOrOverwrite:
    """Return a statement whose query has the values of ``PARTITION (...)`` as columns.

    Raises:
        InvalidInputError: a column of it is not one of PARTITIONED BY, or is among those of the statement.
    """
    fixed = dict(partition_values(made, ((name, value) for name, value in statement.partition if value is not None)))
    unknown = [name for name, _ in statement.partition if name not in made.partitioned_by]
    if unknown:
        there = f"it has {', '.join(made.partitioned_by)}" if made.partitioned_by else "it has none"
        msg = f"INSERT INTO '{made.name}': PARTITION: {', '.join(unknown)}: not a partition column; {there}."
        raise InvalidInputError(msg)
    if not fixed:
        return statement
    names = statement.columns or tuple(each.name for each in insertable_columns(made) if each.name not in fixed)
    tree = statement.query.tree.copy()
    values = [value.tree.copy() for value in fixed.values()]
    if isinstance(tree, exp.Values):
        for row in list(tree.expressions):
            given = row.expressions if isinstance(row, exp.Tuple) else [row.copy()]
            row.replace(exp.Tuple(expressions=[*given, *(each.copy() for each in values)]))
    else:
        named = [exp.alias_(each, name, quoted=True) for name, each in zip(fixed, values, strict=True)]
        tree = exp.Select(expressions=[exp.Star(), *named]).from_(
            exp.Subquery(this=tree, alias=exp.TableAlias(this=exp.to_identifier("_rows")))
        )
    return replace(statement, columns=(*names, *fixed), query=replace(statement.query, tree=tree), partition=())


def _has_order(statement: Insert, made: CreateTable) -> bool:
    """Return whether a statement gives its rows in an order that the target keeps."""
    tree = statement.query.tree
    return isinstance(tree, exp.Values) or (connector_of(made) is not None and tree.args.get("order") is not None)


def insert_all(scope: Scope, statement: StatementSet) -> tuple[StreamingQuery, ...]:
    """Run several inserts; if one fails to start, stop the streaming queries already started."""
    started: list[StreamingQuery] = []
    try:
        for each in statement.inserts:
            query = insert(scope, each)
            started += [query] if query is not None else []
    except Exception:
        for query in started:
            query.stop()
        raise
    return tuple(started)


def inserted_columns(made: CreateTable, statement: Insert | Overwrite) -> Columns:
    """Return the columns that an INSERT fills, in the order it names them."""
    there = {column.name: column for column in insertable_columns(made)}
    if not statement.columns:
        return tuple(there.values())
    declared = {column.name for column in made.columns}
    for name in statement.columns:
        if name not in there:
            why = "is computed or virtual and cannot be written" if name in declared else "is not a column"
            msg = f"INSERT INTO '{made.name}': '{name}' {why}; there are {', '.join(there)}."
            raise InvalidInputError(msg)
    if len(set(statement.columns)) != len(statement.columns):
        msg = f"INSERT INTO '{made.name}': a column is named twice: {', '.join(statement.columns)}."
        raise InvalidInputError(msg)
    for name in made.primary_key:
        if name not in statement.columns:
            msg = f"INSERT INTO '{made.name}': column '{name}' is in the PRIMARY KEY, but is not given."
            raise InvalidInputError(msg)
    return tuple(there[name] for name in statement.columns)


def needs_preimages(table: TableStore, name: str, *, every: bool) -> bool:
    """Return whether a table merges the rows of a key, so that it needs the rows that updates replace, too.

    Args:
        table: the table.
        name: its name.
        every: whether the query has every change of a key, and not only the last one of a micro-batch.

    Raises:
        InvalidInputError: the table adds rows up and cannot take them back, or it keeps the first row of each key.
    """
    merge = table.options.merge
    if merge.engine is Engine.FIRST_ROW and not (every and merge.ignore_delete):
        msg = (
            f"Table sink '{name}' doesn't support consuming update changes, which this query makes: the table keeps "
            "the first row of each key, and of several rows of a key in a micro-batch the query has the last one. Read "
            "a table whose rows are only added, or, with 'ignore-delete' = 'true', one of a changelog format with a "
            f"PRIMARY KEY, or create '{name}' without 'merge-engine' and choose the first row: {ONE_ROW}."
        )
        raise InvalidInputError(msg)
    rule = merge_rule(merge, arrow_schema(table.schema), table.primary_key, table.partition_by)
    if merge.engine is Engine.FIRST_ROW or (rule.takes_deletes_back and not rule.why_refused):
        return True
    if rule.adds_up and not rule.drops:
        why = rule.why_refused or f"a delete removes the row of its key ({AGGREGATION_REMOVE})"
        msg = (
            f"Table sink '{name}' doesn't support consuming update changes, which this query makes: the table would "
            f"add the rows after updates to those before, and could not take those back: {why}."
        )
        raise InvalidInputError(msg)
    return False


def planned_into(found: Relation, made: CreateTable, columns: Columns, *, preimages: bool) -> Plan:
    """Plan a query for the table its rows are written to.

    With ``preimages``, it is a store table that merges rows, and takes back those that updates replace.

    Raises:
        InvalidInputError: the query updates earlier rows, and the table or its primary key cannot represent that.
    """
    if connector_of(made) in SHOWN:
        return plan_shown(found)
    merges = preimages
    # `aligned` reports a wrong number of columns.
    places = [number for number, column in enumerate(columns) if column.name in made.primary_key]
    key = tuple(place for place in places if place < len(found.names))
    if found.blind and (made.primary_key or is_changelog(made)):
        check_replaced(found, made, key, takes_back=merges or is_changelog(made))
    if not found.grows and is_changelog(made):
        if not made.primary_key:
            return Plan(found.changes(), UPDATE, chained=True, changes=True)
        preimages = True
    elif not found.grows and (connector_of(made) is Connector.KAFKA or not made.primary_key):
        msg = (
            f"Table sink '{made.name}' doesn't support consuming update changes, which this query makes: its rows "
            "replace earlier ones. INSERT INTO an 'upsert-kafka' table or a store table, either with a PRIMARY KEY, or "
            "a 'kafka' table with a changelog format, such as 'debezium-json'."
        )
        raise InvalidInputError(msg)
    if merges and found.every is not None:
        # What rows add up to must not depend on which changes are in one micro-batch, even if two insert the same key.
        return Plan(found.every(), UPDATE, chained=True, changes=True)
    combines = merges or _is_union_by_key(found, made, key)
    planned = plan_into(found, key, preimages=preimages, combines=combines)
    if planned is None:
        known = "are not known to do so" if found.key is None else "do not"
        msg = (
            f"INSERT INTO '{made.name}': its PRIMARY KEY ({', '.join(made.primary_key)}) must contain all columns that "
            f"identify the query's rows (those it groups by, or the key of the table it reads); the inserted columns "
            f"{known}, so several rows could replace each other in undefined order (Flink would keep them all in an "
            "operator before the sink, upsertMaterialize, and write the last one). INSERT those columns INTO the key, "
            "create a table with the key of the query, declare the PRIMARY KEY of a table of changes that it reads, or "
            f"choose one row for each key: {ONE_ROW}."
        )
        raise InvalidInputError(msg)
    return planned


def _is_union_by_key(found: Relation, made: CreateTable, key: tuple[int, ...]) -> bool:
    """Return whether a query is a UNION ALL of rows by a table's key, which the table combines into one row."""
    engine = dict(made.options).get("merge-engine")
    if engine not in (Engine.PARTIAL_UPDATE, Engine.AGGREGATION) or found.keys is None:
        return False
    return all(set(part) <= set(key) for part in found.keys)


def _checkpoint(scope: Scope, statement: Insert) -> str:
    """Return the checkpoint folder of a query, so that the same query resumes where it stopped.

    Queries are the same if they have the same target and ``pipeline.name``. Without a name, they are the same if the
    statement and the definitions of the tables it reads and writes are, also of those behind views.
    """
    name = scope.settings.get(NAME)
    if not name:
        definitions = [definition_of(scope, statement.target), *definitions_in(scope, statement.query)]
        # A table that was dropped and created again lacks the rows written before; its version makes it a new query.
        parts = [render(statement), *(f"{each.version} {render(each.made)}" for each in definitions)]
        name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return f"{scope.checkpoints}/{folder_name(statement.target, name)}"

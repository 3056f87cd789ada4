"""Plans the catalog's tables as inputs of continuous queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.row_kind import ADDED, CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import COMMIT_VERSION, SEQ
from tablestore.connectors.option_names import Connector
from tablestore.spark.changelog import changelog
from tablestore.sql.catalog.binding import ADDS_REPLACED, connector_of, expression_of, generated, is_changelog, name_of
from tablestore.sql.catalog.hints import BOUNDED, adds_replaced, since, stream_read, with_hints
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_frames import ConnectorTable, GeneratedTable, timed_rows, with_computed
from tablestore.sql.catalog.table_references import check_there, is_change_table, is_inside, tables_in
from tablestore.sql.parser.statements import CreateTable, CreateView, Query
from tablestore.sql.queries.batch_query import DEPTH_MAX, batch_table, open_table, within_view
from tablestore.sql.queries.relation import Relation, first_and_last_of, last_of, of_changes, of_rows
from tablestore.sql.queries.unsupported import is_momentary
from tablestore.table.store import TableStore


def is_endless(scope: Scope, name: str) -> bool:
    """Return whether a table is read as a stream, or a view reads such a table."""
    return any(
        is_change_table(scope, each) if made is None else _goes_on(scope, made)
        for each, made in _tables_of(scope, name)
    )


def ends_with_changes(scope: Scope, query: Query) -> bool:
    """Return whether all tables of a query are bounded, and one has messages that may delete rows it never had."""
    if any(is_endless(scope, name) for name in tables_in(query)):
        return False
    tables = (made for name in tables_in(query) for _, made in _tables_of(scope, name))
    return any(made is not None and is_changelog(made) for made in tables)


def _tables_of(scope: Scope, name: str, depth: int = 0) -> Iterator[tuple[str, CreateTable | None]]:
    """Yield a table, or the tables that a view reads: the name and the definition, None for a metadata table."""
    made = None if is_inside(scope, name) else scope.definition(name, stored=False).made
    if not isinstance(made, CreateView):
        yield name, made
        return
    with within_view(made):
        check_there(scope, made.query)
        # Planning reports a view that reads itself; here the depth only ends the recursion.
        names = tables_in(with_hints(scope, made.query)) if depth < DEPTH_MAX else ()
    for each in names:
        yield from _tables_of(scope, each, depth + 1)


def source(scope: Scope, made: CreateTable, *, timed: bool = False) -> Relation:
    """Plan a table as an input; one with a primary key gives changes, with the rows that they replace.

    If ``timed``, it has the watermark of its definition.
    """
    if not _goes_on(scope, made):
        return of_rows(batch_table(scope, made.name, 0))
    table = open_table(scope, made.name)
    if isinstance(table, GeneratedTable):
        return of_rows(table.read_timed() if timed else table.read_stream())
    if is_changelog(made) and not isinstance(table, TableStore):
        return _of_changelog(table.read_stream(ordered=True), made)
    if not isinstance(table, TableStore):
        has_watermark = timed and made.watermark is not None and not made.primary_key
        frame = table.read_timed() if has_watermark else table.read_stream(ordered=bool(made.primary_key))
        return _of_key_table(frame, made) if made.primary_key else of_rows(frame)
    definition = scope.definition(made.name)
    options = stream_read(definition, anywhere=not table.log.shows_uncommitted)
    if not made.primary_key:
        added = _added(table.read_stream(**options), name_of(made), replaces=adds_replaced(definition))
        rows = with_computed(added, made)
        return of_rows(timed_rows(rows, made) if timed else rows)
    late = since(definition)
    found = _of_key_table(with_computed(_changes_of(table, options, late=bool(late)), made), made)
    if not late:
        return found
    if not table.options.looks_up:
        return replace(found, since=late, blind=f"'{late}' begins in the middle")
    return replace(found, since=late, every=lambda: with_computed(table.read_stream(**options), made))


def timed_changes(scope: Scope, made: CreateTable) -> DataFrame:
    """Return every change of a table with a primary key and a watermark: its columns, ``_change_type`` and ``_seq``.

    Of a table of a connector that is each message, or each row of one.

    Raises:
        InvalidInputError: the log of a store table shows uncommitted changes, of which some are folded.
    """
    table = open_table(scope, made.name)
    if not isinstance(table, TableStore):
        return table.read_timed()
    if table.log.shows_uncommitted:
        msg = (
            f"'{made.name}' FOR SYSTEM_TIME AS OF an event time: not with log.consistency='eventual', whose stream has "
            "one change for each key and micro-batch, not every version. Use a transactional log."
        )
        raise InvalidInputError(msg)
    changes = table.read_stream(**stream_read(scope.definition(made.name)))
    return timed_rows(with_computed(changes.withColumn(SEQ, F.col(COMMIT_VERSION)), made), made)


def _of_changelog(changes: DataFrame, made: CreateTable) -> Relation:
    """Return the changes of a changelog format; by primary key, they are merged into one for each micro-batch."""
    if not made.primary_key:
        return of_changes(changes.drop(SEQ), None)
    # The changes hold the rows they replace, but a micro-batch may have several of one key.
    merged = _of_key_table(first_and_last_of(changes, made.primary_key, F.col(SEQ)), made)
    return replace(merged, every=lambda: changes.drop(SEQ))


def _added(changes: DataFrame, name: str, *, replaces: bool) -> DataFrame:
    """Return the changes of a table without a primary key as append-only rows; any other change fails the query.

    Deletes from such tables are rare, and a query that had to expect them could not use windows, MIN or MAX. With
    ``replaces``, rows that replace others are further rows, and deleted rows are ignored.
    """
    if replaces:
        return changes.where(F.col(CHANGE_TYPE).isin(*ADDED)).drop(CHANGE_TYPE)
    msg = (
        f"table '{name}' has no PRIMARY KEY, so this query expects rows to be inserted only, but rows were deleted or "
        "updated. Restart the query (DROP and CREATE the table it goes into, or SET 'pipeline.name'), give the table a "
        f"PRIMARY KEY, or set its option '{ADDS_REPLACED}' to take the new rows of an update for further ones."
    )
    is_added = F.col(CHANGE_TYPE) == RowKind.INSERT.change_type
    return changes.where(F.when(is_added, F.lit(True)).otherwise(F.raise_error(F.lit(msg)).cast("boolean"))).drop(
        CHANGE_TYPE
    )


def _changes_of(table: TableStore, options: Mapping[str, Any], *, late: bool) -> DataFrame:
    """Return a store table's changes with the rows they replace; at most one change per key and micro-batch.

    The stream of a log that shows uncommitted changes already has both properties, since it is normalized. ``options``
    are arguments of ``TableStore.read_stream``. If ``late``, there are changes of rows that the stream never had.
    """
    changes, key = table.read_stream(**options), table.primary_key
    if table.log.shows_uncommitted:
        return changes
    order = F.col(COMMIT_VERSION)
    if keeps_rows(table):
        last = last_of(changes, key, order).withColumn(SEQ, order)
        return changelog(last, table.schema, key, carried=(SEQ,), unknown=late)
    # The changes include the rows they replace, but several snapshots in a micro-batch may change the same key.
    return first_and_last_of(changes, key, order).withColumn(SEQ, order)


def _of_key_table(changes: DataFrame, made: CreateTable) -> Relation:
    names = [column.name for column in made.columns]
    momentary = frozenset(each.name for each in made.computed if is_momentary(expression_of(each)))
    found = of_changes(changes, [names.index(name) for name in made.primary_key])
    return replace(found, momentary=momentary)


def keeps_rows(table: ConnectorTable | TableStore) -> bool:
    """Return whether a query over a table keeps all its rows in Spark's state, to have those that changes replace."""
    if not isinstance(table, TableStore) or not table.primary_key:
        return False
    return not table.log.shows_uncommitted and not table.options.looks_up


def _goes_on(scope: Scope, made: CreateTable) -> bool:
    connector = connector_of(made)
    if connector is None:
        return dict(made.options).get(BOUNDED) != "true"
    if connector is Connector.DATAGEN:
        return generated(made).rows is None
    is_bounded = str(dict(made.options).get("scan.bounded.mode", "unbounded")).lower() != "unbounded"
    return scope.reads_every_change or not is_bounded

"""Batch reads of snapshots and changes as Spark frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from log_system.kafka.client.access_policy import DEFAULT
from log_system.kafka.client.secrets import reveal
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from tablestore.context import TableContext
from tablestore.options.read_options import (
    FORMAT,
    NEWEST,
    parse_read_options,
    parse_schema_choice,
)
from tablestore.options.value_types import names_of
from tablestore.read import anti_join_scan, bitmap_scan
from tablestore.read.base_table_columns import is_worth_it, read_by_delta
from tablestore.read.spark_splits import frame_of_splits
from tablestore.read.split_planner import snapshot_splits
from tablestore.read.time_travel import Point, between, chosen_snapshot
from tablestore.spark.lost_files import explain_lost_files
from tablestore.spark.scala_classes import prunes_reads
from tablestore.spark.tasks import parallelism


def read(
    spark: SparkSession,
    table: TableContext,
    *,
    snapshot: int | None,
    timestamp: datetime | str | int | None,
    columns: str | Sequence[str] | None,
    push_filters: bool = False,
    tag: str | None = None,
    schema: str = NEWEST,
) -> DataFrame:
    """Return a frame of a snapshot's rows.

    Spark reads the files itself if they are large and there are no changes to merge, or if a bitmap scan or an
    anti-join merges them. Otherwise, Python tasks read the files and merge the changes bucket by bucket.

    Args:
        spark: the session.
        table: the table.
        snapshot: the snapshot's id; None for the newest.
        timestamp: read the newest snapshot at or before this time instead.
        columns: the columns to read; None for all.
        tag: read the snapshot with this tag instead.
        push_filters: the caller scans the frame only once, so its filters may be pushed down to the files.
        schema: ``newest`` for the table's current columns, ``own`` for those that it had in the snapshot.

    Raises:
        NotFoundError: there is no such snapshot or tag.
        InvalidInputError: more than one of snapshot, timestamp and tag is given, a column is unknown, or ``schema`` is
            neither ``newest`` nor ``own``.
    """
    is_own = parse_schema_choice(schema)
    files = table.files
    snapshot = chosen_snapshot(files, snapshot, timestamp, tag)
    explain_lost_files(files)
    spec = files.spec_of(snapshot) if is_own else table.spec
    names = spec.schema.fieldNames()
    columns = None if columns is None else names_of(columns)
    unknown = [name for name in columns or () if name not in names]
    if unknown:
        msg = f"read: unknown columns {unknown}; the table has {names}."
        raise InvalidInputError(msg)
    wanted = list(columns) if columns is not None else names
    # If a tag keeps an expired snapshot, Delta may no longer know its version; the tag lists its files.
    tagged = snapshot < files.oldest(fresh=False)
    layout = files.layout(snapshot)
    is_large = is_worth_it([*layout.base, *layout.changes])
    found = None
    if is_large and not tagged and not layout.changes:
        found = read_by_delta(spark, table.path, layout.root_version, spec, wanted)
        if found is not None:
            return found
    options = {**source_options(spark, table), "snapshot": str(snapshot), "schema": schema}
    tasks = parse_read_options(options).tasks
    if layout.changes:
        prunable = bool(spec.partition_by) or (columns is None and not prunes_reads(spark))
        found = bitmap_scan.scanned(spark, files, spec, layout, wanted, tasks)
        if found is None and not tagged and anti_join_scan.is_worth_it(layout, len(wanted), prunable=prunable):
            found = anti_join_scan.overlaid(spark, files, spec, layout, wanted, tasks)
        if found is not None:
            return found
    if push_filters and is_large:
        pushed = {**options, "columns": "\x1f".join(wanted), "pushFilters": "true"}
        return spark.read.format(FORMAT).options(**pushed).load().select(*[backquoted(name) for name in wanted])
    return frame_of_splits(
        spark, snapshot_splits(files, snapshot, tasks=tasks, columns=wanted, spec=spec), spec, wanted
    )


def read_compacted(spark: SparkSession, table: TableContext) -> DataFrame:
    """Return the rows of the last compaction, without the changes since then; of a table without a key, all rows."""
    files, spec, names = table.files, table.spec, table.spec.schema.fieldNames()
    layout = replace(files.layout(files.latest()), changes=())
    explain_lost_files(files)
    if is_worth_it(layout.base):
        found = read_by_delta(spark, table.path, layout.root_version, spec, names)
        if found is not None:
            return found
    tasks = parse_read_options(source_options(spark, table)).tasks
    return frame_of_splits(spark, snapshot_splits(files, layout, tasks=tasks), spec, names)


def read_changes(spark: SparkSession, table: TableContext, from_: Point, to: Point | None) -> DataFrame:
    """Return the changes after one snapshot and up to another, by default the newest, from the table's files.

    Raises:
        NotFoundError: there is no such snapshot or tag.
        DataLostError: changes in between have expired.
        InvalidInputError: ``to`` is older than ``from_``.
    """
    after, through = between(table.files, from_, to)
    given = {"changesAfter": after, "changesThrough": through, "readChangeFeed": "true"}
    options = source_options(spark, table) | {name: str(value) for name, value in given.items()}
    return spark.read.format(FORMAT).options(**options).load()


def source_options(spark: SparkSession, table: TableContext) -> dict[str, str]:
    """Return the options with which ``format("tablestore")`` reads a table."""
    # Spark runs the data source in processes whose environment may differ from this one's.
    allowed = {"allowReferences": table.allowed.text} if table.allowed.entries != DEFAULT else {}
    own = {"path": table.path, "tableId": table.spec.table_id}
    return {**own, "tasks": str(parallelism(spark)), **allowed, **reveal(table.runtime)}

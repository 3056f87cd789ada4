"""Verbs on a table with a primary key: the changes of a snapshot's rows, as frames that are staged like any write.

A frame of changes has the table's columns, ``_kind`` and ``_seq``. The last change of a key counts while staging, so a
row that is deleted and comes in again in the same verb needs no join: deletes come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from snapshot.merge.predicate import Predicate
from snapshot.quoting import backquoted
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ
from snapshot.staging.stage import AMBIGUOUS, OUTSIDE, TAKEN, StagedFile, Stager
from tablestore.context import TableContext
from tablestore.dml.conditions import columns_read, holds
from tablestore.dml.merge_clauses import Action, Match
from tablestore.dml.merge_join import MergeJoin
from tablestore.read.batch import read
from tablestore.read.spark_splits import frame_of_splits
from tablestore.read.split_planner import snapshot_splits
from tablestore.write.prepare_input import table_columns
from tablestore.write.staging_job import run_staging

_BEFORE_ALL = 1 << 62
"""Row numbers of Spark stay below it: taken off, a delete comes before every row that comes in."""


class Fate(IntEnum):
    """What becomes of a row under its key, while it is not yet known what else comes under that key."""

    CHANGED = 10
    """It gets other values and keeps its key."""
    ARRIVED = 11
    """A row comes in under this key: a new one, or one that had another key."""
    DELETED = 12
    LEFT = 13
    """It goes on under another key."""
    STAYS = 14


def rows_at(
    spark: SparkSession, table: TableContext, snapshot: int | None, columns: Sequence[str] | None = None
) -> DataFrame:
    """Read the rows of a snapshot, for a frame that scans them once: filters on it reach the files."""
    return read(spark, table, snapshot=snapshot, timestamp=None, columns=columns, push_filters=True)


def rows_by_bucket(
    spark: SparkSession, table: TableContext, snapshot: int, columns: Sequence[str], predicate: Predicate
) -> DataFrame:
    """Read those rows of a snapshot of which conditions are true, a bucket by each task.

    DuckDB leaves the others out while it merges, and what is left may be staged without a shuffle.
    """
    parts = snapshot_splits(table.files, snapshot, tasks=1, columns=columns, predicate=predicate)
    return frame_of_splits(spark, parts, table.spec, columns)


def stage(frame: DataFrame, table: TableContext, stager: Stager, *, by_bucket: bool = False) -> list[StagedFile]:
    """Stage a frame of changes by one Spark job; ``by_bucket`` where each bucket's are in one partition already.

    Raises:
        InvalidInputError: rows were rejected; the files staged by then are removed.
    """
    if by_bucket:
        return run_staging(frame, stager)
    keys = [F.col(backquoted(name)) for name in table.spec.primary_key]
    buckets = table.options.buckets
    placed = frame.withColumn(BUCKET, F.pmod(F.hash(*keys), F.lit(buckets)))
    return run_staging(placed.repartitionById(buckets, F.col(BUCKET)), stager)


def deletes(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Make deletes of rows, which need their key only."""
    columns = [
        F.col(backquoted(f.name)) if f.name in spec.primary_key else F.lit(None).cast(f.dataType).alias(f.name)
        for f in spec.schema.fields
    ]
    order = (F.monotonically_increasing_id() - F.lit(_BEFORE_ALL)).alias(SEQ)
    return rows.select(*columns, _kind(RowKind.DELETE), order)


def delete(
    spark: SparkSession, table: TableContext, snapshot: int, where: Column | None, needs: Predicate
) -> DataFrame:
    """Give the deletes of the rows that a condition selects; of all without one.

    Args:
        spark: the session.
        table: the table.
        snapshot: the snapshot whose rows they are.
        where: the condition.
        needs: what it asks of single columns; where that is anything, the frame is by bucket.
    """
    columns = list(dict.fromkeys([*table.spec.primary_key, *columns_read(spark, table.spec.schema, where)]))
    if needs.conditions:
        rows = rows_by_bucket(spark, table, snapshot, columns, needs)
    else:
        rows = rows_at(spark, table, snapshot, columns)
    return deletes(rows if where is None else rows.where(where), table.spec)


def update(
    spark: SparkSession,
    table: TableContext,
    snapshot: int,
    where: Column,
    values: Mapping[str, Column],
    needs: Predicate,
) -> DataFrame:
    """Give the changes of an update; ``needs`` as for ``delete``.

    Where a key is set, rows move, and whether two meet can only be told with all keys of the table: ``needs`` is empty.
    """
    spec, names = table.spec, table.spec.schema.fieldNames()
    rows = rows_by_bucket(spark, table, snapshot, names, needs) if needs.conditions else rows_at(spark, table, snapshot)
    if not set(values) & set(spec.primary_key):
        columns = [values.get(name, F.col(backquoted(name))).alias(name) for name in names]
        return rows.where(where).select(*columns, _kind(RowKind.UPDATE_AFTER), _order())
    matched = rows.withColumn(BUCKET, holds(where))
    old = [F.col(backquoted(name)).alias(f"o{number}") for number, name in enumerate(names)]
    # An expression may fail on a row that is not selected.
    new = [
        F.when(F.col(BUCKET), values.get(name, old)).otherwise(old).alias(f"n{number}")
        for number, (name, old) in enumerate((name, F.col(backquoted(name))) for name in names)
    ]
    both = matched.select(*old, *new, F.col(BUCKET))
    same = same_key(spec)
    fate = F.when(~F.col(BUCKET), int(Fate.STAYS)).when(same, int(Fate.CHANGED)).otherwise(int(Fate.ARRIVED))
    return decided(fates(both, spec, fate, F.when(F.col(BUCKET) & ~same, int(Fate.LEFT))), spec)


def overwrite(rows: DataFrame, old: DataFrame, spec: TableSpec, where: Column | None) -> DataFrame:
    """Give the changes of an overwrite.

    Args:
        rows: the rows that come in, with the table's columns.
        old: the keys that go.
        spec: the table.
        where: what every row that comes in must fulfil.
    """
    kind = F.lit(int(RowKind.UPDATE_AFTER))
    if where is not None:
        kind = F.when(holds(where), kind).otherwise(F.lit(OUTSIDE))
    coming = rows.select(*table_columns(rows.schema, spec)).select("*", kind.cast("byte").alias(KIND), _order())
    return deletes(old, spec).unionByName(coming)


def of_partitions(spark: SparkSession, table: TableContext, snapshot: int | None, rows: DataFrame) -> DataFrame:
    """Give the keys of the rows in those partitions that occur in others."""
    spec = table.spec
    old = rows_at(spark, table, snapshot, list(dict.fromkeys([*spec.primary_key, *spec.partition_by])))
    # The Delta protocol has one partition for NULL and the empty string.
    values = [
        F.when(F.col(backquoted(n)).cast("string") != "", F.col(backquoted(n))).alias(f"p{i}")
        for i, n in enumerate(spec.partition_by)
    ]
    partitions = rows.select(*table_columns(rows.schema, spec)).select(*values).distinct()
    same = [F.col(backquoted(name)).eqNullSafe(F.col(f"p{number}")) for number, name in enumerate(spec.partition_by)]
    return old.join(F.broadcast(partitions), on=same, how="left_semi")


def merge(spark: SparkSession, table: TableContext, snapshot: int | None, merge: MergeJoin) -> DataFrame:
    """Give the changes of a merge.

    Where rows match by their keys alone, no row can come under the key of one that stays; else all keys of the table
    are looked at.
    """
    spec = table.spec
    keeps_rows = not merge.by_key or merge.has(Match.NOT_MATCHED_BY_SOURCE)
    how = {
        (False, False): "inner",
        (True, False): "left",
        (False, True): "right",
        (True, True): "full",
    }[keeps_rows, merge.has(Match.NOT_MATCHED)]
    target = rows_at(spark, table, snapshot).withColumn(KIND, F.lit(1))
    both = merge.joined(target, spec, how=how)
    if merge.by_key:
        both = both.where(F.col(SEQ).isNotNull())
    updates, same = merge.actions(Action.UPDATE), same_key(spec)
    of_new = (
        F.when(merge.actions(Action.INSERT), int(Fate.ARRIVED))
        .when(updates & same, int(Fate.CHANGED))
        .when(updates, int(Fate.ARRIVED))
    )
    of_old = (
        F.when(merge.actions(Action.DELETE), int(Fate.DELETED))
        .when(updates & ~same, int(Fate.LEFT))
        .when(F.col(SEQ).isNull() & F.col(KIND).isNotNull(), int(Fate.STAYS))
    )
    return decided(fates(both, spec, of_new, of_old), spec)


def same_key(spec: TableSpec) -> Column:
    """Tell, of a frame with columns ``o0``, ... and ``n0``, ..., whether old and new row have one key."""
    positions = [spec.schema.fieldNames().index(name) for name in spec.primary_key]
    same = F.lit(True)
    for position in positions:
        same = same & F.col(f"o{position}").eqNullSafe(F.col(f"n{position}"))
    return same


def fates(both: DataFrame, spec: TableSpec, of_new: Column, of_old: Column) -> DataFrame:
    """Give each key of a row before and after a verb its ``Fate``, in ``_kind``; where that is NULL, no row.

    Args:
        both: columns ``o0``, ... of the row before and ``n0``, ... of the row after.
        spec: the table.
        of_new: the fate under the key of the row after.
        of_old: the same for the row before, of which only the key is kept.
    """
    fields = list(enumerate(spec.schema.fields))
    new = [F.col(f"n{number}").alias(f"c{number}") for number, _ in fields]
    old = [
        (F.col(f"o{i}") if field.name in spec.primary_key else F.lit(None).cast(field.dataType)).alias(f"c{i}")
        for i, field in fields
    ]
    sides = F.array(F.struct(*new, of_new.cast("int").alias(KIND)), F.struct(*old, of_old.cast("int").alias(KIND)))
    each = both.select(F.explode(sides).alias("row")).select("row.*").where(F.col(KIND).isNotNull())
    return each.toDF(*spec.schema.fieldNames(), KIND)


def decided(told: DataFrame, spec: TableSpec) -> DataFrame:
    """Decide what each key becomes; staging refuses rows of which two would have one key, or one would become two.

    Args:
        told: the table's columns, and in ``_kind`` a ``Fate``.
        spec: the table.
    """
    under_key = Window.partitionBy(*[F.col(backquoted(name)) for name in spec.primary_key])
    fate = F.col(KIND)

    def count(which: Fate) -> Column:
        return F.sum((fate == int(which)).cast("int")).over(under_key)

    changed, arrived, gone = count(Fate.CHANGED), count(Fate.ARRIVED), count(Fate.DELETED) > 0
    left, stays = count(Fate.LEFT), count(Fate.STAYS) > 0
    is_ambiguous = changed + left + gone.cast("int") > 1
    is_there = (changed > 0) | (stays & ~gone & (left == 0))
    is_taken = (arrived > 1) | ((arrived == 1) & is_there)
    kind = (
        F.when(is_ambiguous, F.lit(AMBIGUOUS))
        .when(is_taken, F.lit(TAKEN))
        .when(fate.isin(int(Fate.CHANGED), int(Fate.ARRIVED)), F.lit(int(RowKind.UPDATE_AFTER)))
        .when(fate.isin(int(Fate.DELETED), int(Fate.LEFT)) & (arrived == 0), F.lit(int(RowKind.DELETE)))
    )
    return told.withColumn(KIND, kind.cast("byte")).where(F.col(KIND).isNotNull()).select("*", _order())


def _kind(kind: RowKind) -> Column:
    return F.lit(int(kind)).cast("byte").alias(KIND)


def _order() -> Column:
    return F.monotonically_increasing_id().alias(SEQ)

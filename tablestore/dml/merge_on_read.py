"""DML on a table with a primary key: computes changes of a snapshot's rows as frames that are staged like any write.

A frame of changes has the table's columns, ``_kind`` and ``_seq``. Staging keeps the last change of each key, and
deletes are ordered first. So no join is needed if a statement deletes a row and inserts one with the same key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.merge.predicate import Predicate
from snapshot.quoting import backquoted
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ
from snapshot.staging.stage import OUTSIDE, StagedFile, Stager
from tablestore.context import TableContext
from tablestore.dml.conditions import columns_read, holds
from tablestore.dml.merge_clauses import Action, Match
from tablestore.dml.merge_join import MergeJoin
from tablestore.dml.row_fates import Fate, change_of_fate
from tablestore.read.batch import read
from tablestore.read.spark_splits import frame_of_splits
from tablestore.read.split_planner import snapshot_splits
from tablestore.spark.tasks import parallelism
from tablestore.write.frame_input import by_buckets, run_staging, table_columns

_BEFORE_ALL = 1 << 62
"""Upper bound of Spark's row numbers. Subtracting it from ``_seq`` orders deletes before all inserted rows."""


def rows_at(
    spark: SparkSession, table: TableContext, snapshot: int | None, columns: Sequence[str] | None = None
) -> DataFrame:
    """Return a frame of a snapshot's rows, which must be scanned only once: filters are pushed down to the files."""
    return read(spark, table, snapshot=snapshot, timestamp=None, columns=columns, push_filters=True)


def rows_by_bucket(
    spark: SparkSession, table: TableContext, snapshot: int, columns: Sequence[str], predicate: Predicate
) -> DataFrame:
    """Return a frame of a snapshot's rows that satisfy ``predicate``, with one task per bucket.

    DuckDB filters the rows while it merges, and the result can be staged without a shuffle.
    """
    parts = snapshot_splits(
        table.files, snapshot, tasks=parallelism(spark), columns=columns, predicate=predicate, whole_buckets=True
    )
    return frame_of_splits(spark, parts, table.spec, columns)


def stage(frame: DataFrame, table: TableContext, stager: Stager, *, by_bucket: bool = False) -> list[StagedFile]:
    """Stage a frame of changes in one Spark job; ``by_bucket`` if each bucket is already in a single partition.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
    """
    if by_bucket:
        return run_staging(frame, stager)
    return run_staging(by_buckets(frame, table.spec, table.options.buckets), stager)


def deletes(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Return a delete for each row; only the key columns are needed."""
    columns = [
        F.col(backquoted(f.name)) if f.name in spec.primary_key else F.lit(None).cast(f.dataType).alias(f.name)
        for f in spec.schema.fields
    ]
    order = (F.monotonically_increasing_id() - F.lit(_BEFORE_ALL)).alias(SEQ)
    return rows.select(*columns, _kind(RowKind.DELETE), order)


def delete(
    spark: SparkSession, table: TableContext, snapshot: int, where: Column | None, needs: Predicate
) -> DataFrame:
    """Return deletes of the rows that a condition selects, or of all rows if there is none.

    ``needs`` is the part of the condition that our reader can apply; unless it is empty, the frame is by bucket.
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
    """Return the changes of an update; ``needs`` as for ``delete``.

    If a key column is set, rows move to other keys. Collisions can only be detected with all keys of the table, so
    ``needs`` is empty then.
    """
    spec, names = table.spec, table.spec.schema.fieldNames()
    rows = rows_by_bucket(spark, table, snapshot, names, needs) if needs.conditions else rows_at(spark, table, snapshot)
    if not set(values) & set(spec.primary_key):
        columns = [values.get(name, F.col(backquoted(name))).alias(name) for name in names]
        return rows.where(where).select(*columns, _kind(RowKind.UPDATE_AFTER), _order())
    matched = rows.withColumn(BUCKET, holds(where))
    old = [F.col(backquoted(name)).alias(f"o{number}") for number, name in enumerate(names)]
    # Evaluate values only on selected rows, because an expression may fail on others.
    new = [
        F.when(F.col(BUCKET), values.get(name, old)).otherwise(old).alias(f"n{number}")
        for number, (name, old) in enumerate((name, F.col(backquoted(name))) for name in names)
    ]
    both = matched.select(*old, *new, F.col(BUCKET))
    same = same_key(spec)
    fate = F.when(~F.col(BUCKET), int(Fate.STAYS)).when(same, int(Fate.CHANGED)).otherwise(int(Fate.ARRIVED))
    return decided(fates(both, spec, fate, F.when(F.col(BUCKET) & ~same, int(Fate.LEFT))), spec)


def overwrite(rows: DataFrame, old: DataFrame, spec: TableSpec, where: Column | None) -> DataFrame:
    """Return the changes of an overwrite by new rows, which must fulfil ``where``, of the rows with ``old`` keys."""
    kind = F.lit(int(RowKind.UPDATE_AFTER))
    if where is not None:
        kind = F.when(holds(where), kind).otherwise(F.lit(OUTSIDE))
    coming = rows.select(*table_columns(rows.schema, spec)).select("*", kind.cast("byte").alias(KIND), _order())
    return deletes(old, spec).unionByName(coming)


def of_partitions(spark: SparkSession, table: TableContext, snapshot: int | None, rows: DataFrame) -> DataFrame:
    """Return the keys of the table's rows in the partitions that occur in ``rows``."""
    spec = table.spec
    old = rows_at(spark, table, snapshot, list(dict.fromkeys([*spec.primary_key, *spec.partition_by])))
    # In the Delta protocol, NULL and the empty string are the same partition value.
    values = [
        F.when(F.col(backquoted(n)).cast("string") != "", F.col(backquoted(n))).alias(f"p{i}")
        for i, n in enumerate(spec.partition_by)
    ]
    partitions = rows.select(*table_columns(rows.schema, spec)).select(*values).distinct()
    same = [F.col(backquoted(name)).eqNullSafe(F.col(f"p{number}")) for number, name in enumerate(spec.partition_by)]
    return old.join(F.broadcast(partitions), on=same, how="left_semi")


def merge(spark: SparkSession, table: TableContext, snapshot: int | None, merge: MergeJoin) -> DataFrame:
    """Return the changes of a merge.

    If rows match by their keys alone, no row can arrive under the key of a row that stays. Otherwise, all keys of the
    table are read to detect collisions.
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
    """Return a column that is true where the old row (``o0``, ...) and the new row (``n0``, ...) have the same key."""
    positions = [spec.schema.fieldNames().index(name) for name in spec.primary_key]
    same = F.lit(True)
    for position in positions:
        same = same & F.col(f"o{position}").eqNullSafe(F.col(f"n{position}"))
    return same


def fates(both: DataFrame, spec: TableSpec, of_new: Column, of_old: Column) -> DataFrame:
    """Return a row, with its ``Fate`` in ``_kind``, for the key of each old and each new row; skip rows without a fate.

    Args:
        both: frame with columns ``o0``, ... of the old row and ``n0``, ... of the new row.
        spec: the table definition.
        of_new: fate under the new row's key; NULL for none.
        of_old: fate under the old row's key; NULL for none. Only the key of an old row is kept.
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


def decided(fates: DataFrame, spec: TableSpec) -> DataFrame:
    """Return the change of each key by the `Fate` in ``_kind``; mark invalid ones there, so that staging rejects them.

    See ``change_of_fate``.
    """
    kind = F.expr(change_of_fate(", ".join(map(backquoted, spec.primary_key))))
    return fates.withColumn(KIND, kind.cast("byte")).where(F.col(KIND).isNotNull()).select("*", _order())


def _kind(kind: RowKind) -> Column:
    return F.lit(int(kind)).cast("byte").alias(KIND)


def _order() -> Column:
    return F.monotonically_increasing_id().alias(SEQ)

"""A batch read as a Spark plan: the base by Spark's own Delta reader, without the changed keys, then the changed rows.

Spark prunes columns, partitions and row groups of the base by itself, which it cannot do where Python tasks merge. It
pays for that with the key's columns, which it reads too, and with a look into a broadcast of the changed keys for each
row: several times what DuckDB takes to merge the columns that are wanted. So it is worth it where the base is large,
the changes are few, and either nobody has said which columns will be used or there are partitions to leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.quoting import backquoted
from snapshot.schema.spec import TableSpec
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.read.base_table_columns import base_table_columns, shielded
from tablestore.read.spark_splits import frame_of_splits
from tablestore.read.split_planner import changed_key_splits, changed_row_splits

_BASE_BYTES_MIN = 32 << 20
_ROWS_MAX = 1_000_000
"""Changes whose keys are broadcast: some tens of megabytes."""
_ROWS_MAX_OF_COLUMN = 50_000
"""So many more changes cost as much here as one more column costs there (measured)."""


def is_worth_it(layout: SnapshotFiles, columns: int, *, prunable: bool) -> bool:
    """Tell whether the base is large, its changes are few, and Spark has something to prune.

    Args:
        layout: what the snapshot is made of.
        columns: how many are wanted.
        prunable: nobody has said which of them a query uses, or there are partitions to leave out.
    """
    rows = [file.rows for file in layout.changes]
    is_large = sum(f.size for f in layout.base) >= _BASE_BYTES_MIN
    are_few = min(rows, default=0) >= 0 and sum(rows) <= min(_ROWS_MAX, columns * _ROWS_MAX_OF_COLUMN)
    return is_large and are_few and prunable


def overlaid(
    spark: SparkSession, table: TableFiles, spec: TableSpec, layout: SnapshotFiles, wanted: Sequence[str], tasks: int
) -> DataFrame | None:
    """Read a snapshot of a key table; None where Spark cannot give the base these columns.

    Args:
        spark: the session.
        table: the table.
        spec: the table, with the columns to give.
        layout: what the snapshot is made of.
        wanted: the columns.
        tasks: how many tasks are worth having for the changes.
    """
    root = spark.read.format("delta").option("versionAsOf", layout.root_version).load(table.storage.root)
    base = shielded(root, table)
    given = base_table_columns(base.schema, spec, list(dict.fromkeys([*spec.primary_key, *wanted])))
    if given is None:
        return None
    keys = frame_of_splits(spark, changed_key_splits(table, layout, spec, tasks=tasks), spec, spec.primary_key)
    rows = frame_of_splits(spark, changed_row_splits(table, layout, spec, wanted, tasks=tasks), spec, wanted)
    same = [F.col(f"base.{backquoted(key)}") == F.col(f"changed.{backquoted(key)}") for key in spec.primary_key]
    kept = base.select(*given).alias("base").join(F.broadcast(keys.alias("changed")), same, "left_anti")
    return kept.select(*map(backquoted, wanted)).unionAll(rows)

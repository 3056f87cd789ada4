"""A batch read as a Spark plan: the base anti-joined with the changed keys, in union with the changed rows.

Spark's Delta reader reads the base and prunes its partitions and row groups, which is not possible where Python tasks
merge, and its columns, of which these learn in sessions with ``PrunedReads`` only. In return, Spark also reads the key
columns and looks up each row in a broadcast of the changed keys, which costs several times what DuckDB takes to merge
the wanted columns. So this plan is worth it if the base is large, the changes are few, and either the used columns are
unknown or there are partitions to prune.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.quoting import backquoted
from snapshot.schema.spec import TableSpec
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.read.base_table_columns import read_by_delta
from tablestore.read.spark_splits import frame_of_splits
from tablestore.read.split_planner import changed_key_splits, changed_row_splits

_BASE_BYTES_MIN = 32 << 20
_ROWS_MAX = 1_000_000
"""Maximum number of changes whose keys are broadcast: some tens of megabytes."""
_ROWS_MAX_OF_COLUMN = 50_000
"""Number of changes that cost this plan as much as one more column costs a merge in Python tasks (measured)."""


def is_worth_it(layout: SnapshotFiles, columns: int, *, prunable: bool) -> bool:
    """Return whether the base is large, its changes are few, and Spark has something to prune.

    Args:
        layout: the files of the snapshot.
        columns: number of columns to read.
        prunable: the columns that a query uses are unknown, or there are partitions to prune.
    """
    rows = [file.rows for file in layout.changes]
    is_large = sum(f.size for f in layout.base) >= _BASE_BYTES_MIN
    are_few = min(rows, default=0) >= 0 and sum(rows) <= min(_ROWS_MAX, columns * _ROWS_MAX_OF_COLUMN)
    return is_large and are_few and prunable


def overlaid(
    spark: SparkSession, table: TableFiles, spec: TableSpec, layout: SnapshotFiles, wanted: Sequence[str], tasks: int
) -> DataFrame | None:
    """Return the rows of a key table's snapshot; None if Spark cannot map the base to these columns.

    Args:
        spark: the session.
        table: the table.
        spec: the table definition with the columns to return.
        layout: the files of the snapshot.
        wanted: the columns to read.
        tasks: maximum number of tasks that read the changes.
    """
    needed = list(dict.fromkeys([*spec.primary_key, *wanted]))
    base = read_by_delta(spark, table.storage.root, layout.root_version, spec, needed)
    if base is None:
        return None
    keys = frame_of_splits(spark, changed_key_splits(table, layout, spec, tasks=tasks), spec, spec.primary_key)
    rows = frame_of_splits(spark, changed_row_splits(table, layout, spec, wanted, tasks=tasks), spec, wanted)
    same = [F.col(f"base.{backquoted(key)}") == F.col(f"changed.{backquoted(key)}") for key in spec.primary_key]
    kept = base.alias("base").join(F.broadcast(keys.alias("changed")), same, "left_anti")
    return kept.select(*map(backquoted, wanted)).unionAll(rows)

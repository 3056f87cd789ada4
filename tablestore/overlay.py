"""A batch read as a Spark plan: the base by Spark's own Delta reader, without the changed keys, then the changed rows.

Spark prunes columns, partitions and row groups of the base by itself, which it cannot do in a Python data source. It
pays for that with a broadcast of the changed keys, so it is worth it where the base is large and the changes are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.quoting import backquoted
from snapshot.spec import TableSpec
from snapshot.table import Layout
from tablestore.read_options import FORMAT, Overlay
from tablestore.root_columns import root_columns

_BASE_BYTES_MIN = 32 << 20
_ROWS_MAX = 1_000_000
"""Changes whose keys are broadcast: some tens of megabytes."""


def is_worth_it(layout: Layout) -> bool:
    """Tell whether the base is large and its changes are few."""
    rows = [file.rows for file in layout.changes]
    return sum(f.size for f in layout.base) >= _BASE_BYTES_MIN and min(rows, default=0) >= 0 and sum(rows) <= _ROWS_MAX


def overlaid(
    spark: SparkSession, path: str, spec: TableSpec, layout: Layout, wanted: Sequence[str], options: Mapping[str, str]
) -> DataFrame | None:
    """Read a snapshot of a key table; None where Spark cannot give the base these columns.

    Args:
        spark: the session.
        path: the table's folder.
        spec: the table, with the columns to give.
        layout: what the snapshot is made of.
        wanted: the columns.
        options: of ``format("tablestore")``, with the snapshot.
    """
    base = spark.read.format("delta").option("versionAsOf", layout.root_version).load(path)
    given = root_columns(base.schema, spec, list(dict.fromkeys([*spec.primary_key, *wanted])))
    if given is None:
        return None
    base = base.select(*given)

    def changes(part: Overlay, columns: Sequence[str]) -> DataFrame:
        given = {**options, "overlay": part, "merged-through": str(layout.merged_through)}
        return spark.read.format(FORMAT).options(**given, columns="\x1f".join(columns)).load()

    keys = F.broadcast(changes(Overlay.KEYS, spec.primary_key).alias("changed"))
    same = [F.col(f"base.{backquoted(key)}") == F.col(f"changed.{backquoted(key)}") for key in spec.primary_key]
    kept = base.alias("base").join(keys, same, "left_anti")
    columns = list(map(backquoted, wanted))
    return kept.select(*columns).unionAll(changes(Overlay.ROWS, wanted).select(*columns))

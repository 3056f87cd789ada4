"""Joins rows with the version that another table's row of the same key has at their time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from snapshot.quoting import quoted
from snapshot.schema.system_columns import SEQ
from tablestore.normalize.segments import HASH
from tablestore.sql.operators.row_multiset import COUNT, query
from tablestore.sql.operators.stateful import StatefulStep, StatePlace, Task, run_in_buckets

DELETED: Final = "_deleted"
"""Name of the boolean column that is true in a version that ends its key."""
TIME: Final = "_time"
"""Name of the bigint column with the time of a row or a version, in microseconds."""
_ROW: Final = "_is_row"
_EVER: Final = -(2**63)


def version_join(
    rows: DataFrame, versions: DataFrame, keys: Sequence[tuple[Column, Column]], place: StatePlace, *, is_left: bool
) -> DataFrame:
    """Return rows with the columns of the version that is valid at their time.

    Args:
        rows: streaming frame with `TIME`. No name of a column may have a dot or be in both frames.
        versions: streaming frame with `TIME`, ``_seq`` (of two versions of a key and a time, the one with the higher
            one counts) and `DELETED`. In each micro-batch they are not before the rows and versions of earlier ones.
        keys: pairs of expressions of one type, over ``rows`` and over ``versions``, that are equal. The latter are the
            key of the versions.
        place: where the state is.
        is_left: whether rows without a version are kept, with NULLs.

    Returns:
        The columns of both, with the `TIME` of the row and without ``_seq`` and `DELETED`.
    """
    groups = [f"_key_{number}" for number in range(len(keys))]
    one = rows.select("*", *(left.alias(group) for (left, _), group in zip(keys, groups, strict=True)))
    other = versions.select("*", *(right.alias(group) for (_, right), group in zip(keys, groups, strict=True)))
    both = one.withColumn(_ROW, F.lit(True)).unionByName(other.withColumn(_ROW, F.lit(False)), allowMissingColumns=True)
    left = list(rows.schema)
    right = [field for field in versions.schema if field.name not in {TIME, SEQ, DELETED}]
    schema = StructType([StructField(field.name, field.dataType) for field in (*left, *right)])
    step = _VersionJoin(
        tuple(groups), tuple(field.name for field in left), tuple(field.name for field in right), is_left
    )
    return run_in_buckets(both, groups, place, step, schema)


@dataclass(frozen=True)
class _VersionJoin(StatefulStep):
    """The state is the last version of each key, unless it is deleted."""

    keys: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    is_left: bool

    def run(self, task: Task, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        columns = [*self.keys, *self.right]
        schema = pa.schema([rows.schema.field(name) for name in columns])
        with task.state(schema) as state:
            held = state.rows(np.unique(rows.column(HASH).to_numpy()))
            versions = self._versions(task, rows, held)
            state.put(self._changes(task, versions))
        found = self._joined(task, rows, versions)
        arrays = [found.column(name).cast(rows.schema.field(name).type) for name in (*self.left, *self.right)]
        yield from pa.table(arrays, names=[*self.left, *self.right]).to_batches()

    def _versions(self, task: Task, rows: pa.Table, held: pa.Table) -> pa.Table:
        """Return the versions of the micro-batch, and before them those of the state, one for each key and time."""
        named = ", ".join(map(quoted, (*self.keys, *self.right)))
        keys = ", ".join(map(quoted, self.keys))
        text = (
            f"SELECT {HASH}, {named}, {TIME}, {SEQ}, {DELETED}, false AS is_held FROM rows WHERE NOT {_ROW} QUALIFY "
            f"row_number() OVER (PARTITION BY {keys}, {TIME} ORDER BY {SEQ} DESC) = 1 UNION ALL "
            f"SELECT {HASH}, {named}, {_EVER + 1}::BIGINT, -1::BIGINT, false, true FROM held GROUP BY ALL HAVING "
            f"sum({COUNT}) > 0"
        )
        return query(task.db, text, rows=rows, held=held)

    def _changes(self, task: Task, versions: pa.Table) -> pa.Table:
        """Return how the last versions change: of each key that has new ones, the old one goes and the last comes."""
        named = ", ".join(map(quoted, (*self.keys, *self.right)))
        keys = ", ".join(map(quoted, self.keys))
        text = (
            f"SELECT {HASH}, if(is_held, -1, 1)::BIGINT AS {COUNT}, {named} FROM (SELECT *, row_number() OVER ("
            f"PARTITION BY {keys} ORDER BY {TIME} DESC) = 1 AS is_last FROM versions) "
            f"WHERE is_held <> is_last AND NOT {DELETED}"
        )
        return query(task.db, text, versions=versions)

    def _joined(self, task: Task, rows: pa.Table, versions: pa.Table) -> pa.Table:
        left = ", ".join(f"l.{quoted(name)}" for name in self.left)
        right = ", ".join(f"if(v.{DELETED}, NULL, v.{quoted(name)}) AS {quoted(name)}" for name in self.right)
        equal = " AND ".join(f"l.{quoted(name)} = v.{quoted(name)}" for name in self.keys)
        kept = "" if self.is_left else f" WHERE NOT coalesce(v.{DELETED}, true)"
        text = (
            f"SELECT {left}, {right} FROM (FROM rows WHERE {_ROW}) AS l ASOF LEFT JOIN versions AS v ON {equal} AND "
            f"l.{TIME} >= v.{TIME}{kept}"
        )
        return query(task.db, text, rows=rows, versions=versions)

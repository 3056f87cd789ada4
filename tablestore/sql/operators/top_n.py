"""Top-N: the changelog of the rows at the first places of each group, as their table changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from snapshot.quoting import quoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.normalize.segments import HASH
from tablestore.spark.changelog import SIGN, signed
from tablestore.sql.operators.group_places import RANK, Places, change_places
from tablestore.sql.operators.row_multiset import COUNT, as_changes
from tablestore.sql.operators.stateful import StatefulStep, StatePlace, Task, run_in_buckets


def top_n(
    changes: DataFrame, places: Places, outputs: Sequence[str], key: Sequence[str] | None, place: StatePlace
) -> DataFrame:
    """Return the changes of the rows at the first places of each group.

    Args:
        changes: streaming frame of rows with ``_change_type``, including the rows that updates replace. No name of a
            column may have a dot.
        places: which rows are in the result.
        outputs: names of the columns of the result.
        key: names of columns by which the result's rows are unique, ``_rank`` perhaps among them; None if unknown.
        place: where the state is.

    Returns:
        The outputs, ``_rank`` if ``places.ranked``, ``_change_type``, and ``_seq``, which is higher in later changes of
        a key. Of each key, a micro-batch has at most one row that goes and one that comes.
    """
    rows = signed(changes).drop(CHANGE_TYPE)
    columns = [field for field in rows.schema if field.name != SIGN]
    rank = [StructField(RANK, LongType())] if places.ranked else []
    own = [*rank, StructField(CHANGE_TYPE, StringType()), StructField(SEQ, LongType())]
    fields = [StructField(name, rows.schema[name].dataType) for name in outputs]
    names = tuple(field.name for field in columns)
    step = _TopN(names, places, tuple(outputs), None if key is None else tuple(key))
    return run_in_buckets(rows, places.groups, place, step, StructType([*fields, *own]))


@dataclass(frozen=True)
class _TopN(StatefulStep):
    columns: tuple[str, ...]
    places: Places
    outputs: tuple[str, ...]
    key: tuple[str, ...] | None

    def run(self, task: Task, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([rows.schema.field(name) for name in self.columns])
        changes = rows.select([HASH, *self.columns]).append_column(COUNT, rows.column(SIGN))
        with task.state(schema) as state:
            found = change_places(task.db, state, changes, self.columns, self.places, self.outputs)
        if found.num_rows:
            yield from self._emitted(task, found, schema).to_batches()

    def _emitted(self, task: Task, found: pa.Table, schema: pa.Schema) -> pa.Table:
        both = "false"
        if self.key is not None:
            by = f"PARTITION BY {', '.join(map(quoted, self.key))}" if self.key else ""
            both = f"count(*) OVER ({by}) = 2"
        kinds = (
            f"CASE WHEN {both} THEN if({COUNT} > 0, '{RowKind.UPDATE_AFTER.change_type}', "
            f"'{RowKind.UPDATE_BEFORE.change_type}') ELSE if({COUNT} > 0, '{RowKind.INSERT.change_type}', "
            f"'{RowKind.DELETE.change_type}') END"
        )
        rank = [pa.field(RANK, pa.int64())] if self.places.ranked else []
        columns = pa.schema([*(schema.field(name) for name in self.outputs), *rank])
        return as_changes(task.db, task.batch, found, columns, kinds)

"""Joins of tables whose rows change, by any columns: the changelog of the pairs, and of rows without a partner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from snapshot.quoting import quoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.normalize.segments import HASH
from tablestore.spark.changelog import SIGN
from tablestore.sql.operators.row_multiset import COUNT, Hashes, as_changes, query
from tablestore.sql.operators.stateful import StatefulStep, StatePlace, Task, run_in_buckets

_IS_LEFT: Final = "_is_left"


@dataclass(frozen=True)
class JoinSide:
    """One side of a join. Picklable.

    Attributes:
        columns: names of the columns of the result.
        keys: names of the columns that equal those of the other side, which have the same types. A row with NULL in one
            of them has no partner.
        is_kept: whether rows without a partner are in the result, with NULL in the columns of the other side.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    is_kept: bool

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of the columns of the state."""
        return tuple(dict.fromkeys((*self.columns, *self.keys)))


def row_join(
    left_rows: DataFrame, left: JoinSide, right_rows: DataFrame, right: JoinSide, place: StatePlace
) -> DataFrame:
    """Return the changes of a join: inserts and deletes of whole rows, none of which is both in one micro-batch.

    Args:
        left_rows: streaming frame of the left side's columns and keys, and `SIGN`. No name of a column may have a
            dot or be in both frames.
        left: the left side.
        right_rows: the same of the right side.
        right: the right side.
        place: where the state is: the rows of both sides.

    Returns:
        The columns of both sides, ``_change_type``, and ``_seq``, which is higher in later micro-batches.
    """
    groups = [f"_group_{number}" for number in range(len(left.keys))]

    def grouped(rows: DataFrame, side: JoinSide) -> DataFrame:
        if not side.is_kept:
            rows = rows.where(reduce(Column.__and__, [F.col(key).isNotNull() for key in side.keys]))
        keys = [F.col(key).alias(group) for key, group in zip(side.keys, groups, strict=True)]
        return rows.select(*side.stored, SIGN, *keys, F.lit(side is left).alias(_IS_LEFT))

    both = grouped(left_rows, left).unionByName(grouped(right_rows, right), allowMissingColumns=True)
    fields = [StructField(name, both.schema[name].dataType) for name in (*left.columns, *right.columns)]
    own = [StructField(CHANGE_TYPE, StringType()), StructField(SEQ, LongType())]
    return run_in_buckets(both, groups, place, RowJoin(left, right), StructType([*fields, *own]))


@dataclass(frozen=True)
class RowJoin(StatefulStep):
    """The state is the rows of both sides, but for those with NULL in a key.

    Let L and R be the rows before the micro-batch, dL and dR its changes, and M = R + dR. The pairs change by
    dL x M + L x dR. Rows of the left side without a partner change by those of dL that have none in M, and by those of
    L whose last partner goes or whose first one comes; likewise those of the right side.
    """

    left: JoinSide
    right: JoinSide

    def run(self, task: Task, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the changes; see ``StatefulStep``."""
        dl, dr = self._net(task, rows, self.left), self._net(task, rows, self.right)
        by_left, by_right = _hashes(dl), _hashes(dr)
        none: Hashes = np.empty(0, np.int64)
        with (
            task.state(_schema(rows, self.left.stored), task.folder.child("left")) as lefts,
            task.state(_schema(rows, self.right.stored), task.folder.child("right")) as rights,
        ):
            # Which rows have a partner is only needed where such rows are kept.
            l0 = lefts.rows(np.union1d(by_right, by_left if self.right.is_kept else none))
            r0 = rights.rows(np.union1d(by_left, by_right if self.left.is_kept else none))
            found = query(task.db, self._changes(), dl=dl, dr=dr, l0=l0, r0=r0)
            lefts.put(query(task.db, f"SELECT * FROM d WHERE {_known(self.left)}", d=dl))
            rights.put(query(task.db, f"SELECT * FROM d WHERE {_known(self.right)}", d=dr))
        if found.num_rows:
            columns = _schema(rows, (*self.left.columns, *self.right.columns))
            kind = f"if({COUNT} > 0, '{RowKind.INSERT.change_type}', '{RowKind.DELETE.change_type}')"
            yield from as_changes(task.db, task.batch, found, columns, kind).to_batches()

    def _net(self, task: Task, rows: pa.Table, side: JoinSide) -> pa.Table:
        is_left = _IS_LEFT if side is self.left else f"NOT {_IS_LEFT}"
        text = (
            f"SELECT {HASH}, sum({SIGN})::BIGINT AS {COUNT}, {_named(side.stored)} FROM rows WHERE {is_left} "
            f"GROUP BY ALL HAVING sum({SIGN}) <> 0"
        )
        return query(task.db, text, rows=rows)

    def _changes(self) -> str:
        left, right = self.left, self.right
        named = f"{_named(left.columns, 'l')}, {_named(right.columns, 'r')}"
        paired = f"SELECT {named}, l.{COUNT} * r.{COUNT} AS {COUNT}"
        parts = [
            f"{paired} FROM dl AS l JOIN (FROM r0 UNION ALL FROM dr) AS r ON {_equal(left, 'l', right, 'r')}",
            f"{paired} FROM l0 AS l JOIN dr AS r ON {_equal(left, 'l', right, 'r')}",
        ]
        if left.is_kept:
            parts += _alone(left, "l", right, "r")
        if right.is_kept:
            parts += _alone(right, "r", left, "l")
        both = _named((*left.columns, *right.columns))
        changes = " UNION ALL BY NAME ".join(parts)
        return f"SELECT {both}, sum({COUNT}) AS {COUNT} FROM ({changes}) GROUP BY ALL HAVING sum({COUNT}) <> 0"


def _alone(own: JoinSide, name: str, other: JoinSide, name_of_other: str) -> list[str]:
    """Return the queries of the changes of the rows of one side, ``l`` or ``r``, that have no partner."""
    keys = _named(other.keys)
    held, changed = f"{name_of_other}0", f"d{name_of_other}"
    had = f"SELECT {keys} FROM {held} GROUP BY ALL HAVING sum({COUNT}) > 0"
    has = f"SELECT {keys} FROM (FROM {held} UNION ALL FROM {changed}) GROUP BY ALL HAVING sum({COUNT}) > 0"
    rows, equal = _named(own.columns, name), _equal(own, name, other, "o")
    return [
        f"SELECT {rows}, {COUNT} FROM d{name} AS {name} WHERE NOT EXISTS (FROM ({has}) AS o WHERE {equal})",
        f"SELECT {rows}, {COUNT} FROM {name}0 AS {name} JOIN ({had} EXCEPT {has}) AS o ON {equal}",
        f"SELECT {rows}, -{COUNT} AS {COUNT} FROM {name}0 AS {name} JOIN ({has} EXCEPT {had}) AS o ON {equal}",
    ]


def _named(names: tuple[str, ...], table: str = "") -> str:
    return ", ".join(f"{table}.{quoted(name)}" if table else quoted(name) for name in names)


def _equal(one: JoinSide, table: str, other: JoinSide, table_of_other: str) -> str:
    pairs = zip(one.keys, other.keys, strict=True)
    return " AND ".join(f"{table}.{quoted(a)} = {table_of_other}.{quoted(b)}" for a, b in pairs)


def _known(side: JoinSide) -> str:
    return " AND ".join(f"{quoted(key)} IS NOT NULL" for key in side.keys)


def _schema(rows: pa.Table, names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([rows.schema.field(name) for name in names])


def _hashes(changes: pa.Table) -> Hashes:
    return np.unique(changes.column(HASH).to_numpy())

"""Normalize: one key's repeats and replacements fold into a true changelog, in Spark's own state store.

The state of a key is its two newest records by their order in the log: a native aggregate, ``max_by(row, _seq, 2)``.
The source gives at most one record of a key to a micro-batch (a key is in one log partition, which one task reads and
folds), so for each key of a micro-batch the newer of the two is that of this micro-batch, and the older what was there
before. The pair decides what is emitted. A restart repeats the micro-batch with the same records on the state before
it, so it emits the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StructField,
    StructType,
    TimestampType,
)

from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ

_PAIR = "_normalize"
"""Name of the aggregate in the plan."""
_DELETED = "deleted"
_CARRIED = (COMMIT_VERSION, COMMIT_TIMESTAMP)
SILENT = -1
"""``_commit_version`` of rows that go into the state and are not given: those of a saved state."""


def normalize(records: DataFrame, spec: TableSpec, *, goes_on: bool = False) -> DataFrame:
    """Turn upserts and deletes, some of them repeats, into inserts, updates with preimages, and deletes with rows.

    Args:
        records: a streaming frame with the columns of the change feed and ``_seq``, at most one row a key in a
            micro-batch.
        spec: the table.
        goes_on: the query begins with a saved state, whose rows have been given before.

    Returns:
        The columns of the change feed. The query runs in output mode ``update``.
    """
    changes = changelog(records, spec.schema, spec.primary_key, carried=_CARRIED)
    return changes.where(~F.col(COMMIT_VERSION).eqNullSafe(SILENT)) if goes_on else changes


def state_fields(spec: TableSpec) -> StructType:
    """Give the columns of each of the two rows that the state has of a key."""
    kinds = [(number, spec.schema[name].dataType) for name, number in numbered(spec.schema, spec.primary_key).items()]
    carried = [(COMMIT_VERSION, LongType()), (COMMIT_TIMESTAMP, TimestampType())]
    return StructType([StructField(*each) for each in (*kinds, (_DELETED, BooleanType()), *carried)])


def numbered(schema: StructType, primary_key: Sequence[str]) -> dict[str, str]:
    """Give the columns that are not the key's, and what a row of the state calls each: names may be of any kind."""
    others = [name for name in schema.fieldNames() if name not in primary_key]
    return {name: f"c{number}" for number, name in enumerate(others)}


def changelog(
    records: DataFrame, schema: StructType, primary_key: Sequence[str], *, carried: Sequence[str] = ()
) -> DataFrame:
    """Do the same for rows that need not be a table's.

    Args:
        records: a streaming frame with the columns of ``schema``, ``_change_type``, ``_seq`` and those carried, at most
            one row a key in a micro-batch.
        schema: the rows' columns.
        primary_key: the key's columns.
        carried: columns of a record that go with each of its changes, and do not make two rows different.

    Returns:
        The columns of ``schema``, ``_change_type``, and those carried.
    """
    keys = [backquoted(name) for name in primary_key]
    numbers = numbered(schema, primary_key)
    row = F.struct(
        *[F.col(backquoted(name)).alias(number) for name, number in numbers.items()],
        (F.col(CHANGE_TYPE) == RowKind.DELETE.change_type).alias(_DELETED),
        *[F.col(name) for name in carried],
    )
    pairs = records.groupBy(*keys).agg(F.max_by(row, F.col(SEQ), 2).alias(_PAIR))
    new, old = F.get(F.col(_PAIR), F.lit(0)), F.get(F.col(_PAIR), F.lit(1))
    lives = ~new[_DELETED]
    lived = old.isNotNull() & ~old[_DELETED]
    equal = [_same(new[number], old[number], schema[name].dataType) for name, number in numbers.items()]
    same = reduce(Column.__and__, equal, F.lit(True))
    emitted = (
        F.when(lives & ~lived, F.array(_change(RowKind.INSERT, new)))
        .when(lives & ~same, F.array(_change(RowKind.UPDATE_BEFORE, old), _change(RowKind.UPDATE_AFTER, new)))
        .when(~lives & lived, F.array(_change(RowKind.DELETE, old)))
    )
    changes = pairs.select(
        *keys,
        *[new[name].alias(name) for name in carried],
        F.explode(emitted).alias("change"),
    )
    return changes.select(
        *[
            F.col(f"change.row.{numbers[name]}").alias(name) if name in numbers else F.col(backquoted(name))
            for name in schema.fieldNames()
        ],
        F.col(f"change.{CHANGE_TYPE}").alias(CHANGE_TYPE),
        *carried,
    )


def _change(kind: RowKind, row: Column) -> Column:
    return F.struct(F.lit(kind.change_type).alias(CHANGE_TYPE), row.alias("row"))


def _same(a: Column, b: Column, data_type: DataType) -> Column:
    """Compare a column of two rows; Spark compares no maps, so what holds one is compared as JSON."""
    if holds_map(data_type):
        a, b = F.to_json(F.struct(a)), F.to_json(F.struct(b))
    return a.eqNullSafe(b)


def holds_map(data_type: DataType) -> bool:
    """Tell whether a type is or has a map, of which Spark neither compares nor hashes two."""
    if isinstance(data_type, StructType):
        return any(holds_map(field.dataType) for field in data_type.fields)
    return isinstance(data_type, MapType) or (isinstance(data_type, ArrayType) and holds_map(data_type.elementType))

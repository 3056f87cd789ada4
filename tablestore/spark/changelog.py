"""A changelog of the records of each key, kept in Spark's state store, and the signs of changes.

The input is what SQL has already reduced to one row per key and micro-batch: the groups of an aggregate, or the changes
of a table whose log shows only committed snapshots. Logs and topics with repeats go through ``tablestore/normalize``.

The state of a key is its two newest records by their order, kept by a native aggregate, ``max_by(row, _seq, 2)``. For
each key of a micro-batch, the newer record is from this micro-batch and the older is the previous state. The pair
determines the changes to emit. A restart repeats the micro-batch with the same records on the same state, so it emits
the same changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, StructType

from snapshot.quoting import backquoted
from snapshot.row_kind import ADDED, CHANGE_TYPE, RowKind
from snapshot.schema.spark_types import types_in
from snapshot.schema.system_columns import SEQ

SIGN: Final = "_sign"
"""Name of the column with 1 for a row that is added, -1 for one that is retracted."""
_PAIR, _DELETED = "pair", "deleted"


def signed(changes: DataFrame) -> DataFrame:
    """Return changes with `SIGN`."""
    return changes.withColumn(
        SIGN, F.when(F.col(CHANGE_TYPE).isin(*ADDED), F.lit(1)).otherwise(F.lit(-1)).cast("bigint")
    )


def _numbered(schema: StructType, primary_key: Sequence[str]) -> dict[str, str]:
    """Map each non-key column to its name in a state row: ``c0``, ``c1`` etc., since column names may be arbitrary."""
    others = [name for name in schema.fieldNames() if name not in primary_key]
    return {name: f"c{number}" for number, name in enumerate(others)}


def changelog(
    records: DataFrame,
    schema: StructType,
    primary_key: Sequence[str],
    *,
    carried: Sequence[str] = (),
    unknown: bool = False,
) -> DataFrame:
    """Turn upserts and deletes into inserts, updates with the rows before them, and deletes with their rows.

    Args:
        records: a streaming frame with the columns of ``schema``, ``_change_type``, ``_seq`` and ``carried``, and at
            most one row per key and micro-batch.
        schema: the rows' columns.
        primary_key: the key columns.
        carried: columns that are copied to each change of a record and ignored when rows are compared.
        unknown: whether there may be rows that came before the records. Then the delete of a key without a record
            before it is passed on; otherwise there is nothing to delete.

    Returns:
        A frame with the columns of ``schema``, ``_change_type`` and ``carried``. The query must run in output mode
        ``update``.
    """
    keys = [backquoted(name) for name in primary_key]
    numbers = _numbered(schema, primary_key)
    row = F.struct(
        *[F.col(backquoted(name)).alias(number) for name, number in numbers.items()],
        (F.col(CHANGE_TYPE) == RowKind.DELETE.change_type).alias(_DELETED),
        *[F.col(name) for name in carried],
    )
    pairs = records.groupBy(*keys).agg(F.max_by(row, F.col(SEQ), 2).alias(_PAIR))
    # By number, since keys may have any names.
    by_number = {name: f"k{number}" for number, name in enumerate(primary_key)}
    pairs = pairs.toDF(*by_number.values(), _PAIR)
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
    if unknown:
        emitted = emitted.when(~lives & old.isNull(), F.array(_change(RowKind.DELETE, new)))
    changes = pairs.select(
        *by_number.values(),
        *[new[name].alias(name) for name in carried],
        F.explode(emitted).alias("change"),
    )
    return changes.select(
        *[
            F.col(f"change.row.{numbers[name]}" if name in numbers else by_number[name]).alias(name)
            for name in schema.fieldNames()
        ],
        F.col(f"change.{CHANGE_TYPE}").alias(CHANGE_TYPE),
        *carried,
    )


def _change(kind: RowKind, row: Column) -> Column:
    return F.struct(F.lit(kind.change_type).alias(CHANGE_TYPE), row.alias("row"))


def _same(a: Column, b: Column, data_type: DataType) -> Column:
    """Return whether two values are equal; types with maps, which Spark cannot compare, are compared as JSON."""
    if holds_map(data_type):
        a, b = F.to_json(F.struct(a)), F.to_json(F.struct(b))
    return a.eqNullSafe(b)


def holds_map(data_type: DataType) -> bool:
    """Return whether a type is or contains a map, which Spark can neither compare nor hash."""
    return any(isinstance(each, MapType) for each in types_in(data_type))

"""The table's columns out of what Spark's own Delta reader gives of the root, which has their stored names."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

from snapshot.quoting import backquoted
from snapshot.schema.evolution import can_become
from snapshot.schema.spark_types import stored, with_physical_names
from snapshot.schema.spec import TableSpec
from snapshot.store.table_files import TableFiles


def shielded(frame: DataFrame, table: TableFiles, *more: Column) -> DataFrame:
    """Keep Spark from skipping rows by the bounds of floating-point columns, where these may leave NaN out.

    Files that were written before bounds were exact do; their tables lack the property that says otherwise. ``nanvl``
    of a column with itself is the column, and no condition that Spark pushes into a scan.

    Args:
        frame: what Spark reads from files of the table.
        table: the table.
        more: columns to give beside the shielded ones.
    """
    floats = {f.name for f in frame.schema.fields if isinstance(f.dataType, FloatType | DoubleType)}
    if not floats or table.has_exact_bounds():
        return frame
    columns = {name: F.col(backquoted(name)) for name in frame.columns}
    shields = [F.nanvl(c, c).alias(name) if name in floats else c for name, c in columns.items()]
    return frame.select(*shields, *more)


def base_table_columns(root: StructType, spec: TableSpec, wanted: Sequence[str]) -> list[Column] | None:
    """Select columns of the table from those of the root.

    Args:
        root: the root's columns, in the version that is read: it may be older than the table's.
        spec: the columns to give.
        wanted: the names of those that are wanted.

    Returns:
        The columns; None where fields in a struct were changed since, which Spark cannot put right.
    """
    there = {field.name: field.dataType for field in root.fields}
    in_files = dict(zip(spec.schema.fieldNames(), stored(with_physical_names(spec.schema_json)).fields, strict=True))
    columns: list[Column] = []
    for name in wanted:
        held, kind = in_files[name], spec.schema[name].dataType
        came = there.get(held.name)
        if came is None:
            columns.append(F.lit(None).cast(kind).alias(name))
            continue
        column = F.col(backquoted(held.name))
        # Written out, types say nothing about NULL.
        if came.simpleString() != held.dataType.simpleString():
            if isinstance(kind, ArrayType | MapType | StructType) or not can_become(came, held.dataType):
                return None
            column = column.cast(kind)
        elif held.dataType.simpleString() != kind.simpleString():
            # Of two structs Spark casts field to field, whatever they are called.
            column = column.cast(kind)
        columns.append(column if held.name == name else column.alias(name))
    return columns

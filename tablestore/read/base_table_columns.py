"""Maps the columns of the base table, which Spark's Delta reader returns by physical names, to the table's columns."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

from snapshot.delta.log import DataFile
from snapshot.quoting import backquoted
from snapshot.schema.evolution import can_become
from snapshot.schema.spark_types import stored, with_physical_names
from snapshot.schema.spec import TableSpec

_BYTES_MIN = 16 << 20
_FILES_MIN = 100
"""Tasks read a base with fewer files and bytes faster: Spark's Delta reader takes a second to load a version, and more
than ten seconds for the first one of a session (measured)."""


def is_worth_it(base: Sequence[DataFile]) -> bool:
    """Return whether Spark's Delta reader, which prunes columns, files and row groups, reads these files faster."""
    return len(base) >= _FILES_MIN or sum(file.size for file in base) >= _BYTES_MIN


def read_by_delta(
    spark: SparkSession, path: str, version: int, spec: TableSpec, wanted: Sequence[str]
) -> DataFrame | None:
    """Return the rows of a version of the base table as Spark's Delta reader reads them.

    Returns:
        The wanted columns of ``spec``; None if fields within a column have changed since.
    """
    frame = shielded(spark.read.format("delta").option("versionAsOf", version).load(path))
    columns = base_table_columns(frame.schema, spec, wanted)
    return None if columns is None else frame.select(*columns)


def shielded(frame: DataFrame, *more: Column) -> DataFrame:
    """Return a frame in which Spark cannot skip rows by the min/max statistics of floating-point columns.

    The statistics in files of other Delta writers may ignore NaN.
    ``nanvl(c, c)`` equals ``c``, but Spark does not push a condition on it into a scan.

    Args:
        frame: what Spark reads from files of the table.
        more: further columns to return.
    """
    columns = ((backquoted(field.name), field) for field in frame.schema)
    shown = (_shielded(F.col(c), f.dataType).alias(f.name) if _has_floats(f.dataType) else c for c, f in columns)
    return frame.select(*shown, *more)


def _shielded(column: Column, kind: DataType) -> Column:
    if isinstance(kind, FloatType | DoubleType):
        return F.nanvl(column, column)
    for field in kind.fields if isinstance(kind, StructType) else ():
        if _has_floats(field.dataType):
            column = column.withField(backquoted(field.name), _shielded(column.getField(field.name), field.dataType))
    return column


def _has_floats(kind: DataType) -> bool:
    """Return whether files may have bounds of a floating-point number in a column of a type."""
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind.fields)
    return isinstance(kind, FloatType | DoubleType)


def base_table_columns(base: StructType, spec: TableSpec, wanted: Sequence[str]) -> list[Column] | None:
    """Return what selects the table's columns from the base table's; None if fields within a column have changed since.

    Args:
        base: the base table's columns in the version to read, which may be older than the table's newest.
        spec: the table definition with the columns to return.
        wanted: names of the columns to return.
    """
    there = {field.name: field.dataType for field in base.fields}
    in_files = dict(zip(spec.schema.fieldNames(), stored(with_physical_names(spec.schema_json)).fields, strict=True))
    columns: list[Column] = []
    for name in wanted:
        held, kind = in_files[name], spec.schema[name].dataType
        actual = there.get(held.name)
        if actual is None:
            columns.append(F.lit(None).cast(kind).alias(name))
            continue
        column = F.col(backquoted(held.name))
        # simpleString() ignores nullability.
        if actual.simpleString() != held.dataType.simpleString():
            if isinstance(kind, ArrayType | MapType | StructType) or not can_become(actual, held.dataType):
                return None
            column = column.cast(kind)
        elif held.dataType.simpleString() != kind.simpleString():
            # Spark casts a struct to another by position, whatever its fields are called.
            column = column.cast(kind)
        columns.append(column if held.name == name else column.alias(name))
    return columns

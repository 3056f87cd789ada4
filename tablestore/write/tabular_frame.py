"""Rows of any library as Spark frames."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from snapshot.schema.spec import TableSpec
from tablestore.write.tabular_input import Tabular, read_loosely, read_tabular


def frame_of(spark: SparkSession, data: Tabular, spec: TableSpec, *, exact: bool = True) -> DataFrame:
    """Return tabular data as a Spark frame; a Spark frame is returned unchanged.

    Args:
        spark: the session.
        data: the rows.
        spec: the table whose types the columns get.
        exact: read with ``read_tabular``; otherwise with ``read_loosely``.

    Raises:
        InvalidInputError: the rows do not fit.
    """
    if isinstance(data, DataFrame):
        return data
    table = read_tabular(data, spec).read_all() if exact else read_loosely(data, spec)
    of_table = dict(zip(zip(spec.arrow.names, spec.arrow.types, strict=True), spec.schema.fields, strict=True))
    fields = []
    for each in table.schema:
        known = of_table.get((each.name, each.type))
        data_type = known.dataType if known else from_arrow_type(each.type, prefer_timestamp_ntz=True)
        fields.append(StructField(each.name, data_type))
    return spark.createDataFrame(table, StructType(fields))

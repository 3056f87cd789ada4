"""Rows of small frames, brought to this process, where staging them takes less time than a Spark job with a shuffle."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from snapshot.quoting import backquoted
from snapshot.schema.system_columns import BUCKET, SEQ
from tablestore.spark.connect import is_remote

_FILE_BYTES_MAX: Final = 16 << 20
_ROWS_MAX: Final = 100_000
_TEXT_BYTES_MAX: Final = 2_000
"""Most bytes of text and binary values in a row: with ``_ROWS_MAX``, this process is given at most 200 MB of them."""
_FIXED: Final = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
_SOURCES: Final = {"LogicalRelation", "InMemoryRelation"}
_BY_ROW: Final = {"Project", "Filter", "SubqueryAlias", "View", "LocalLimit", "GlobalLimit"}
"""Spark's operators that compute each row by itself: to read a small source again costs little."""


def collect_small(frame: DataFrame) -> pa.Table | None:
    """Return the rows of a frame in their order if it reads only small files, row by row, and has few and short rows.

    Returns:
        The rows; None if the frame is not like that, which may turn out only when it has been read.
    """
    fields = frame.schema.fields
    if is_remote(frame.sparkSession) or not all(_is_flat(field.dataType) for field in fields):
        return None
    # Spark has no public way to ask for a plan.
    if not _reads_little(frame._jdf.queryExecution().analyzed()):  # noqa: SLF001
        return None
    texts = [backquoted(field.name) for field in fields if isinstance(field.dataType, StringType | BinaryType)]
    size = " + ".join(["0L", *(f"coalesce(octet_length({name}), 0)" for name in texts)])
    is_long = f"{size} > {_TEXT_BYTES_MAX}"
    columns = [
        f"IF({is_long}, NULL, {name}) AS {name}" if name in texts else name
        for name in (backquoted(field.name) for field in fields)
    ]
    # Names that no column of a frame to write has.
    numbered = frame.selectExpr(*columns, f"monotonically_increasing_id() AS {SEQ}", f"{is_long} AS {BUCKET}")
    capped = numbered.limit(_ROWS_MAX + 1)
    if not _reads_little(capped._jdf.queryExecution().optimizedPlan()):  # noqa: SLF001
        return None
    rows = capped.toArrow()
    if rows.num_rows > _ROWS_MAX or pc.any(rows.column(BUCKET)).as_py():
        return None
    # Spark gives the rows of several files in any order.
    return rows.sort_by(SEQ).drop_columns([SEQ, BUCKET])


def _is_flat(data_type: DataType) -> bool:
    return isinstance(data_type, (*_FIXED, StringType, BinaryType))


def _reads_little(plan: Any) -> bool:
    """Return whether a logical plan of Spark computes each row by itself from small files."""
    while plan.nodeName() in _BY_ROW:
        plan = plan.children().head()
    return plan.nodeName() in _SOURCES and int(str(plan.stats().sizeInBytes())) <= _FILE_BYTES_MAX

"""The rows that the changes of a table without a primary key leave, in a batch read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import ADDED, CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from tablestore.spark.changelog import holds_map

_COPIES, _SHOWN = "copies", "shown"


def left_of(changes: DataFrame, metadata: Sequence[str]) -> DataFrame:
    """Return the rows that changes leave: each as often as it was added and not taken back.

    Args:
        changes: rows with ``_change_type`` and ``_seq``.
        metadata: names of the columns that do not belong to the row, but to the message; the newest are returned.

    Raises:
        InvalidInputError: a column is, or contains, a map, which cannot be compared.
    """
    names = [name for name in changes.columns if name not in (CHANGE_TYPE, SEQ)]
    row = [name for name in names if name not in metadata]
    for name in row:
        if holds_map(changes.schema[name].dataType):
            msg = (
                f"column '{name}': rows with a MAP cannot be compared, so the rows that changes leave are not known "
                "without a PRIMARY KEY. Declare PRIMARY KEY (...) NOT ENFORCED, or read the table as a stream."
            )
            raise InvalidInputError(msg)
    is_added = F.col(CHANGE_TYPE).isin(*ADDED)
    shown = F.struct(*[F.col(backquoted(name)).alias(f"m{n}") for n, name in enumerate(metadata)], F.lit(1).alias("is"))
    rows = changes.groupBy(*(F.col(backquoted(name)) for name in row)).agg(
        F.sum(F.when(is_added, 1).otherwise(-1)).alias(_COPIES),
        F.max_by(shown, F.when(is_added, F.col(SEQ))).alias(_SHOWN),
    )
    # By number, since columns may have any names.
    counted = rows.toDF(*(f"r{number}" for number in range(len(row))), _COPIES, _SHOWN)
    copies = F.explode(F.array_repeat(F.lit(0), F.greatest(F.col(_COPIES), F.lit(0)).cast("int")))
    found = {name: F.col(f"r{number}") for number, name in enumerate(row)}
    found |= {name: F.col(f"{_SHOWN}.m{number}") for number, name in enumerate(metadata)}
    return counted.select("*", copies.alias("copy")).select(*(found[name].alias(name) for name in names))

"""Runs splits in Spark tasks: as partitions of a data source, and as a data frame."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructField, StructType

from snapshot.errors import DataLostError
from snapshot.merge.predicate import Predicate
from snapshot.merge.pushed_filters import split_filters
from snapshot.records import Split
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import conform, relabelled
from tablestore.read.splits import ChangedKeysSplit, MergedSplit
from tablestore.spark.error_messages import traceback_hidden
from tablestore.spark.python_worker import begin_task
from tablestore.spark.shipped import shipped

_FILTERS: Final[Mapping[str, Callable[[Any, Any], Filter]]] = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_EPOCH: Final = date(1970, 1, 1).toordinal()


class FrameError(DataLostError):
    """Data that a frame of ``TableStore.read`` needs is lost; ``spark/lost_files.py`` shows it as ``DataLostError``.

    Reads of the data source raise ``DataLostError`` in a task, which stays an error of Spark.
    """


class ReadSplit(InputPartition):
    """A split as a partition of a Spark data source."""

    def __init__(self, part: Split) -> None:
        """Wrap ``part``."""
        super().__init__(part)
        self.part = part


def frame_of_splits(
    spark: SparkSession, parts: Sequence[MergedSplit | ChangedKeysSplit], spec: TableSpec, columns: Sequence[str]
) -> DataFrame:
    """Return a frame of the rows of splits with these columns, in this order; each split is one task.

    This is cheaper than a data source, which Spark plans in a separate Python process each time its frame is used.
    """
    held, names = list(parts), list(columns)
    wanted = StructType([spec.schema[name] for name in names])
    if not held:
        return spark.createDataFrame([], wanted)
    # Neutral names, because Spark takes a dot in a name for a struct field access.
    given = StructType([StructField(f"c{number}", f.dataType) for number, f in enumerate(wanted.fields)])
    fitted, inner = arrow_schema(wanted), arrow_schema(given)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        with traceback_hidden():
            try:
                for batch in batches:
                    asked = json.dumps([inner.names]) if batch.num_columns == 1 else batch.column(1)[0].as_py()
                    chosen, predicate = _parsed(asked, inner, fitted)
                    own, neutral = (pa.schema([schema.field(n) for n in chosen]) for schema in (fitted, inner))
                    for number in batch.column(0).to_pylist():
                        for rows in held[number].only(own.names, predicate).read():
                            yield relabelled(conform(rows, own), neutral)
            except DataLostError as error:
                raise FrameError(str(error)) from error

    reader = shipped(read)
    # Spark's optimizer knows it by this name (``spark/PrunedReads.scala``).
    reader.__name__ = "tablestore_rows"
    return spark.range(0, len(held), 1, len(held)).mapInArrow(reader, given).toDF(*names)


def _parsed(asked: str, named: pa.Schema, columns: pa.Schema) -> tuple[list[int], Predicate]:
    """Return the positions of the columns that a query uses, and what is true for all rows that it uses.

    Args:
        asked: what ``PrunedReads`` says, as JSON: a list of the names of the columns, and one for each filter: the
            column, the sign or ``IN``, the type and the constants.
        named: the columns, by the names that Spark knows.
        columns: the columns, by their own names.
    """
    wanted, *conditions = json.loads(asked)
    filters = []
    for name, sign, kind, *texts in conditions:
        path, values = (columns.field(named.get_field_index(name)).name,), [_constant(kind, text) for text in texts]
        if None not in values:
            filters.append(In(path, tuple(values)) if sign == "IN" else _FILTERS[sign](path, values[0]))
    predicate, _ = split_filters(filters, columns)
    return [named.get_field_index(name) for name in wanted], predicate


def _constant(kind: str, text: str) -> str | int | date | None:
    """Return a constant of a filter; None for a date that Python does not have, by which Spark alone filters."""
    if kind == "string":
        return text
    if kind != "date":
        return int(text)
    ordinal = _EPOCH + int(text)
    return date.fromordinal(ordinal) if 1 <= ordinal <= date.max.toordinal() else None

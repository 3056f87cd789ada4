"""``Result``: the result of a statement, and how its rows are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import YearMonthIntervalType

from tablestore.sql.parser.statements import Statement


@dataclass(frozen=True)
class Result:
    """The outcome of a statement, or its rows.

    Attributes:
        statement: the statement that was run.
        message: what was done, in a few words.
        columns: names of the columns of ``rows``.
        rows: the rows of SHOW, DESCRIBE, EXPLAIN and SET.
        frame: the rows of a query; a streaming DataFrame if a source is unbounded.
        output_mode: the output mode that a streaming ``frame`` needs: ``append`` or ``update``.
        chained, timed: whether a streaming ``frame`` must be started inside ``allowed``, and how.
        each: function to apply to each micro-batch of a streaming ``frame``; None if there is none.
        queries: the streaming queries that were started.
    """

    statement: Statement
    message: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    frame: DataFrame | None = None
    output_mode: str = "append"
    chained: bool = False
    timed: bool = False
    each: Callable[[DataFrame], DataFrame] | None = None
    queries: tuple[StreamingQuery, ...] = field(default=())


def shown(frame: DataFrame) -> DataFrame:
    """Return a frame with intervals of years and months as Flink's text (``+1-02``), since Python has no such type."""
    if not any(isinstance(field.dataType, YearMonthIntervalType) for field in frame.schema):
        return frame
    names = [f"_{number}" for number in range(len(frame.columns))]
    columns = [
        (_text_of(name) if isinstance(field.dataType, YearMonthIntervalType) else F.col(name)).alias(field.name)
        for name, field in zip(names, frame.schema, strict=True)
    ]
    return frame.toDF(*names).select(*columns)


def _text_of(name: str) -> Column:
    months = F.expr(f"CAST(CAST({name} AS INTERVAL MONTH) AS INT)")
    sign, length = F.when(months < 0, "-").otherwise("+"), F.abs(months)
    text = F.format_string("%s%d-%02d", sign, F.floor(length / 12), length % 12)
    return F.when(months.isNotNull(), text)

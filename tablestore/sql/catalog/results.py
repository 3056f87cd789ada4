"""``Result``: the result of a statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

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
        chained: whether a streaming ``frame`` must be started inside ``allowed``.
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
    each: Callable[[DataFrame], DataFrame] | None = None
    queries: tuple[StreamingQuery, ...] = field(default=())

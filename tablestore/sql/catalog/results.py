"""What a statement gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tablestore.sql.parser.statements import Statement


@dataclass(frozen=True)
class Result:
    """What a statement has done, or the rows it gives.

    Attributes:
        statement: that was run.
        message: what was done, in a few words.
        columns: names of ``rows``.
        rows: what SHOW, DESCRIBE and SET give.
        frame: what a query gives; a streaming one where a source has no end.
        output_mode: in which a streaming ``frame`` has to run: ``append`` or ``update``.
        chained: whether ``allowed`` has to be in force when a streaming ``frame`` is started.
        each: what is still to be done with the rows of each micro-batch of a streaming ``frame``.
        queries: that were started and go on.
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

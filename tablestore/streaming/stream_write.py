"""The streaming write: each micro-batch becomes exactly one snapshot, across restarts of the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from snapshot.errors import InvalidInputError
from tablestore.spark.connect import check_streams


def start_stream(
    frame: DataFrame,
    write: Callable[[DataFrame, int], None],
    *,
    has_key: bool,
    checkpoint: str,
    output_mode: str,
    trigger: Mapping[str, Any] | None,
    query_name: str | None,
) -> StreamingQuery:
    """Start and return a query that writes each micro-batch of a stream.

    A micro-batch is identified by the query's id, which Spark keeps in the checkpoint, and the batch number. Both are
    the same when Spark repeats a batch after a crash. So a batch that has landed is not written again, and a batch that
    is committed but not published is published. If the checkpoint was deleted, Spark gives the query a new id and
    counts batches from 0: rows that the query reads again are written again, and a warning is logged. If an older copy
    of the checkpoint was restored, Spark plans other batches under the numbers of those that have landed; the query
    ends with an error.

    Args:
        frame: the stream.
        write: writes the rows of the batch with a number. Over Spark Connect it is pickled and runs on the server.
        has_key: whether the table has a primary key.
        checkpoint: the query's checkpoint folder.
        output_mode: ``append``, or ``update`` if the table has a key.
        trigger: arguments of Spark's ``trigger``; None for Spark's default.
        query_name: the query's name.

    Raises:
        InvalidInputError: the frame is not a stream, or the output mode does not fit the table.
    """
    if not frame.isStreaming:
        msg = "write_stream: the frame is not a streaming one; use write() for a batch."
        raise InvalidInputError(msg)
    check_streams(frame.sparkSession)
    modes = ("append", "update") if has_key else ("append",)
    if output_mode not in modes:
        msg = (
            f"write_stream: output_mode={output_mode!r} does not go with this table; use one of {', '.join(modes)}"
            f"{'' if has_key else ' (update needs a primary key)'}."
        )
        raise InvalidInputError(msg)

    writer = frame.writeStream.foreachBatch(write).outputMode(output_mode).option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()

"""The streaming write: each micro-batch becomes one snapshot, once, across restarts of the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from snapshot.errors import InvalidInputError
from snapshot.store.commit import CommitId
from tablestore.spark.query_checkpoint import commit_id_of


def start_stream(
    frame: DataFrame,
    write: Callable[[DataFrame, CommitId], object],
    *,
    has_key: bool,
    checkpoint: str,
    output_mode: str,
    trigger: Mapping[str, Any] | None,
    query_name: str | None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
) -> StreamingQuery:
    """Start the query.

    The write of a batch is named by the query's id, which Spark keeps in the checkpoint, and the batch's number; both
    are the same when Spark repeats a batch after a crash. So a batch that landed is not written again, and one that
    is committed but not published is published. A query whose checkpoint was deleted gets a new id from Spark and
    counts its batches from 0: what it reads again is written again, and a warning says so.

    Args:
        frame: the stream.
        write: writes the rows of a batch under its name; called in the query's own thread.
        has_key: whether the table has a primary key.
        checkpoint: the query's folder.
        output_mode: ``append``, or ``update`` where the table has a key.
        trigger: arguments of Spark's ``trigger``; None for Spark's default.
        query_name: the query's name.
        transform: makes of the rows of a batch those that are written.

    Raises:
        InvalidInputError: the frame is not a stream, or the output mode does not fit the table.
    """
    if not frame.isStreaming:
        msg = "write_stream: the frame is not a streaming one; use write() for a batch."
        raise InvalidInputError(msg)
    modes = ("append", "update") if has_key else ("append",)
    if output_mode not in modes:
        msg = (
            f"write_stream: output_mode={output_mode!r} does not go with this table; use one of {', '.join(modes)}"
            f"{'' if has_key else ' (update needs a primary key)'}."
        )
        raise InvalidInputError(msg)

    def write_batch(batch: DataFrame, number: int) -> None:
        write(batch if transform is None else transform(batch), commit_id_of(checkpoint, number))

    writer = (
        frame.writeStream.foreachBatch(write_batch).outputMode(output_mode).option("checkpointLocation", checkpoint)
    )
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()

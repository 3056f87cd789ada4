"""Reads the changes of a table within this process, snapshot by snapshot."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from log_system.gate import limited
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION
from snapshot.store.creation import dropped_on_error
from tablestore.context import TableContext
from tablestore.read.splits import as_feed
from tablestore.streaming.change_feed import BEFORE_FULL, Feed

_TOGETHER_ROWS = 65_536
"""Small snapshots are read together up to this number of changes."""
_LOOK_SECONDS = 5.0
"""How often a waiting reader checks that its table still exists."""


def feed_schema(table: TableContext) -> pa.Schema:
    """Return the schema of a table's change feed."""
    changes = table.files.change_schema
    columns = changes.remove(len(changes) - 1)
    stamps = ((COMMIT_VERSION, pa.int64()), (COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")))
    return pa.schema([*columns, pa.field(CHANGE_TYPE, pa.string()), *(pa.field(*each) for each in stamps)])


def in_order(feed: Feed, after: int, through: int, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    """Yield the changes of snapshots ``after + 1`` to ``through`` in snapshot order.

    Changes are read bucket by bucket, so the changes of several snapshots must be sorted: small snapshots are read
    together and sorted in memory, and a large snapshot is read alone, batch by batch. With ``BEFORE_FULL`` as
    ``after``, the rows of ``through`` come as inserts.

    Raises:
        CorruptedError: the table was set back meanwhile.
        DataLostError: the changes are no longer in the log or the table.
        NotFoundError: the table was dropped.
        TableReplacedError: the table was dropped and created again.
    """
    if after == BEFORE_FULL:
        yield from _read(feed, after, through, schema)
        return
    reached = feed.position(through)
    while after < through:
        # The iterator may have been left alone for a while.
        feed.check(reached)
        end = limited(after, through, feed.rows, rows_max=_TOGETHER_ROWS, snapshots_max=None)
        batches = _read(feed, after, end, schema)
        if end == after + 1:
            yield from batches
        else:
            rows = pa.Table.from_batches(batches, schema=schema)
            # The sort is stable, so changes of a key within a snapshot keep their order.
            order = pc.sort_indices(rows, sort_keys=[(COMMIT_VERSION, "ascending")])
            yield from rows.take(order).combine_chunks().to_batches()
        after = end


def followed(
    table: TableContext, feed: Feed, after: int, schema: pa.Schema, poll_seconds: float
) -> Iterator[pa.RecordBatch]:
    """Yield changes as they become visible, without end.

    Raises:
        CorruptedError: the table was set back to before what was read, whatever was committed since.
        DataLostError: the changes are no longer in the log or the table, or the topic was created again.
        TableReplacedError: the table was dropped and created again.
        NotFoundError: the table was dropped, or its topic deleted.
    """
    looked = time.monotonic()
    watch = table.log.watch()
    reached = feed.position(after)
    while True:
        newest = table.newest_visible()
        feed.check(reached)
        if newest > reached.snapshot:
            before, reached = reached, feed.position(newest)
            yield from in_order(feed, before.snapshot, newest, schema)
            continue
        time.sleep(poll_seconds)
        # Raise if the topic was deleted: nothing would become visible any more.
        table.check_log(watch)
        if time.monotonic() - looked >= _LOOK_SECONDS:
            table.check_same()
            looked = time.monotonic()


def _read(feed: Feed, after: int, through: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with dropped_on_error(feed.table.files):
        for part in feed.parts(after, through):
            yield from as_feed(part.read(), schema)

"""The newest changes in a table's log, for the page: a bounded part of it, all keys or one."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from snapshot.errors import DataLostError, NotFoundError
from snapshot.python_values import printable
from tablestore.context import TableContext
from tablestore.local.tail import feed_schema, in_order
from tablestore.streaming.change_feed import Feed

ROWS_SHOWN = 50
_SEARCHED_ROWS = 10_000
_SEARCHED_SNAPSHOTS = 200
"""One page reads up to this many changes and snapshots, or the beginning of one snapshot that is larger."""


@dataclass(frozen=True)
class NewestChanges:
    """The newest changes in a log, or in a part of it.

    Attributes:
        rows: the changes, newest first, with the columns of a change feed.
        first: the oldest snapshot that was read.
        last: the newest snapshot that was read.
        oldest: the oldest snapshot whose changes can be read.
        cut: not all changes of these snapshots were read.
    """

    rows: pa.Table
    first: int
    last: int
    oldest: int
    cut: bool


def log_tail(table: TableContext, *, before: int | None, key: str) -> NewestChanges:
    """Read the newest changes in the log.

    Args:
        table: the table.
        before: only snapshots before this one; None for all.
        key: only changes of the row with this primary key, as ``key_texts`` shows it; empty for all rows.

    Raises:
        DataLostError: the changes are neither in the log nor in the table's files.
        UnavailableError: the broker does not answer.
    """
    oldest = max(table.files.oldest(fresh=False), 1)
    last = table.newest_visible()
    last = last if before is None else min(last, before - 1)
    schema = feed_schema(table)
    found, after, cut = 0, last, False
    wanted = _SEARCHED_ROWS if key else ROWS_SHOWN
    while after >= oldest and found < wanted and last - after < _SEARCHED_SNAPSHOTS:
        found += _rows(table, after)
        after -= 1
    batches: list[pa.RecordBatch] = []
    if after < last:
        changes = in_order(Feed(table), after, last, schema)
        for batch in changes:
            batches.append(batch)
            if sum(each.num_rows for each in batches) > _SEARCHED_ROWS:
                cut = next(changes, None) is not None
                changes.close()
                break
    rows = pa.Table.from_batches(batches, schema=schema)
    if key and table.spec.primary_key:
        rows = rows.filter(pc.equal(key_texts(rows, table.spec.primary_key), key))
    shown = rows.slice(max(0, rows.num_rows - _SEARCHED_ROWS))
    newest_first = shown.take(pa.array(range(shown.num_rows - 1, -1, -1), pa.int64()))
    return NewestChanges(newest_first, after + 1, last, oldest, cut)


def key_texts(rows: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    """Return the primary keys of rows as text; values of several columns are separated by commas."""
    texts = [_text(rows.column(name)) for name in key]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, ",")


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.chunked_array([pa.array([str(value) for value in printable(column)], pa.string())])


def _rows(table: TableContext, snapshot: int) -> int:
    try:
        return table.log.rows(snapshot)
    except (DataLostError, NotFoundError):
        return 0

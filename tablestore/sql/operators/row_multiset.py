"""``RowMultiset``: the rows of the groups of one bucket, each with its number of copies, as of a micro-batch.

A change adds copies or removes them, so a segment holds differences, and the number of copies of a row is the sum over
all segments. Writing a change needs no look-up, and the rows of a group are together in each segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.arrow_slices import unsliced
from snapshot.errors import CorruptedError, DataLostError
from snapshot.quoting import quoted
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ, conform
from snapshot.storage import Storage
from tablestore.normalize.segments import HASH, REMEDY, Segment, SegmentedState, in_steps

COUNT: Final = "_count"
_BATCH_ROWS: Final = 131_072

Hashes = npt.NDArray[np.int64]


class RowMultiset(SegmentedState):
    """The state of one bucket after a micro-batch, which ``put`` changes into the one after the next."""

    def __init__(self, db: duckdb.DuckDBPyConnection, storage: Storage, columns: pa.Schema, batch: int) -> None:
        """Start with an empty state, to be saved as that of a micro-batch."""
        layout = pa.schema([pa.field(HASH, pa.int64()), pa.field(COUNT, pa.int64()), *columns])
        super().__init__(storage, layout, batch)
        self._db = db
        self._columns = columns

    @classmethod
    def open(cls, db: duckdb.DuckDBPyConnection, storage: Storage, columns: pa.Schema, batch: int) -> RowMultiset:
        """Return the state before a micro-batch; see ``__init__``.

        Raises:
            CorruptedError: a file of the state cannot be read, or is of other columns.
            DataLostError: the state after the micro-batch before is gone, or was never written.
            UnavailableError: the file system does not answer.
        """
        state = cls(db, storage, columns, batch)
        if batch == 0:
            return state
        name = f"{batch - 1}.json"
        if not storage.exists(name):
            msg = (
                f"{storage.path(name)}: this query's state before micro-batch {batch} is missing. Either the sink did "
                "not read all rows of the micro-batch before, or spark.sql.shuffle.partitions was changed since the "
                f"query first started, or the file was removed. Set it back; else: {REMEDY}"
            )
            raise DataLostError(msg)
        state._load(name)
        return state

    def rows(self, hashes: Hashes) -> pa.Table:
        """Return the rows of groups with these hashes (sorted, each once), in any order, perhaps several times each.

        Returns:
            ``_hash``, ``_count`` and the columns; the copies of a row are the sum of its counts.
        """
        found: list[pa.RecordBatch] = []
        for segment in self._segments:
            for batch in segment.batches:
                held = _hashes_of(batch)
                first, end = np.searchsorted(held, hashes, "left"), np.searchsorted(held, hashes, "right")
                lengths = end - first
                total = int(lengths.sum())
                if total == batch.num_rows:
                    found.append(batch)
                elif total:
                    before = np.cumsum(lengths) - lengths
                    found.append(batch.take(pa.array(np.repeat(first - before, lengths) + np.arange(total))))
        return pa.Table.from_batches(found, schema=self._layout)

    def put(self, changes: pa.Table) -> None:
        """Add changes: ``_hash``, ``_count``, which is negative where copies are removed, and the columns."""
        rows = changes.select(self._layout.names).sort_by(HASH).combine_chunks()
        for batch in rows.to_batches():
            self._push(conform(batch, self._layout))

    def _notes(self) -> dict[str, Any]:
        return {"columns": self._columns_text()}

    def _take_notes(self, version: dict[str, Any]) -> None:
        if version["columns"] != self._columns_text():
            msg = (
                f"{self._storage.root}: the state is of a query with other columns ({version['columns']}) than this "
                f"one ({self._columns_text()}). {REMEDY}"
            )
            raise CorruptedError(msg)

    def _columns_text(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self._columns)

    def _merged(self, older: Segment, newer: Segment, *, is_oldest: bool) -> Iterator[pa.RecordBatch]:
        del is_oldest  # Rows without copies leave the state wherever they meet.
        columns = ", ".join(quoted(field.name) for field in self._columns)
        for old, new in in_steps(older, newer, _BATCH_ROWS):
            both = pa.Table.from_batches([*old, *new], schema=self._layout)
            text = (
                f"SELECT {HASH}, sum({COUNT})::BIGINT AS {COUNT}, {columns} FROM both_segments "
                f"GROUP BY ALL HAVING sum({COUNT}) <> 0 ORDER BY {HASH}"
            )
            for batch in query(self._db, text, both_segments=both).to_batches():
                if batch.num_rows:
                    yield conform(batch, self._layout)


def query(db: duckdb.DuckDBPyConnection, text: str, **tables: pa.Table) -> pa.Table:
    """Return the rows of a query over Arrow tables, by name."""
    for name, table in tables.items():
        db.register(name, pa.Table.from_batches(map(unsliced, table.to_batches()), schema=table.schema))
    try:
        return db.sql(text).to_arrow_table()
    finally:
        for name in tables:
            db.unregister(name)


def as_changes(db: duckdb.DuckDBPyConnection, batch: int, rows: pa.Table, columns: pa.Schema, kind: str) -> pa.Table:
    """Return rows that have come or gone as changes, those that have gone first.

    A reader that applies the changes in order then replaces a key instead of removing it.

    Args:
        db: runs the query.
        batch: id of the micro-batch.
        rows: the columns, and ``_count``: how many copies of a row have come (positive) or gone (negative).
        columns: the columns to return.
        kind: the expression of the change type, over ``rows``.

    Returns:
        The columns, ``_change_type`` and ``_seq``, which is higher in later micro-batches.
    """
    named = ", ".join(quoted(name) for name in columns.names)
    text = f"SELECT {named}, {COUNT}::BIGINT AS {COUNT}, {kind} AS {CHANGE_TYPE} FROM found ORDER BY {COUNT}"
    found = query(db, text, found=rows)
    counts = pc.abs(found.column(COUNT)).to_numpy()
    if (counts != 1).any():
        found = found.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    arrays = [found.column(field.name).cast(field.type) for field in columns]
    arrays += [found.column(CHANGE_TYPE).cast(pa.string()), pa.repeat(pa.scalar(batch, pa.int64()), len(found))]
    return pa.table(arrays, names=[*columns.names, CHANGE_TYPE, SEQ])


def _hashes_of(batch: pa.RecordBatch) -> Hashes:
    hashes: Hashes = batch.column(HASH).to_numpy()
    return hashes

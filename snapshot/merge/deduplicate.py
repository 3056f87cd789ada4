"""Deduplication: keeps the last row of each key in a stream of batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.merge.duckdb_engine import errors_mapped, load, read, spilling
from snapshot.merge.waiting_rows import WaitingRows
from snapshot.schema.system_columns import SEQ, grouped

_FEW_BYTES = 32 << 20


def last_per_key(
    session: duckdb.DuckDBPyConnection,
    primary_key: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    folder: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the row with the largest ``_seq`` of each key, ordered by ``_seq``, in the schema of the input.

    DuckDB gets only the keys, because it cannot spill large values; the rows wait in a file.

    Args:
        session: A session in which no temporary tables ``staged`` and ``winners`` exist.
        primary_key: Names of the key columns.
        batches: Rows of one schema that has at least the key columns and ``_seq``.
        folder: Where to create the file; None for the folder of spilled data.

    Raises:
        UnavailableError: there is no room for the file.
    """
    rows = iter(batches)
    first = next(rows, None)
    if first is None:
        return
    # Numbered names, so that no user column can shadow DuckDB's ``rowid``.
    names = {name: f"c{position}" for position, name in enumerate([*primary_key, SEQ])}
    inner = pa.schema([first.schema.field(name).with_name(names[name]) for name in names])
    order = _OrderWatch(SEQ)
    with WaitingRows(first.schema, folder) as waiting:
        kept = waiting.added(order.watched(chain([first], rows)))
        numbered = (pa.RecordBatch.from_arrays(each.select(list(names)).columns, schema=inner) for each in kept)
        load(session, "staged", inner, numbered)
        keys, seq = ", ".join(names[name] for name in primary_key), names[SEQ]
        row = "max(rowid)" if order.ascends else f"max_by(rowid, {seq})"
        sql = f"SELECT {row} AS row FROM staged GROUP BY {keys} ORDER BY {'row' if order.ascends else f'max({seq})'}"
        for winners in read(session, sql, [], pa.schema([("row", pa.int64())])):
            yield from waiting.taken(winners.column(0).to_numpy())


def last_records(primary_key: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what ``last_per_key`` does; DuckDB is started only for input that is too large for memory."""
    few: list[pa.RecordBatch] = []
    rows, size = iter(batches), 0
    for batch in rows:
        few.append(batch)
        size += batch.nbytes
        if size > _FEW_BYTES:
            with errors_mapped("records"), spilling() as session:
                yield from last_per_key(session, primary_key, chain(few, rows))
            return
    if few:
        yield from last_of_few(primary_key, pa.Table.from_batches(few)).to_batches()


def last_of_few(primary_key: Sequence[str], rows: pa.Table) -> pa.Table:
    """Return the same rows as ``last_per_key`` for input that fits in memory, without the start-up cost of DuckDB."""
    last = grouped(rows.select([*primary_key, SEQ]), primary_key).aggregate([(SEQ, "max")])
    if last.num_rows < rows.num_rows:
        rows = rows.filter(pc.is_in(rows.column(SEQ), value_set=last.column(f"{SEQ}_max")))
    ascends = bool((np.diff(rows.column(SEQ).to_numpy()) > 0).all())
    return rows if ascends else rows.sort_by(SEQ)


class _OrderWatch:
    """Detects whether batches arrive in ascending order of a column, so that they need not be sorted."""

    def __init__(self, column: str) -> None:
        self.ascends = True
        self._column = column
        self._last: int | None = None

    def watched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(self._column).to_numpy()
            if len(numbers) and self.ascends:
                follows = self._last is None or numbers[0] > self._last
                self.ascends = bool(follows and (np.diff(numbers) > 0).all())
                self._last = int(numbers[-1])
            yield batch

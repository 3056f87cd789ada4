"""Deduplication: keeps the last row of each key in a stream of batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from tempfile import NamedTemporaryFile
from typing import Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.merge.duckdb_engine import BATCH_ROWS, errors_mapped, load, no_room, private_folder, read, spilling
from snapshot.schema.system_columns import SEQ

_FEW_BYTES = 32 << 20
_TAKEN_BYTES = 32 << 20
_MEMORY = "256MB"


def last_per_key(
    session: duckdb.DuckDBPyConnection,
    primary_key: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    folder: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the row with the largest ``_seq`` of each key.

    DuckDB gets only the keys, because it cannot spill large values; the rows wait in a file.

    Args:
        session: A session in which no temporary tables ``staged`` and ``winners`` exist.
        primary_key: Names of the key columns.
        batches: Rows of one schema that has at least the key columns and ``_seq``.
        folder: Where to create the file; None for the folder of spilled data.

    Yields:
        The remaining rows, ordered by ``_seq``, in the schema of the input.

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
    with _WaitingRows(first.schema, folder or private_folder()) as waiting:
        kept = waiting.added(order.watched(chain([first], rows)))
        numbered = (pa.RecordBatch.from_arrays(each.select(list(names)).columns, schema=inner) for each in kept)
        load(session, "staged", inner, numbered)
        keys, seq = ", ".join(names[name] for name in primary_key), names[SEQ]
        row = "max(rowid)" if order.ascends else f"max_by(rowid, {seq})"
        sql = f"SELECT {row} AS row FROM staged GROUP BY {keys} ORDER BY {'row' if order.ascends else f'max({seq})'}"
        for winners in read(session, sql, [], pa.schema([("row", pa.int64())])):
            yield from waiting.taken(winners.column(0).to_numpy())


class _WaitingRows:
    """Batches in a temporary file, of which rows are taken by their numbers. A context manager."""

    def __init__(self, schema: pa.Schema, folder: str) -> None:
        """Prepare to hold batches of one schema in a file, which is removed at the end of the context."""
        self._schema, self._folder = schema, folder
        self._stack = ExitStack()
        self._starts = [0]
        self._bytes = 0

    def __enter__(self) -> Self:
        """Create the file."""
        self._file = self._stack.enter_context(NamedTemporaryFile(dir=self._folder, suffix=".arrow"))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file."""
        self._stack.close()

    def added(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches to the file, and yield each; rows can be taken when all are written."""
        writer = pa.ipc.new_file(self._file, self._schema)
        for batch in batches:
            with _writing():
                writer.write_batch(batch)
            self._starts.append(self._starts[-1] + batch.num_rows)
            self._bytes += batch.nbytes
            yield batch
        with _writing():
            writer.close()
            self._file.flush()
        self._reader = pa.ipc.open_file(self._stack.enter_context(pa.OSFile(self._file.name)))

    def taken(self, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yield the rows with some numbers, in the order of these, few at a time if the rows are large."""
        step = max(1, min(BATCH_ROWS, _TAKEN_BYTES * self._starts[-1] // max(1, self._bytes)))
        for some in (rows[start : start + step] for start in range(0, len(rows), step)):
            numbers = np.searchsorted(self._starts, some, side="right") - 1
            by_batch = np.argsort(numbers, kind="stable")
            parts = [
                self._reader.get_batch(int(number)).take(pa.array(some[numbers == number] - self._starts[number]))
                for number in np.unique(numbers)
            ]
            found = pa.concat_batches(parts)
            yield found if (np.diff(by_batch) > 0).all() else found.take(pa.array(np.argsort(by_batch)))


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise no_room(what="staged rows", reason=error) from error


def last_records(primary_key: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what ``last_per_key`` does; DuckDB is started only for input that is too large for memory."""
    few: list[pa.RecordBatch] = []
    rows, size = iter(batches), 0
    for batch in rows:
        few.append(batch)
        size += batch.nbytes
        if size > _FEW_BYTES:
            with errors_mapped("records"), spilling(memory_limit=_MEMORY) as session:
                yield from last_per_key(session, primary_key, chain(few, rows))
            return
    if few:
        yield from last_of_few(primary_key, pa.Table.from_batches(few)).to_batches()


def last_of_few(primary_key: Sequence[str], rows: pa.Table) -> pa.Table:
    """Return the same rows as ``last_per_key`` for input that fits in memory, without the start-up cost of DuckDB."""
    last = rows.select([*primary_key, SEQ]).group_by(list(primary_key), use_threads=False).aggregate([(SEQ, "max")])
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

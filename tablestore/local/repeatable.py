"""Rows that a write can read again if another writer commits first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from snapshot.schema.spec import TableSpec
from tablestore.write.arrow_input import deletes_reader
from tablestore.write.tabular_input import Tabular, cast_batch, loose_schema, open_loosely, read_tabular

_MEMORY_BYTES = 64 << 20
"""Rows of a stream are kept in memory up to this size, and in a temporary file beyond it."""


@dataclass(frozen=True)
class Batches:
    """Rows that can be read any number of times, also by several threads at once.

    Attributes:
        read: returns the batches, the same at each call.
        num_rows: the number of rows.
        nbytes: their size in memory.
        schema: their schema.
        since: the snapshot that introduced the columns of the table which the rows were checked against.
    """

    read: Callable[[], Iterator[pa.RecordBatch]]
    num_rows: int
    nbytes: int
    schema: pa.Schema
    since: int = 0

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """Return the batches."""
        return self.read()

    def part(self, number: int, parts: int) -> Iterator[pa.RecordBatch]:
        """Yield one of several parts of about equal size, which follow each other in the order of the rows."""
        begin, end = (self.num_rows * each // parts for each in (number, number + 1))
        first = 0
        for batch in self.read():
            if first + batch.num_rows > begin and first < end:
                start = max(begin - first, 0)
                yield batch.slice(start, end - first - start)
            first += batch.num_rows
            if first >= end:
                return

    def under(self, spec: TableSpec, keys: Sequence[str] = ()) -> Batches:
        """Return the rows as rows of the table's current columns; another writer may have changed them since.

        ``keys`` are the columns that count in deletes by key; empty for other rows.

        Raises:
            InvalidInputError: the rows do not fit the columns.
        """
        if spec.since == self.since:
            return self

        def read() -> pa.RecordBatchReader:
            rows = pa.RecordBatchReader.from_batches(self.schema, self.read())
            return read_tabular(deletes_reader(rows, spec, keys) if keys else rows, spec)

        return replace(self, read=read, schema=read().schema, since=spec.since)


@contextmanager
def repeatable(reader: pa.RecordBatchReader, since: int = 0) -> Iterator[Batches]:
    """Read a stream to its end and return its batches as often as they are asked for, in bounded memory."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > _MEMORY_BYTES:
            break
    else:
        yield Batches(lambda: iter(held), rows, size, reader.schema, since)
        return
    with tempfile.TemporaryDirectory(prefix="tablestore-rows-") as folder:
        path = Path(folder) / "rows.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
            for batch in held:
                writer.write_batch(batch)
            held.clear()
            for batch in reader:
                writer.write_batch(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
        yield Batches(lambda: _stored(path), rows, size, reader.schema, since)


@contextmanager
def repeatable_loosely(data: Tabular, spec: TableSpec) -> Iterator[Batches]:
    """Return the rows of ``read_loosely`` as ``repeatable`` does."""
    source = open_loosely(data, spec)
    if isinstance(source, pa.Table):
        yield Batches(lambda: iter(source.to_batches()), source.num_rows, source.nbytes, source.schema)
        return
    with repeatable(source) as rows:
        schema = loose_schema(rows.schema, rows(), spec)
        yield replace(rows, schema=schema, read=lambda: (cast_batch(batch, schema) for batch in rows()))


def _stored(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        yield from stream

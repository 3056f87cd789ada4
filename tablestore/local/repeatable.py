"""Rows that a write can read again if another writer commits first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Protocol

import pyarrow as pa

_MEMORY_BYTES = 64 << 20
"""Rows of a stream are kept in memory up to this size, and in a temporary file beyond it."""


class Batches(Protocol):
    """A function that returns the same batches at each call."""

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """Return the batches."""
        ...


@contextmanager
def repeatable(reader: pa.RecordBatchReader) -> Iterator[Batches]:
    """Read a stream to its end and return its batches as often as they are asked for, in bounded memory."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        held.append(batch)
        size += batch.nbytes
        if size > _MEMORY_BYTES:
            break
    else:
        yield lambda: iter(held)
        return
    with tempfile.TemporaryDirectory(prefix="tablestore-rows-") as folder:
        path = Path(folder) / "rows.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
            for batch in chain(held, reader):
                writer.write_batch(batch)
        held.clear()
        yield lambda: _stored(path)


def _stored(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        yield from stream

"""Rows that wait in a file, with large values too, which DuckDB cannot sort or join without holding them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import NamedTemporaryFile
from typing import Self

import numpy as np
import pyarrow as pa

from snapshot.merge.duckdb_engine import BATCH_ROWS, no_room, private_folder

_TAKEN_BYTES = 32 << 20


class WaitingRows:
    """Batches in a temporary file, of which rows are taken by their numbers. A context manager."""

    def __init__(self, schema: pa.Schema, folder: str | None = None) -> None:
        """Prepare to hold batches of one schema in a file, which is removed at the end of the context.

        The file is in ``folder``, or in that of spilled data.
        """
        self._schema, self._folder = schema, folder or private_folder()
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
        """Write batches to the file, and yield each; rows can be taken when all are written.

        Raises:
            UnavailableError: there is no room for the file.
        """
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

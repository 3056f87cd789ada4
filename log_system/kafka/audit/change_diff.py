"""Compares two streams of changes row by row, in Arrow batches, and realigns them where they diverge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from snapshot.schema.row_equality import equal

AHEAD_ROWS = 131_072
"""How many rows ahead a row of the other side is searched for."""
_RUN_ROWS = 16
"""How many rows must agree before two streams count as realigned."""
_CANDIDATES_MAX = 64
Coded = tuple[pa.RecordBatch, np.ndarray]


@dataclass(frozen=True)
class Parted:
    """A place where log and table diverge.

    Attributes:
        extra: rows of the log that the table does not have here, and the offsets of their records.
        missing: rows of the table that the log does not have here.
        offset: offset of the log's record at or after this place; None at the end.
    """

    extra: Coded | None
    missing: pa.RecordBatch | None
    offset: int | None


class _Rows:
    """The rows of one side that have not yet been compared."""

    def __init__(self, source: Iterable[Coded]) -> None:
        self._source = iter(source)
        self.batch: pa.RecordBatch | None = None
        self.offsets = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return 0 if self.batch is None else int(self.batch.num_rows)

    def fill(self, rows: int) -> int:
        """Buffer at least ``rows`` rows, if the source has them, and return the number of buffered rows."""
        held = [] if self.batch is None else [self.batch]
        offsets, count = [self.offsets], len(self)
        while count < rows and (following := next(self._source, None)) is not None:
            if following[0].num_rows:
                held.append(following[0])
                offsets.append(following[1])
                count += following[0].num_rows
        if len(held) > 1:
            self.batch = pa.concat_batches(held)
        elif held:
            self.batch = held[0]
        if len(offsets) > 1:
            self.offsets = np.concatenate(offsets)
        return count

    def take(self, rows: int) -> Coded:
        """Remove the first rows from the buffer and return them."""
        assert self.batch is not None
        taken = self.batch.slice(0, rows), self.offsets[:rows]
        self.batch, self.offsets = self.batch.slice(rows), self.offsets[rows:]
        return taken


class Comparison:
    """Compares the log's rows with the table's."""

    def __init__(self, log: Iterable[Coded], table: Iterable[pa.RecordBatch]) -> None:
        """Compare two streams with the same columns."""
        self._log = _Rows(log)
        self._table = _Rows((batch, np.zeros(batch.num_rows, np.int64)) for batch in table)
        self.rows = 0

    def parted(self, *, gaps: bool = False) -> Iterator[Parted]:
        """Compare both sides to the end, and yield each place where they diverge.

        Args:
            gaps: the log may lack rows because Kafka compacts it, so missing rows are ignored.
        """
        log, table = self._log, self._table
        while True:
            left, right = log.fill(1), table.fill(1)
            if not left and not right:
                return
            if gaps and not left:
                table.take(right)
            elif not left or not right:
                yield Parted(log.take(left) if left else None, table.take(right)[0] if right else None, None)
            if not left or not right:
                continue
            rows = min(left, right)
            same = _first_difference(_head(log, rows), _head(table, rows))
            log.take(same)
            table.take(same)
            self.rows += same
            if same < rows:
                found = self._part(gaps=gaps)
                if found is not None:
                    yield found

    def _part(self, *, gaps: bool) -> Parted | None:
        """Realign the sides: rows are extra in the log, missing from it, or one row differs."""
        log, table = self._log, self._table
        log.fill(1 if gaps else AHEAD_ROWS)
        table.fill(AHEAD_ROWS)
        offset = self._offset()
        if gaps:
            return self._part_with_gaps(offset)
        missing, extra = _find(table, log, 1), _find(log, table, 1)
        if extra is not None and (missing is None or extra <= missing):
            return Parted(log.take(extra), None, offset)
        if missing is not None:
            return Parted(None, table.take(missing)[0], offset)
        return Parted(self._log.take(1), self._table.take(1)[0], offset)

    def _part_with_gaps(self, offset: int | None) -> Parted | None:
        """Skip rows of the table up to the log's next row; if the table has no such row, the log's rows are extra."""
        start = 1
        while len(self._table):
            found = _find(self._table, self._log, start, run=1)
            if found is not None:
                self._table.take(found)
                return None
            self._table.take(len(self._table))
            self._table.fill(AHEAD_ROWS)
            start = 0
        return Parted(self._log.take(len(self._log)), None, offset)

    def _offset(self) -> int | None:
        return int(self._log.offsets[0]) if len(self._log) else None


def _head(side: _Rows, rows: int, start: int = 0) -> pa.RecordBatch:
    assert side.batch is not None
    return side.batch.slice(start, rows)


def _first_difference(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    """Return the number of equal rows at the start; NULL equals NULL and NaN equals NaN."""
    first: int = min(left.num_rows, right.num_rows)
    for name in left.schema.names:
        a, b = (side.column(name).slice(0, first) for side in (left, right))
        if a.equals(b):
            continue
        differ = np.flatnonzero(~equal(a, b))
        if len(differ):
            first = int(differ[0])
    return first


def _find(where: _Rows, what: _Rows, start: int, *, run: int = _RUN_ROWS) -> int | None:
    """Return where the first rows of ``what``, up to ``run`` of them, occur in ``where`` from ``start`` on, or None."""
    assert where.batch is not None
    assert what.batch is not None
    fits = np.ones(len(where), bool)
    fits[:start] = False
    for name, column in zip(where.batch.schema.names, where.batch.columns, strict=True):
        if not pa.types.is_nested(column.type):
            value = what.batch.column(what.batch.schema.get_field_index(name)).slice(0, 1)
            fits &= equal(column, value.take(pa.array(np.zeros(len(column), np.int64))))
    for place in np.flatnonzero(fits)[:_CANDIDATES_MAX]:
        rows = min(run, len(where) - int(place), len(what))
        if _first_difference(_head(where, rows, int(place)), _head(what, rows)) == rows:
            return int(place)
    return None

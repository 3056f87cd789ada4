"""The normalize operator: turns the last records of keys into a changelog, in the tasks that read a log.

Each micro-batch emits at most one change per key: the difference between the key's row before the micro-batch and the
row after it. A task processes one partition of the log: it opens the state at the first offset, looks up the keys of
the records, emits the changes, and saves the state at the end offset (``keyed_state.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapshot.errors import DataLostError
from snapshot.merge.bucket_hash import key_hashes
from snapshot.records import Split
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.row_equality import Flags, equal
from snapshot.schema.system_columns import COMMIT_TIMESTAMP
from tablestore.normalize.keyed_state import KeyedState, StateSpec
from tablestore.normalize.segments import REMEDY

_CHUNK_ROWS = 131_072
_CHUNK_BYTES = 32 << 20


class LastRecords(Protocol):
    """Reads a log partition. Picklable."""

    def between(self, start: int, end: int, /) -> Iterable[pa.RecordBatch]:
        """Yield the last record of each key between two offsets, in log order.

        Yields:
            The columns of the rows, ``_kind``, and further columns that changes carry over; with a time-to-live,
            ``_commit_timestamp`` among them.

        Raises:
            DataLostError: the log no longer has all of the records.
        """
        ...


@dataclass(frozen=True)
class NormalizedRows:
    """The rows of a snapshot that belong to one log partition: they are emitted, and become the partition's state.

    Attributes:
        rows: the rows, as inserts.
        state: the query's state.
        partition: name of the partition.
        offset: where reading the log starts, after these rows.
    """

    rows: Split | None
    state: StateSpec
    partition: str
    offset: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and save the state."""
        state = KeyedState(self.state, self.partition, self.offset)
        try:
            yield from _saved_before_last(state, self._put(state))
        finally:
            state.discard()

    def _put(self, state: KeyedState) -> Iterator[pa.RecordBatch]:
        for chunk in () if self.rows is None else _chunks(self.rows.read()):
            _put_all(state, self.state, chunk)
            yield chunk


@dataclass(frozen=True)
class NormalizedSplit:
    """The changes of one log partition between two offsets.

    Attributes:
        records: reads the partition.
        state: the query's state.
        partition: name of the partition.
        start: the first offset.
        end: the offset after the last one.
        origin: the offset at which the query began to read the partition.
        rows: what the state was at ``origin``; None for an empty state.
    """

    records: LastRecords
    state: StateSpec
    partition: str
    start: int
    end: int
    origin: int
    rows: Split | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes: the columns of the rows, ``_kind`` and the further columns of the records.

        Raises:
            CorruptedError: a file of the state cannot be read.
            DataLostError: the state is gone, and the log no longer has what it takes to rebuild it.
        """
        state, found = KeyedState.open(self.state, self.partition, self.start, self.end)
        try:
            self._catch_up(state, found)
            state.expire()
            records = _chunks(self.records.between(self.start, self.end))
            changes = (_changes(state, self.state, chunk) for chunk in records)
            yield from _saved_before_last(state, changes)
        finally:
            state.discard()

    def _catch_up(self, state: KeyedState, found: int | None) -> None:
        """Bring the state to the first offset.

        It is behind if a micro-batch before was not read whole, because its sink took only some of the rows.
        """
        if found is None and self.rows is not None:
            for chunk in _chunks(self.rows.read()):
                _put_all(state, self.state, chunk)
        behind = self.origin if found is None else found
        if behind >= self.start:
            return
        try:
            for chunk in _chunks(self.records.between(behind, self.start)):
                _put_all(state, self.state, chunk)
        except DataLostError as error:
            msg = (
                f"{self.state.folder.path(self.partition)}: this query's state at offset {self.start} is gone, and "
                f"the log no longer has all records from offset {behind} on to rebuild it ({error}). {REMEDY}"
            )
            raise DataLostError(msg) from error


def _put_all(state: KeyedState, spec: StateSpec, rows: pa.RecordBatch) -> None:
    """Put rows into the state without a look-up."""
    state.put(key_hashes(rows, spec.primary_key), rows, _is_delete(rows), _times(spec, rows))


def _changes(state: KeyedState, spec: StateSpec, records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the changes that records make, and put them into the state."""
    hashes, deleted = key_hashes(records, spec.primary_key), _is_delete(records)
    numbers, old = state.find(hashes, records)
    place = np.full(records.num_rows, -1, np.int64)
    place[numbers] = np.arange(len(numbers))
    lived = place >= 0
    same = lived & ~deleted
    rows = np.flatnonzero(same)
    same[rows] = _same(records.take(pa.array(rows)), old.take(pa.array(place[rows])), spec)
    inserted, updated, removed = ~deleted & ~lived, ~deleted & lived & ~same, deleted & lived
    # With a time-to-live, a record without a change still makes its key younger.
    put = np.flatnonzero(inserted | updated | removed if spec.ttl_us is None else ~deleted | lived)
    kept = records.take(pa.array(put))
    state.put(hashes[put], kept, deleted[put], _times(spec, kept))
    return _emitted(records, old, place, inserted, updated, removed)


def _emitted(
    records: pa.RecordBatch,
    old: pa.RecordBatch,
    place: npt.NDArray[np.int64],
    inserted: Flags,
    updated: Flags,
    removed: Flags,
) -> pa.RecordBatch:
    """Return the changes of records in their order; an update is two, the row before and the row after it."""
    count = (inserted | updated | removed).astype(np.int64) + updated
    record = np.repeat(np.arange(records.num_rows), count)
    last = np.cumsum(count) - 1
    # The place of each change's row among the new rows followed by the old ones.
    rows, kinds = record.copy(), np.full(len(record), int(RowKind.INSERT), np.int8)
    for change, kind, at, is_old in (
        (updated, RowKind.UPDATE_BEFORE, last - 1, True),
        (updated, RowKind.UPDATE_AFTER, last, False),
        (removed, RowKind.DELETE, last, True),
    ):
        kinds[at[change]] = int(kind)
        if is_old:
            rows[at[change]] = records.num_rows + place[change]
    new = pa.RecordBatch.from_arrays([records.column(name) for name in old.schema.names], schema=old.schema)
    columns = pa.concat_batches([new, old]).take(pa.array(rows)).columns
    carried = [name for name in records.schema.names if name not in (*old.schema.names, KIND)]
    arrays = [*columns, pa.array(kinds), *(records.column(name).take(pa.array(record)) for name in carried)]
    return pa.RecordBatch.from_arrays(arrays, names=[*old.schema.names, KIND, *carried])


def _same(new: pa.RecordBatch, old: pa.RecordBatch, spec: StateSpec) -> Flags:
    """Return which rows of a key are equal to those before."""
    others = [name for name in spec.columns.named.names if name not in spec.primary_key]
    flags = (equal(new.column(name), old.column(name)) for name in others)
    return reduce(np.logical_and, flags, np.ones(new.num_rows, np.bool_))


def _is_delete(rows: pa.RecordBatch) -> Flags:
    flags: Flags = rows.column(KIND).to_numpy() == int(RowKind.DELETE)
    return flags


def _times(spec: StateSpec, rows: pa.RecordBatch) -> pa.Array | None:
    times = None if spec.ttl_us is None else rows.column(COMMIT_TIMESTAMP).cast(pa.timestamp("us", "UTC"))
    return None if times is None else times.view(pa.int64())


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches that are large enough to look up at once, and bounded."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= _CHUNK_ROWS or sum(each.nbytes for each in held) >= _CHUNK_BYTES:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _saved_before_last(state: KeyedState, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches; the state is saved before the last one, as the reader may not ask for anything after it."""
    held: Sequence[pa.RecordBatch] = ()
    for batch in batches:
        yield from held
        held = (batch,)
    state.save()
    yield from held

"""The state of normalize: the newest row of each live key of one log partition, in files named by offset.

The records between two offsets of a log partition never change, so the state at an offset depends on the log alone. A
task that repeats a range, or a speculative attempt of it, computes the same state again. That makes the operator
exactly-once without Spark's state store.

The state is in segments (``segments.py``), whose versions are offsets; a newer segment overrides the older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.schema.adapter import fit
from snapshot.schema.physical_names import Columns
from snapshot.schema.row_equality import equal
from snapshot.schema.system_columns import relabelled
from snapshot.storage import Storage
from tablestore.normalize.segments import HASH, Segment, SegmentedState, in_steps, version_offsets

DELETED, TIME = "_deleted", "_time"
_OWN: Final = b"own"
"""Metadata of a segment: how many of its first columns are the state's own; those after them may have any names."""
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 16 << 20

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StateSpec:
    """Where and how a query keeps its state. Picklable.

    Attributes:
        folder: the folder of the query's state.
        columns: the columns of the rows; all nullable but the key's.
        primary_key: names of the key columns.
        ttl_us: how long after its last record a key is forgotten, in microseconds of record time; None for never.
    """

    folder: Storage
    columns: Columns
    primary_key: tuple[str, ...]
    ttl_us: int | None = None

    @property
    def layout(self) -> pa.Schema:
        """The schema of segments: hash, whether the key was deleted, record time (with a time-to-live), columns."""
        own = [pa.field(HASH, pa.uint64()), pa.field(DELETED, pa.bool_())]
        own += [] if self.ttl_us is None else [pa.field(TIME, pa.int64())]
        columns = (field.with_nullable(True) for field in self.columns.physical)
        return pa.schema([*own, *columns], metadata={_OWN: str(len(own))})

    @property
    def stored_key(self) -> list[str]:
        """The names of the key columns in segments."""
        columns = self.columns
        return [columns.physical.field(columns.named.get_field_index(name)).name for name in self.primary_key]

    def versions(self, partition: str) -> list[int]:
        """Return the offsets of the versions of a partition's state, in order."""
        return version_offsets(self.folder.child(partition).names())


class KeyedState(SegmentedState):
    """The state of one partition at an offset, which ``put`` changes into the state at a later one."""

    def __init__(self, spec: StateSpec, partition: str, until: int) -> None:
        """Start with an empty state, to be saved as the version of offset ``until``."""
        super().__init__(spec.folder.child(partition), spec.layout, until)
        self._spec = spec
        self._watermark: int | None = None
        self._expired_before: int | None = None

    @classmethod
    def open(cls, spec: StateSpec, partition: str, at: int, until: int) -> tuple[KeyedState, int | None]:
        """Return the newest state at or before an offset, and its offset; None if there is none.

        Raises:
            CorruptedError: a file of the state cannot be read.
            DataLostError: a file of the state is gone.
            UnavailableError: the file system does not answer.
        """
        state = cls(spec, partition, until)
        found = max((offset for offset in spec.versions(partition) if offset <= at), default=None)
        if found is not None:
            state._load(f"{found}.json")
        return state, found

    def expire(self) -> None:
        """Forget the keys whose last record is older than the newest record so far by more than the time-to-live."""
        if self._spec.ttl_us is not None and self._watermark is not None:
            self._expired_before = self._watermark - self._spec.ttl_us

    def find(self, hashes: Hashes, keys: pa.RecordBatch) -> tuple[Rows, pa.RecordBatch]:
        """Look up the keys of rows, no two of one key, by their ``key_hashes``.

        Returns:
            Which rows of ``keys`` are live keys, and the state's rows of these keys, in the same order.
        """
        rows = np.argsort(hashes, kind="stable")
        wanted = hashes[rows]
        numbers: list[Rows] = [np.empty(0, np.int64)]
        found: list[pa.RecordBatch] = [_empty(self._spec.columns.named)]
        for segment in reversed(self._segments):
            known = np.zeros(len(rows), np.bool_)
            for batch, first, last in _overlapping(segment, wanted):
                asked, held = self._matches(wanted[first:last], keys, rows[first:last], batch)
                known[first + asked] = True
                lives = self._lives(batch, held)
                asked, held = asked[lives], held[lives]
                if len(held):
                    numbers.append(rows[first + asked])
                    found.append(self._named(batch.take(pa.array(held))))
            rows, wanted = rows[~known], wanted[~known]
            if not len(rows):
                break
        return np.concatenate(numbers), pa.concat_batches(found)

    def put(self, hashes: Hashes, rows: pa.RecordBatch, deleted: npt.NDArray[np.bool_], times: pa.Array | None) -> None:
        """Set the rows of keys, or delete keys: then only the key counts.

        ``times`` are the records' times, int64 in microseconds; only with a time-to-live.
        """
        if times is not None and len(times):
            newest = pc.max(times).as_py()
            self._watermark = newest if self._watermark is None else max(self._watermark, newest)
        if not self._segments:
            # There is nothing that a delete would have to override.
            kept = np.flatnonzero(~deleted)
            hashes, rows, deleted = hashes[kept], rows.take(pa.array(kept)), deleted[kept]
            times = None if times is None else times.take(pa.array(kept))
        if not rows.num_rows:
            return
        own = [pa.array(hashes), pa.array(deleted), *([] if self._spec.ttl_us is None else [times])]
        columns = relabelled(rows.select(self._spec.columns.named.names), _nullable(self._spec.columns.physical))
        batch = pa.RecordBatch.from_arrays([*own, *columns.columns], schema=self._layout)
        batch = batch.take(pa.array(np.argsort(hashes, kind="stable")))
        self._push(batch)

    def _notes(self) -> dict[str, Any]:
        return {"watermark": self._watermark}

    def _take_notes(self, version: dict[str, Any]) -> None:
        self._watermark = version["watermark"]

    def _matches(self, wanted: Hashes, keys: pa.RecordBatch, rows: Rows, batch: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Return the pairs of a wanted key, by its place in ``wanted``, and the row of a batch that has this key."""
        asked, held = _pairs(wanted, _hashes_of(batch))
        at, there, columns = pa.array(rows[asked]), pa.array(held), _columns_of(batch)
        same = np.ones(len(asked), np.bool_)
        for name, stored in zip(self._spec.primary_key, self._spec.stored_key, strict=True):
            same &= equal(keys.column(name).take(at), columns.column(stored).take(there))
        return asked[same], held[same]

    def _lives(self, batch: pa.RecordBatch, held: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows of a batch are neither deletes nor older than the time-to-live."""
        at = pa.array(held)
        lives: npt.NDArray[np.bool_] = pc.invert(batch.column(1).take(at)).to_numpy(zero_copy_only=False)
        times = _times_of(batch)
        if self._expired_before is not None and times is not None:
            is_young = pc.greater_equal(times.take(at), self._expired_before)
            lives &= pc.fill_null(is_young, fill_value=True).to_numpy(zero_copy_only=False)
        return lives

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a segment with the columns that the state has now, by name."""
        return fit(_columns_of(batch), self._spec.columns)

    def _merged(self, older: Segment, newer: Segment, *, is_oldest: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of two segments; of a key in both, the newer one.

        If no segment is older, deleted and expired keys are left out.
        """
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * older.rows // older.size))
        for old_rows, new_rows in in_steps(older, newer, step):
            old, new = self._laid_out(old_rows), self._laid_out(new_rows)
            keys = _columns_of(new).select(self._spec.stored_key).rename_columns(list(self._spec.primary_key))
            _, replaced = self._matches(_hashes_of(new), keys, np.arange(new.num_rows), old)
            kept = np.ones(old.num_rows, np.bool_)
            kept[replaced] = False
            both = pa.concat_batches([old.filter(pa.array(kept)), new])
            rows = np.argsort(_hashes_of(both), kind="stable")
            if is_oldest:
                rows = rows[self._lives(both, rows)]
            if len(rows):
                yield both.take(pa.array(rows))

    def _laid_out(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Return rows of a segment with the columns that the state has now, as one batch."""
        found = [batch if batch.schema.equals(self._layout) else self._converted(batch) for batch in batches]
        return pa.concat_batches(found) if found else _empty(self._layout)

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = relabelled(self._named(batch), _nullable(self._spec.columns.physical))
        own = [batch.column(0), batch.column(1)]
        if self._spec.ttl_us is not None:
            times = _times_of(batch)
            own.append(pa.nulls(batch.num_rows, pa.int64()) if times is None else times)
        return pa.RecordBatch.from_arrays([*own, *columns.columns], schema=self._layout)


def _pairs(wanted: Hashes, held: Hashes) -> tuple[Rows, Rows]:
    """Return the pairs of places in two sorted arrays with the same hash."""
    places = np.searchsorted(held, wanted)
    asked = np.arange(len(wanted))
    found: list[tuple[Rows, Rows]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    while len(asked):
        inside = places < len(held)
        asked, places = asked[inside], places[inside]
        same = held[places] == wanted[asked]
        asked, places = asked[same], places[same]
        found.append((asked, places))
        places = places + 1
    return np.concatenate([pair[0] for pair in found]), np.concatenate([pair[1] for pair in found])


def _overlapping(segment: Segment, wanted: Hashes) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """Yield the batches of a segment, each with the range of wanted hashes, which are sorted, that it may hold."""
    for batch in segment.batches:
        hashes = _hashes_of(batch)
        first = int(np.searchsorted(wanted, hashes[0]))
        last = int(np.searchsorted(wanted, hashes[-1], "right"))
        if first < last:
            yield batch, first, last


def _hashes_of(batch: pa.RecordBatch) -> Hashes:
    hashes: Hashes = batch.column(0).to_numpy()
    return hashes


def _times_of(batch: pa.RecordBatch) -> pa.Array | None:
    return batch.column(2) if _own_in(batch.schema) > 2 else None


def _columns_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a segment without the state's own columns, by physical name."""
    return batch.select(list(range(_own_in(batch.schema), batch.num_columns)))


def _own_in(schema: pa.Schema) -> int:
    """Return how many of a segment's first columns are the state's own."""
    noted = (schema.metadata or {}).get(_OWN)
    # Segments of versions without this note have no column of the same name.
    return int(noted) if noted else 2 + (TIME in schema.names)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])

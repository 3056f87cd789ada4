"""The state of normalize: the newest row of each live key of one log partition, in files named by offset.

The records between two offsets of a log partition never change, so the state at an offset depends on the log alone. A
task that repeats a range, or a speculative attempt of it, computes the same state again. That makes the operator
exactly-once without Spark's state store.

The state is a log-structured merge tree: segments, each an Arrow file of rows sorted by the hash of their keys. A newer
segment overrides the older ones; when it has grown to half the size of the one before, the two are merged. The files::

    <folder>/<partition>/<offset>.json          a version: the segments that make up the state at an offset
    <folder>/<partition>/<offset>-<id>.arrow    a segment, written by an attempt to make the version of that offset

A version is put if absent, after its segments. Of several attempts one wins, and the others remove what they wrote.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.disk import advice
from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.schema.adapter import fit
from snapshot.schema.physical_names import Columns
from snapshot.schema.row_equality import equal
from snapshot.schema.system_columns import relabelled
from snapshot.storage import Storage, storage_errors

HASH, DELETED, TIME = "_hash", "_deleted", "_time"
_RATIO: Final = 2
"""A segment is merged into the one before it once that has fewer than this many times its rows."""
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 16 << 20
_MEMORY_BYTES: Final = 32 << 20
"""Segments up to this size are written only when the version is saved, since most are merged again before."""
_IDLE_SECONDS: Final = 60.0
"""How long a Python worker keeps a segment open that it does not use: other workers may have replaced it."""
ENDING: Final = ".arrow"

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
        return pa.schema([*own, *(field.with_nullable(True) for field in self.columns.physical)])

    @property
    def stored_key(self) -> list[str]:
        """The names of the key columns in segments."""
        columns = self.columns
        return [columns.physical.field(columns.named.get_field_index(name)).name for name in self.primary_key]

    def versions(self, partition: str) -> list[int]:
        """Return the offsets of the versions of a partition's state, in order."""
        return version_offsets(self.folder.child(partition).names())


@dataclass(frozen=True)
class Segment:
    """Rows sorted by hash, one per key.

    Attributes:
        batches: the rows, as ``StateSpec.layout`` describes them or did when they were written.
        file: name of the file that holds them; empty if there is none yet.
        size: size of the file in bytes; in memory, of the rows.
    """

    batches: tuple[pa.RecordBatch, ...]
    file: str
    size: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    def slice(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from one number to another."""
        for batch in self.batches:
            if start < batch.num_rows and end > 0:
                first = max(start, 0)
                yield batch.slice(first, min(end, batch.num_rows) - first)
            start, end = start - batch.num_rows, end - batch.num_rows


class KeyedState:
    """The state of one partition at an offset, which ``put`` changes into the state at a later one."""

    def __init__(self, spec: StateSpec, partition: str, until: int) -> None:
        """Start with an empty state, to be saved as the version of offset ``until``."""
        self._spec, self._until = spec, until
        self._storage = spec.folder.child(partition)
        self._layout = spec.layout
        self._segments: list[Segment] = []
        self._written: set[str] = set()
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
        """Look up keys.

        Args:
            hashes: the keys' ``key_hashes``.
            keys: rows with at least the key columns, by name; no two of one key.

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
        """Set the rows of keys, or delete keys.

        Args:
            hashes: the rows' ``key_hashes``.
            rows: the columns, by name; of a deleted key, only the key counts.
            deleted: which keys are deleted.
            times: the records' times, int64 in microseconds; only with a time-to-live.
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
        self._segments.append(self._segment(iter([batch]), batch.nbytes))
        while len(self._segments) > 1 and self._segments[-2].rows < _RATIO * self._segments[-1].rows:
            newer, older = self._segments.pop(), self._segments.pop()
            merged = self._merged(older, newer, is_oldest=not self._segments)
            segment = self._segment(merged, older.size + newer.size)
            if segment.rows:
                self._segments.append(segment)

    def save(self) -> None:
        """Write the version, unless there is one of this offset already; then remove what this attempt has written.

        Raises:
            UnavailableError: the file system does not answer or refuses.
        """
        for number, segment in enumerate(self._segments):
            if not segment.file:
                self._segments[number] = self._write(iter(segment.batches))
        kept = [{"file": each.file, "rows": each.rows, "bytes": each.size} for each in self._segments]
        name = f"{self._until}.json"
        version: dict[str, Any] = {"segments": kept, "watermark": self._watermark}
        unsaved, self._written = self._written, set()
        if not self._storage.put_new(name, json.dumps(version).encode()):
            # Of this attempt if the answer to its own request was lost.
            version = self._version(name)
        needed = {each["file"] for each in version["segments"]}
        self._delete(unsaved - needed)
        _close_unused(self._storage, needed)

    def discard(self) -> None:
        """Remove the files that no version can list, because ``save`` was not called."""
        self._delete(self._written)
        self._written = set()

    def _load(self, name: str) -> None:
        version = self._version(name)
        self._watermark = version["watermark"]
        self._segments = [_opened(self._storage, each["file"], each["bytes"]) for each in version["segments"]]

    def _version(self, name: str) -> dict[str, Any]:
        text = self._storage.read(name)
        try:
            found: dict[str, Any] = json.loads(text or b"")
            _ = found["watermark"], [(each["file"], each["bytes"]) for each in found["segments"]]
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self._storage.path(name)}: not a version of a state: {error}. {REMEDY}"
            raise CorruptedError(msg) from error
        return found

    def _matches(self, wanted: Hashes, keys: pa.RecordBatch, rows: Rows, batch: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Return the pairs of a wanted key, by its place in ``wanted``, and the row of a batch that has this key."""
        asked, held = _pairs(wanted, _hashes_of(batch))
        at, there = pa.array(rows[asked]), pa.array(held)
        same = np.ones(len(asked), np.bool_)
        for name, stored in zip(self._spec.primary_key, self._spec.stored_key, strict=True):
            same &= equal(keys.column(name).take(at), batch.column(stored).take(there))
        return asked[same], held[same]

    def _lives(self, batch: pa.RecordBatch, held: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows of a batch are neither deletes nor older than the time-to-live."""
        at = pa.array(held)
        lives: npt.NDArray[np.bool_] = pc.invert(batch.column(DELETED).take(at)).to_numpy(zero_copy_only=False)
        if self._expired_before is not None and TIME in batch.schema.names:
            is_young = pc.greater_equal(batch.column(TIME).take(at), self._expired_before)
            lives &= pc.fill_null(is_young, fill_value=True).to_numpy(zero_copy_only=False)
        return lives

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a segment with the columns that the state has now, by name."""
        own = [name for name in (HASH, DELETED, TIME) if name in batch.schema.names]
        return fit(batch.drop_columns(own), self._spec.columns)

    def _merged(self, older: Segment, newer: Segment, *, is_oldest: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of two segments; of a key in both, the newer one.

        Args:
            older: a segment.
            newer: the segment after it.
            is_oldest: whether no segment is older, so that deleted and expired keys can be left out.
        """
        old_hashes, new_hashes = (np.concatenate([_hashes_of(b) for b in each.batches]) for each in (older, newer))
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * older.rows // older.size))
        old_end = new_end = 0
        while old_end < older.rows or new_end < newer.rows:
            first, second = old_end, new_end
            if first + step < older.rows:
                # All rows of one hash are in one step, because they may have the same key.
                cut = old_hashes[first + step]
                old_end, new_end = (int(np.searchsorted(h, cut, "right")) for h in (old_hashes, new_hashes))
            else:
                old_end, new_end = older.rows, newer.rows
            old = self._laid_out(older.slice(first, old_end))
            new = self._laid_out(newer.slice(second, new_end))
            keys = new.select(self._spec.stored_key).rename_columns(list(self._spec.primary_key))
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
        own = [batch.column(HASH), batch.column(DELETED)]
        if self._spec.ttl_us is not None:
            has_times = TIME in batch.schema.names
            own.append(batch.column(TIME) if has_times else pa.nulls(batch.num_rows, pa.int64()))
        return pa.RecordBatch.from_arrays([*own, *columns.columns], schema=self._layout)

    def _segment(self, batches: Iterator[pa.RecordBatch], size: int) -> Segment:
        """Return a segment of rows: in memory if it is small, else in a file."""
        if size > _MEMORY_BYTES:
            return self._write(batches)
        held = tuple(batches)
        return Segment(held, "", sum(batch.nbytes for batch in held))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Segment:
        name = f"{self._until}-{uuid.uuid4().hex}{ENDING}"
        self._written.add(name)
        return _write(self._storage, name, self._layout, batches)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            _OPEN.pop(self._storage.path(name), None)
        self._storage.delete(*names)


REMEDY: Final = "Start a new query, with a new checkpoint."
_OPEN: dict[str, tuple[Segment, float]] = {}
"""The segments that this process has open, by path, and when each was last used."""


def version_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the versions among the names of a partition's files, in order."""
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())


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
    hashes: Hashes = batch.column(HASH).to_numpy()
    return hashes


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _write(storage: Storage, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Segment:
    """Write a segment, and keep it open; a remote one through a local file, which it is then read from."""
    target = storage.path(name)
    with _local(storage, target) as path:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            if not storage.is_local:
                with storage_errors(target, "written"):
                    storage.filesystem.put_file(path, target)
        except OSError as error:
            msg = f"{target}: cannot be written: {error}. {advice(error)}"
            raise UnavailableError(msg) from error
        return _mapped(target, name, path)


def _opened(storage: Storage, name: str, size: int) -> Segment:
    """Open a segment, unless it is open in this process.

    Raises:
        CorruptedError: the file is not what was written.
        DataLostError: the file is gone.
    """
    target = storage.path(name)
    held = _OPEN.get(target)
    if held is not None:
        _OPEN[target] = (held[0], time.monotonic())
        return held[0]
    try:
        with storage_errors(target, "read"), _local(storage, target) as path:
            if not storage.is_local:
                storage.filesystem.get_file(target, path)
            found = Path(path).stat().st_size
            if found != size:
                msg = f"{target}: expected {size} bytes, got {found}: a file of a query's state is damaged. {REMEDY}"
                raise CorruptedError(msg)
            return _mapped(target, name, path)
    except FileNotFoundError as error:
        msg = f"{target}: a file of a query's state is gone. {REMEDY}"
        raise DataLostError(msg) from error
    except pa.ArrowInvalid as error:
        msg = f"{target}: a file of a query's state is damaged: {error}. {REMEDY}"
        raise CorruptedError(msg) from error


def _mapped(target: str, name: str, path: str) -> Segment:
    """Map a local file into memory, and keep the segment open; the mapping outlives the file's name."""
    source = pa.memory_map(path)
    reader = pa.ipc.open_file(source)
    batches = tuple(reader.get_batch(number) for number in range(reader.num_record_batches))
    segment = Segment(batches, name, source.size())
    _OPEN[target] = (segment, time.monotonic())
    return segment


@contextmanager
def _local(storage: Storage, target: str) -> Iterator[str]:
    """Yield a local path for a file: its own, or for a remote file a temporary one, which is removed at the end."""
    if storage.is_local:
        yield target
        return
    descriptor, path = tempfile.mkstemp(prefix="tablestore-state-")
    os.close(descriptor)
    try:
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def _close_unused(storage: Storage, needed: Iterable[str]) -> None:
    """Close the segments that a partition no longer needs, and those that have not been used for a while."""
    kept, now = {storage.path(name) for name in needed}, time.monotonic()
    own = storage.path("")
    for path, (_, used) in list(_OPEN.items()):
        if path not in kept and (path.startswith(own) or now - used > _IDLE_SECONDS):
            _OPEN.pop(path, None)

"""State in segments: Arrow files of rows sorted by hash, which make up a log-structured merge tree with versions.

When a segment has grown to half the size of the one before, the two are merged. The files of one partition::

    <folder>/<version>.json          the segments that make up the state at a version, such as a log offset
    <folder>/<version>-<id>.arrow    a segment, written by an attempt to make that version

A version is put if absent, after its segments. Of several attempts one wins, and the others remove what they wrote.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snapshot.disk import advice
from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.storage import Storage, storage_errors

Batches = tuple[pa.RecordBatch, ...]
HASH: Final = "_hash"
ENDING: Final = ".arrow"
REMEDY: Final = "Start a new query, with a new checkpoint."
_RATIO: Final = 2
"""A segment is merged into the one before it once that has fewer than this many times its rows."""
_MEMORY_BYTES: Final = 32 << 20
"""Segments up to this size are written only when the version is saved, since most are merged again before."""
_IDLE_SECONDS: Final = 60.0
"""How long a Python worker keeps a segment open that it does not use: other workers may have replaced it."""


@dataclass(frozen=True)
class Segment:
    """Rows sorted by hash.

    Attributes:
        batches: the rows, in the state's layout or the one it had when they were written.
        file: name of the file that holds them; empty if there is none yet.
        size: size of the file in bytes; in memory, of the rows.
    """

    batches: Batches
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


class SegmentedState:
    """The segments of one partition's state. A subclass says what their rows mean and how two segments merge."""

    def __init__(self, storage: Storage, layout: pa.Schema, until: int) -> None:
        """Start with an empty state in the partition's folder, to be saved as the version ``until``."""
        self._storage, self._layout, self._until = storage, layout, until
        self._segments: list[Segment] = []
        self._written: set[str] = set()

    def save(self) -> None:
        """Write the version, unless it exists already; then remove what this attempt has written.

        Raises:
            UnavailableError: the file system does not answer or refuses.
        """
        for number, segment in enumerate(self._segments):
            if not segment.file:
                self._segments[number] = self._write(iter(segment.batches))
        kept = [{"file": each.file, "rows": each.rows, "bytes": each.size} for each in self._segments]
        name = f"{self._until}.json"
        version: dict[str, Any] = {"segments": kept, **self._notes()}
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

    @abstractmethod
    def _notes(self) -> dict[str, Any]:
        """Return what a version holds besides its segments, as JSON."""

    @abstractmethod
    def _take_notes(self, version: dict[str, Any]) -> None:
        """Take from a version what ``_notes`` put there; raise KeyError if it is missing."""

    @abstractmethod
    def _merged(self, older: Segment, newer: Segment, *, is_oldest: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of two segments as one; ``is_oldest`` if no segment is older than both."""

    def _load(self, name: str) -> None:
        version = self._version(name)
        self._take_notes(version)
        self._segments = [_opened(self._storage, each["file"], each["bytes"]) for each in version["segments"]]

    def _version(self, name: str) -> dict[str, Any]:
        text = self._storage.read(name)
        try:
            found: dict[str, Any] = json.loads(text or b"")
            _ = [(each["file"], each["bytes"]) for each in found["segments"]]
            self._take_notes(found)
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self._storage.path(name)}: not a version of a state: {error}. {REMEDY}"
            raise CorruptedError(msg) from error
        return found

    def _push(self, batch: pa.RecordBatch) -> None:
        """Add rows that are sorted by hash, and merge segments that have become too small beside them."""
        self._segments.append(self._segment(iter([batch]), batch.nbytes))
        while len(self._segments) > 1 and self._segments[-2].rows < _RATIO * self._segments[-1].rows:
            newer, older = self._segments.pop(), self._segments.pop()
            merged = self._merged(older, newer, is_oldest=not self._segments)
            segment = self._segment(merged, older.size + newer.size)
            if segment.rows:
                self._segments.append(segment)

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


_OPEN: dict[str, tuple[Segment, float]] = {}
"""The segments that this process has open, by path, and when each was last used."""


def in_steps(older: Segment, newer: Segment, rows: int) -> Iterator[tuple[Batches, Batches]]:
    """Yield two segments in steps of about so many rows of the older one.

    All rows of one hash are in one step, because they may have the same key.
    """
    hashes = [np.concatenate([batch.column(0).to_numpy() for batch in each.batches]) for each in (older, newer)]
    ends, all_rows = [0, 0], [older.rows, newer.rows]
    while ends != all_rows:
        starts, ends = ends, all_rows
        if starts[0] + rows < older.rows:
            ends = [int(np.searchsorted(each, hashes[0][starts[0] + rows], "right")) for each in hashes]
        yield tuple(older.slice(starts[0], ends[0])), tuple(newer.slice(starts[1], ends[1]))


def version_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the versions among the names of a partition's files, in order."""
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())


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

"""Bitmaps of the keys that a snapshot changed and of the change rows that are still current.

A scan of base and change files together yields the snapshot's rows if it skips base rows with a changed key, deletes
and rows before an update, which their kind tells, and changes that a later change of the same key replaces.
Only the keys, kinds and order of the changes are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.delta.log import DataFile
from snapshot.errors import GONE, CorruptedError, DataLostError, UnavailableError
from snapshot.merge.key_bitmap import KeyBitmap, numbers_of
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ, SNAPSHOT
from snapshot.storage import Storage, storage_errors
from snapshot.threads import Threads


@dataclass(frozen=True)
class ChangeBitmap:
    """Bitmaps of some changes.

    Attributes:
        keys: the keys of all changes except UPDATE_BEFORE rows.
        rows: the positions of the current changes, counted through all files in order; None if no change is replaced by
            a later one, so that all are current but deletes and UPDATE_BEFORE rows.
    """

    keys: KeyBitmap
    rows: KeyBitmap | None


@dataclass
class FileChanges:
    """The keys of a change file.

    Attributes:
        path: the file's path.
        snapshot: the snapshot that it belongs to.
        keys: the key of each row.
        kinds: the kind of each row; None if all rows are inserts, or all are updates.
        current: for each row, whether it is a row of the snapshot that is read.
    """

    path: str
    snapshot: int
    keys: pa.Array
    kinds: np.ndarray | None
    current: np.ndarray

    @property
    def count(self) -> int:
        """The number of rows but UPDATE_BEFORE ones."""
        return len(self.keys) if self.kinds is None else int(np.count_nonzero(self.kinds != RowKind.UPDATE_BEFORE))

    def named(self) -> np.ndarray:
        """Return the keys of all rows but UPDATE_BEFORE ones, as numbers."""
        numbers = numbers_of(self.keys)
        return numbers if self.kinds is None else numbers[self.kinds != RowKind.UPDATE_BEFORE]


def change_bitmap(storage: Storage, files: Sequence[DataFile], key: str, *, threads: int) -> ChangeBitmap | None:
    """Return the bitmaps of a snapshot's changes; None if the range of their keys is too large for a bitmap.

    Args:
        storage: folder of the commit table.
        files: all change files not yet merged into the base; at least one.
        key: the physical name of the table's only key column, of a type that ``KeyBitmap`` can hold.
        threads: number of files to read concurrently.

    Raises:
        DataLostError: a file is missing.
        CorruptedError: a file's content is not what was written.
        UnavailableError: a file cannot be read.
    """
    changes = [(storage.path(file.path), int(file.partition.get(SNAPSHOT) or 0)) for file in files]
    found = current_changes(storage, changes, key, threads=threads)
    if found is None:
        return None
    changed, read = found
    if len(changed) == sum(each.count for each in read):
        return ChangeBitmap(changed, None)
    rows = KeyBitmap(0, sum(len(each.keys) for each in read))
    rows.add(np.flatnonzero(np.concatenate([each.current for each in read])))
    return ChangeBitmap(changed, rows)


def current_changes(
    storage: Storage, files: Sequence[tuple[str, int]], key: str, *, threads: int
) -> tuple[KeyBitmap, list[FileChanges]] | None:
    """Return the keys of all changes as a bitmap, and for each file its keys and which of its rows are current.

    Snapshots are gone through from the newest to the oldest: a row is current if no newer one has its key.

    Args:
        storage: where the files are.
        files: the path and the snapshot of each file.
        key: as for ``change_bitmap``, and so are the number of threads and the errors.
        threads: number of files to read concurrently.

    Returns:
        None if the range of keys is too large for a bitmap.
    """
    threads = min(threads, len(files))
    with Threads(threads, "read-keys") if threads > 1 else nullcontext() as pool:
        # Many small buckets are read one after another: a thread would take as long to start as to read a file.
        read = list((pool.map if pool else map)(lambda file: _read(storage, file[0], file[1], key), files))
    named = [each.named() for each in read]
    ends = [end for keys in named if len(keys) for end in (int(keys.min()), int(keys.max()))]
    changed = KeyBitmap.between(min(ends, default=0), max(ends, default=0))
    if changed is None:
        return None
    known = 0
    order = sorted(range(len(read)), key=lambda number: -read[number].snapshot)
    for _, numbers in groupby(order, key=lambda number: read[number].snapshot):
        together = list(numbers)
        for number in together if known else ():
            read[number].current &= ~changed.holds(numbers_of(read[number].keys))
        for number in together:
            changed.add(named[number])
        before, known = known, len(changed)
        if known - before != sum(np.count_nonzero(read[number].current) for number in together):
            _keep_last(storage, [read[number] for number in together])
    for each in read:
        if each.kinds is not None:
            each.current &= each.kinds != RowKind.DELETE
    return changed, read


def _keep_last(storage: Storage, files: Sequence[FileChanges]) -> None:
    """Keep the last current row of each key, given all files of a snapshot that has several rows of one key."""
    keys = np.concatenate([numbers_of(each.keys) for each in files])
    seqs = np.concatenate([_seqs(storage, each.path) for each in files])
    current = np.concatenate([each.current for each in files])
    some = np.flatnonzero(current)
    order = some[np.lexsort((seqs[some], keys[some]))]
    current[order[:-1][np.diff(keys[order]) == 0]] = False
    ends = np.cumsum([len(each.keys) for each in files])
    for each, part in zip(files, np.split(current, ends[:-1]), strict=True):
        each.current = part


def _read(storage: Storage, path: str, snapshot: int, key: str) -> FileChanges:
    """Read the keys of a change file and, where they differ, the kinds of its rows."""
    with opened(path, storage) as file:
        same = _is_one_kind(file.metadata)
        columns = file.read(columns=[key] if same else [key, KIND], use_threads=False)
        keys = columns.column(key).combine_chunks()
        kinds = None if same else columns.column(KIND).to_numpy()
    current = np.ones(len(keys), bool) if kinds is None else kinds != RowKind.UPDATE_BEFORE
    return FileChanges(path, snapshot, keys, kinds, current)


def _seqs(storage: Storage, path: str) -> np.ndarray:
    with opened(path, storage) as file:
        return np.asarray(file.read(columns=[SEQ], use_threads=False).column(SEQ).to_numpy())


@contextmanager
def opened(path: str, storage: Storage | None = None) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of a storage, by default a local one, and convert the errors of reading it.

    Raises:
        DataLostError: the file does not exist.
        CorruptedError: the file is damaged.
        UnavailableError: the file cannot be read.
    """
    is_local = storage is None or storage.is_local
    with _parquet_errors(path, is_local=is_local), ExitStack() as stack:
        source: Any = path
        if storage is not None and not is_local:
            stack.enter_context(storage_errors(path, "read"))
            source = stack.enter_context(storage.filesystem.open(path, "rb"))
        yield stack.enter_context(pq.ParquetFile(source, page_checksum_verification=True))


def _is_one_kind(metadata: pq.FileMetaData) -> bool:
    """Return whether all rows of a file are inserts, or all of them updates, by its statistics."""
    place = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}[KIND]
    found: set[int | None] = set()
    for number in range(metadata.num_row_groups):
        bounds = metadata.row_group(number).column(place).statistics
        found |= {bounds.min, bounds.max} if bounds is not None and bounds.has_min_max else {None}
    return found in ({RowKind.INSERT}, {RowKind.UPDATE_AFTER})


@contextmanager
def _parquet_errors(path: str, *, is_local: bool) -> Iterator[None]:
    """Convert Arrow's errors into the store's. Arrow raises an ``OSError`` without a number for damaged content."""
    try:
        yield
    except FileNotFoundError as error:
        msg = f"{path}: the file does not exist. {GONE}"
        raise DataLostError(msg) from error
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        if not isinstance(error, OSError) or (is_local and error.errno is None):
            msg = f"{path}: the file does not contain rows of this table: {error}. Restore it from a backup."
            raise CorruptedError(msg) from error
        msg = f"{path}: the file cannot be read: {error}. Check the file system, then try again."
        raise UnavailableError(msg) from error

"""Bitmaps of the keys that a snapshot changed and of the change rows that are still current.

A scan of base and change files together yields the snapshot's rows if it skips base rows with a changed key, deletes
and rows before an update, which their kind tells, and changes that a later change of the same key replaces.
Only the keys, kinds and order of the changes are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.delta.log import DataFile
from snapshot.errors import GONE, CorruptedError, DataLostError, UnavailableError
from snapshot.merge.key_bitmap import KeyBitmap, numbers_of
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ, SNAPSHOT
from snapshot.storage import Storage, storage_errors


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
    return bitmap_of(storage, changes, key, threads=threads)


def bitmap_of(storage: Storage, files: Sequence[tuple[str, int]], key: str, *, threads: int) -> ChangeBitmap | None:
    """Return what ``change_bitmap`` does, given the path and the snapshot of each file."""
    threads = min(threads, len(files))
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        # Many small buckets are read one after another: a thread would take as long to start as to read a file.
        read = list((pool.map if pool else map)(lambda file: _read(storage, file[0], key), files))
    keys, kinds, seqs = (np.concatenate([each[number] for each in read]) for number in range(3))
    is_change = kinds != RowKind.UPDATE_BEFORE
    named = keys[is_change]
    ends = pa.array([named.min(), named.max()] if len(named) else [None, None], pa.int64())
    changed = KeyBitmap.of(ends, [pa.array(named)])
    if changed is None:
        return None
    if len(changed) == len(named):
        return ChangeBitmap(changed, None)
    stands = is_change & (kinds != RowKind.DELETE)
    snapshots = np.repeat([snapshot for _, snapshot in files], [len(each[0]) for each in read])
    # Only the changes of keys that changed more than once are put in order.
    repeated = _repeated(changed, [each[0][each[1] != RowKind.UPDATE_BEFORE] for each in read])
    some = np.flatnonzero(is_change)
    some = some[~np.asarray(repeated.lacks(pa.array(named)))]
    order = some[np.lexsort((seqs[some], snapshots[some], keys[some]))]
    stands[order[:-1][np.diff(keys[order]) == 0]] = False
    rows = KeyBitmap(0, len(stands))
    rows.add(np.flatnonzero(stands))
    return ChangeBitmap(changed, rows)


def _repeated(changed: KeyBitmap, files: Sequence[np.ndarray]) -> KeyBitmap:
    """Return the keys that occur more than once, given all keys and those of each file; all keys if a file repeats one.

    Files rarely repeat a key, and bitmaps find what several of them have in a fifth of the time of a sort.
    """
    seen, repeated = (KeyBitmap(changed.low, changed.high) for _ in range(2))
    count = len(changed)
    for keys in files:
        again = keys[~np.asarray(seen.lacks(pa.array(keys)))]
        repeated.add(again)
        seen.add(keys)
        count += len(again)
    return repeated if count == sum(map(len, files)) else changed


def _read(storage: Storage, path: str, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the keys of a change file as numbers, and its ``_kind`` and ``_seq`` columns."""
    with parquet_errors(path, is_local=storage.is_local):
        with storage_errors(path, "read"), storage.filesystem.open(path, "rb") as source:
            table = pq.ParquetFile(source).read(columns=[key, KIND, SEQ])
        keys, kinds, seqs = (table.column(name).combine_chunks() for name in (key, KIND, SEQ))
    return numbers_of(keys), kinds.to_numpy(), seqs.to_numpy()


@contextmanager
def parquet_errors(path: str, *, is_local: bool = True) -> Iterator[None]:
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

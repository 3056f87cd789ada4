"""Bitmaps of the keys that a snapshot changed and of the change rows that are still current.

A scan of base and change files together yields the snapshot's rows if it skips base rows with a changed key, deletes
and rows before an update, which their kind tells, and changes that a later change of the same key replaces.
Only the keys, kinds and order of the changes are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
    with ThreadPoolExecutor(max(1, min(threads, len(files)))) as pool:
        read = list(pool.map(lambda file: _read(storage, file, key), files))
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
    snapshots = np.repeat([int(file.partition[SNAPSHOT] or 0) for file in files], [len(each[0]) for each in read])
    order = np.lexsort((seqs, snapshots, is_change, keys))
    stands[order[:-1][np.diff(keys[order]) == 0]] = False
    rows = KeyBitmap(0, len(stands))
    rows.add(np.flatnonzero(stands))
    return ChangeBitmap(changed, rows)


def _read(storage: Storage, file: DataFile, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the keys of a change file as numbers, and its ``_kind`` and ``_seq`` columns."""
    path = storage.path(file.path)
    try:
        with storage_errors(path, "read"), storage.filesystem.open(path, "rb") as source:
            table = pq.ParquetFile(source).read(columns=[key, KIND, SEQ])
        keys, kinds, seqs = (table.column(name).combine_chunks() for name in (key, KIND, SEQ))
    except FileNotFoundError as error:
        msg = f"{path}: the file does not exist. {GONE}"
        raise DataLostError(msg) from error
    except (pa.ArrowInvalid, KeyError) as error:
        msg = f"{path}: the file does not contain changes of this table: {error}. Restore it from a backup."
        raise CorruptedError(msg) from error
    except OSError as error:
        msg = f"{path}: the file cannot be read: {error}. Check the file system, then try again."
        raise UnavailableError(msg) from error
    return numbers_of(keys), kinds.to_numpy(), seqs.to_numpy()

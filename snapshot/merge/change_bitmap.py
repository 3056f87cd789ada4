"""What of a snapshot's changes counts, as bits, for who scans the files as they are: which keys, and which rows.

A scan of a bucket's base and changes together gives the snapshot's rows when it leaves out the base's rows whose key is
among the changes, and of the changes those that do not stand: deletes, rows from before an update, and what a later
change of the same key replaces. Only keys, kinds and the order of the changes are read for it.
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
    """What of some changes counts.

    Attributes:
        keys: the keys of all changes.
        rows: the places of the changes that stand, counted through all files in their order; None where all do.
    """

    keys: KeyBitmap
    rows: KeyBitmap | None


def change_bitmap(storage: Storage, files: Sequence[DataFile], key: str, *, threads: int) -> ChangeBitmap | None:
    """Find what of a snapshot's changes counts; None where their keys lie too far apart for bits.

    Args:
        storage: folder of the commit table.
        files: all changes that the base does not contain yet; at least one.
        key: the table's one key column, as files call it, of a type that ``KeyBitmap`` can hold.
        threads: how many files are read at a time.

    Raises:
        DataLostError: a file is gone.
        CorruptedError: a file does not hold what it should.
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
    stands = is_change & (kinds != RowKind.DELETE)
    if len(changed) < len(named):
        snapshots = np.repeat([int(file.partition[SNAPSHOT] or 0) for file in files], [len(each[0]) for each in read])
        order = np.lexsort((seqs, snapshots, is_change, keys))
        stands[order[:-1][np.diff(keys[order]) == 0]] = False
    if stands.all():
        return ChangeBitmap(changed, None)
    rows = KeyBitmap(0, len(stands))
    rows.add(np.flatnonzero(stands))
    return ChangeBitmap(changed, rows)


def _read(storage: Storage, file: DataFile, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the keys of a change file as numbers, their kinds and their order."""
    path = storage.path(file.path)
    try:
        with storage_errors(path, "read"), storage.filesystem.open(path, "rb") as source:
            table = pq.ParquetFile(source).read(columns=[key, KIND, SEQ])
        keys, kinds, seqs = (table.column(name).combine_chunks() for name in (key, KIND, SEQ))
    except FileNotFoundError as error:
        msg = f"{path}: there is no such file. {GONE}"
        raise DataLostError(msg) from error
    except (pa.ArrowInvalid, KeyError) as error:
        msg = f"{path}: a file does not hold changes of this table: {error}. Bring it back from a copy."
        raise CorruptedError(msg) from error
    except OSError as error:
        msg = f"{path}: a file cannot be read: {error}. Check the file system, then try again."
        raise UnavailableError(msg) from error
    return numbers_of(keys), kinds.to_numpy(), seqs.to_numpy()

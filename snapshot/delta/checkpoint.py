"""Writes checkpoints, from which readers take the state of a table instead of from all entries before."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq

from snapshot.delta.entries import NEWEST_CHECKPOINT, entry_of
from snapshot.delta.state import DeltaBase
from snapshot.storage import Storage


def write_checkpoint(storage: Storage, base: DeltaBase) -> None:
    """Write the checkpoint of a table's newest version, unless the table is no longer there.

    delta-rs writes by path. So a local log is locked, which keeps others from dropping the table meanwhile. In an
    object store, a checkpoint that got into the log of the next table is removed.

    Raises:
        DeltaError: delta-rs failed.
        OSError: a file cannot be read or written.
        TableStoreError: the table was dropped, or the file system does not answer.
    """
    with storage.locked():
        if base.text is None or storage.read(entry_of(base.version)) != base.text:
            return
        base.table.create_checkpoint()
        if storage.read(entry_of(base.version)) != base.text:
            _withdraw(storage, base.version, base.id)


def _withdraw(storage: Storage, version: int, table_id: str) -> None:
    """Remove a checkpoint of a table that is no longer there; readers would take it for one of the next table."""
    name = f"_delta_log/{version:020d}.checkpoint.parquet"
    data, newest = storage.read(name), storage.read(NEWEST_CHECKPOINT)
    if data is not None:
        described = pq.ParquetFile(io.BytesIO(data)).read(columns=["metaData"]).column("metaData").to_pylist()
        if table_id not in [each["id"] for each in described if each is not None]:
            return
    # The name of the newest checkpoint may have got there alone.
    is_newest = newest is not None and json.loads(newest)["version"] == version
    storage.delete(name, *([NEWEST_CHECKPOINT] if is_newest else []))

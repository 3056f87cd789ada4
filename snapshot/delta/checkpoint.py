"""Checkpoints, from which readers take the state of a table instead of from all entries before."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq

from snapshot.delta.entries import CHECKPOINT, LOG, NEWEST_CHECKPOINT, entry_of, recorded
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
    name = f"{LOG}/{version:020d}.checkpoint.parquet"
    data, newest = storage.read(name), storage.read(NEWEST_CHECKPOINT)
    if data is not None:
        described = pq.ParquetFile(io.BytesIO(data)).read(columns=["metaData"]).column("metaData").to_pylist()
        if table_id not in [each["id"] for each in described if each is not None]:
            return
    # The name of the newest checkpoint may have got there alone.
    is_newest = newest is not None and json.loads(newest)["version"] == version
    storage.delete(name, *([NEWEST_CHECKPOINT] if is_newest else []))


def checkpointed_transactions(storage: Storage, version: int) -> tuple[int, dict[str, int]]:
    """Read the transactions in the last checkpoint at or before a version.

    delta-rs returns none at all if an action in the log violates the protocol, for example a version that is not a
    64-bit integer. One application's mistake must not hide the versions of others.

    Returns:
        The checkpoint's version and the last version of each application; -1 and nothing if there is no checkpoint.
    """
    by_version: dict[int, list[str]] = {}
    for name in storage.names(LOG):
        match = CHECKPOINT.fullmatch(name)
        if match and int(match[1]) <= version:
            by_version.setdefault(int(match[1]), []).append(name)
    if not by_version:
        return -1, {}
    newest = max(by_version)
    versions: dict[str, int] = {}
    for name in by_version[newest]:
        data = storage.read(f"{LOG}/{name}")
        parquet = pq.ParquetFile(io.BytesIO(data or b""))
        if "txn" in parquet.schema_arrow.names:
            actions = parquet.read(columns=["txn"]).column("txn").to_pylist()
            versions |= dict(
                pair for action in actions if action is not None and (pair := recorded(action)) is not None
            )
    return newest, versions

"""The versions that applications record in their commits (Delta's ``txn`` actions).

delta-rs returns none of them if a single action in the log violates the protocol, for example a version that is not a
64-bit integer. One application's mistake must not hide the versions of others, so this module then reads the log
itself: the last checkpoint and the entries after it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from snapshot.storage import Storage

_LOG = "_delta_log"
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.[0-9]{10}|\.[0-9a-f-]{36})?\.parquet")


def recorded(action: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the application id and the version of a ``txn`` action; None if it violates the protocol."""
    app_id, number = action.get("appId"), action.get("version")
    if not isinstance(app_id, str) or isinstance(number, bool):
        return None
    try:
        # Like delta-rs, accept numbers in quotes and truncate fractions.
        version = int(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return (app_id, version) if -(2**63) <= version < 2**63 else None


def of_checkpoint(storage: Storage, version: int) -> tuple[int, dict[str, int]]:
    """Read the transactions in the last checkpoint at or before a version.

    Returns:
        The checkpoint's version and the last version of each application; -1 and nothing if there is no checkpoint.
    """
    by_version: dict[int, list[str]] = {}
    for name in storage.names(_LOG):
        match = _CHECKPOINT.fullmatch(name)
        if match and int(match[1]) <= version:
            by_version.setdefault(int(match[1]), []).append(name)
    if not by_version:
        return -1, {}
    newest = max(by_version)
    versions: dict[str, int] = {}
    for name in by_version[newest]:
        data = storage.read(f"{_LOG}/{name}")
        parquet = pq.ParquetFile(io.BytesIO(data or b""))
        if "txn" in parquet.schema_arrow.names:
            actions = parquet.read(columns=["txn"]).column("txn").to_pylist()
            versions |= dict(
                pair for action in actions if action is not None and (pair := recorded(action)) is not None
            )
    return newest, versions

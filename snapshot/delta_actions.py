"""The actions of a Delta log entry as text, for entries that delta-rs does not write: those that change the schema.

Rules come from the Delta protocol: one action a line, paths URI-encoded, a schema as JSON in a string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

NTZ_FEATURE = "timestampNtz"
_FEATURES_READER, _FEATURES_WRITER = 3, 7
_PATH_SAFE = "/=:-_.~"


class File(Protocol):
    """What an entry says about a file; see ``delta.DataFile``."""

    @property
    def path(self) -> str:
        """Its place."""
        ...

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    @property
    def partition(self) -> Mapping[str, str | None]:
        """Its partition values."""
        ...

    @property
    def stats(self) -> str:
        """Its statistics."""
        ...


def commit_info(now_ms: int, operation: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Say when a commit was made, and what it says of itself."""
    return {"commitInfo": {"timestamp": now_ms, "operation": operation, "operationParameters": {}, **facts}}


def metadata(
    *, table_id: str, schema_json: str, partition_by: Sequence[str], configuration: Mapping[str, str], created_ms: int
) -> dict[str, Any]:
    """Give the table's schema and properties."""
    return {
        "metaData": {
            "id": table_id,
            "name": None,
            "description": None,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_json,
            "partitionColumns": list(partition_by),
            "createdTime": created_ms,
            "configuration": dict(configuration),
        }
    }


def ntz_protocol() -> dict[str, Any]:
    """Ask readers and writers to know timestamps without zone; delta-rs writes the same for a table made with one."""
    return {
        "protocol": {
            "minReaderVersion": _FEATURES_READER,
            "minWriterVersion": _FEATURES_WRITER,
            "readerFeatures": [NTZ_FEATURE],
            "writerFeatures": [NTZ_FEATURE],
        }
    }


def add(file: File, now_ms: int, stats: str) -> dict[str, Any]:
    """Add a file of new data."""
    return {
        "add": {
            "path": quote(file.path, safe=_PATH_SAFE),
            "partitionValues": dict(file.partition),
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": stats,
        }
    }


def remove(file: File, now_ms: int) -> dict[str, Any]:
    """Remove a file with its data."""
    return {
        "remove": {
            "path": quote(file.path, safe=_PATH_SAFE),
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.size,
        }
    }


def entry(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Write a log entry."""
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()

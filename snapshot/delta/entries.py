"""Delta log entries: one JSON file per version, one action per line.

The rules are those of the Delta protocol: paths are URI-encoded, partition values are strings, a schema is JSON in a
string.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from snapshot.column_json import Path, with_others

LOG = "_delta_log"
"""The folder of a Delta table's log."""
INFO_KEY = "tablestore"
"""Key in ``commitInfo`` under which this program stores its own facts about a commit."""
NOTE = "userMetadata"
"""Key in ``commitInfo`` of a text that Delta's ``DESCRIBE HISTORY`` shows in a column of this name."""
NTZ_FEATURE = "timestampNtz"
FEATURES_READER, FEATURES_WRITER = 3, 7
"""Reader and writer versions from which on the protocol lists its features."""
FINGERPRINT_DIGITS = 16
CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.[0-9]{10}|\.[0-9a-f-]{36})?\.parquet")
"""The name of a checkpoint in the log, or of a part of one."""
NEWEST_CHECKPOINT = f"{LOG}/_last_checkpoint"
"""The file that names the newest checkpoint."""
_PATH_SAFE = "/!$&'()+,:;=@"
"""Characters that delta-rs does not encode."""
_FILE_ACTIONS = frozenset(("commitInfo", "add", "remove", "txn"))


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a Delta table.

    Attributes:
        path: relative to the table's folder, not encoded.
        size: bytes.
        rows: number of rows; -1 if the writer recorded no statistics.
        partition: partition values as Delta stores them (strings, None for NULL).
        stats: Delta statistics JSON; empty if there are none.
        encoded: the path in the log, if another writer has encoded it otherwise than this program does.
    """

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""
    encoded: str = field(default="", compare=False)

    @classmethod
    def logged(
        cls, encoded: str, size: int, rows: int, partition: Mapping[str, str | None], stats: str = ""
    ) -> DataFile:
        """Return a file that a log lists; ``encoded`` is its path there."""
        path = unquote(encoded)
        return cls(path, size, rows, partition, stats, encoded if encoded != quote(path, safe=_PATH_SAFE) else "")

    @property
    def path_in_log(self) -> str:
        """The path as a log has it. Other readers find the file of a ``remove`` by exactly the text that added it."""
        return self.encoded or quote(self.path, safe=_PATH_SAFE)


@dataclass(frozen=True)
class Commit:
    """The content of one version of a Delta table's log.

    Attributes:
        version: the Delta version.
        timestamp_ms: the commit's timestamp, in milliseconds since the epoch.
        info: the facts that this program recorded; empty for a commit of another writer.
        added: files added as new data.
        removed: paths of files whose data was removed (not merely rewritten).
        rewritten: paths of removed files whose rows are now in other files.
        copied: added files without new data, as a compaction writes them.
        transactions: the versions that applications recorded in it (Delta's ``txn``), by application id.
        only_files: whether it only adds and removes whole files and records transactions.
        fingerprint: tells the commit from others of the same version, which a table that was restored from an older
            copy may have. Empty if the entry was not read.
        operation: the operation as its writer names it, such as ``DELETE``.
        deletion_vectors: whether it adds or removes files with deletion vectors.
    """

    version: int
    timestamp_ms: int
    info: dict[str, Any]
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    rewritten: tuple[str, ...] = ()
    copied: tuple[DataFile, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    only_files: bool = True
    fingerprint: str = ""
    operation: str = ""
    deletion_vectors: bool = False


def parse_commit(version: int, text: bytes, written_ms: Callable[[], int] = lambda: 0) -> Commit:
    """Parse an entry.

    ``written_ms`` returns the time of a commit without ``commitInfo``, which other Delta writers may leave out.

    Raises:
        ValueError: the text is not an entry.
    """
    info: dict[str, Any] = {}
    timestamp_ms = 0
    added: list[DataFile] = []
    removed: list[str] = []
    rewritten: list[str] = []
    copied: list[DataFile] = []
    transactions: dict[str, int] = {}
    only_files = True
    operation = ""
    deletion_vectors = False
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        only_files &= action.keys() <= _FILE_ACTIONS
        if "commitInfo" in action:
            timestamp_ms = int(action["commitInfo"].get("timestamp") or 0)
            operation = str(action["commitInfo"].get("operation") or "")
            info = json.loads(action["commitInfo"].get(INFO_KEY) or "{}")
        elif "add" in action:
            add = action["add"]
            rows = json.loads(add.get("stats") or "{}").get("numRecords", -1)
            (added if add["dataChange"] else copied).append(
                DataFile.logged(add["path"], add["size"], rows, add["partitionValues"], add.get("stats") or "")
            )
            deletion_vectors |= bool(add.get("deletionVector"))
        elif "remove" in action:
            taken = removed if action["remove"]["dataChange"] else rewritten
            taken.append(unquote(action["remove"]["path"]))
            deletion_vectors |= bool(action["remove"].get("deletionVector"))
        elif "txn" in action:
            # Ignore an action that violates the protocol; the rest of the entry is valid.
            transactions.update([pair] if (pair := recorded(action["txn"])) is not None else [])
    return Commit(
        version,
        timestamp_ms or written_ms(),
        info,
        tuple(added),
        tuple(removed),
        tuple(rewritten),
        tuple(copied),
        transactions,
        only_files and not deletion_vectors,
        fingerprint_of(text),
        operation,
        deletion_vectors,
    )


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


def fingerprint_of(text: bytes | None) -> str:
    """Return the fingerprint of an entry (see ``Commit``); empty if there is none."""
    return "" if text is None else hashlib.sha256(text).hexdigest()[:FINGERPRINT_DIGITS]


def files_of(actions: pa.Table) -> list[DataFile]:
    """Convert the active files listed by delta-rs (``get_add_actions``) to ``DataFile``, without statistics."""
    if actions.num_rows == 0:
        return []
    columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
    has_partition = "partition" in actions.column_names
    partitions = actions.column("partition").to_pylist() if has_partition else [{}] * actions.num_rows
    texts = [{name: partition_text(value) for name, value in (each or {}).items()} for each in partitions]
    return [
        DataFile.logged(path, size, -1 if rows is None else rows, partition)
        for path, size, rows, partition in zip(*columns, texts, strict=True)
    ]


def partition_text(value: object) -> str | None:
    """Return a partition value as the Delta protocol serializes it."""
    if value is None or value == "":
        return None
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def files_after(files: Iterable[DataFile], commits: Iterable[Commit]) -> list[DataFile]:
    """Return the active files after applying commits to a list of active files, without statistics."""
    by_path = {file.path: file for file in files}
    for commit in commits:
        for path in (*commit.removed, *commit.rewritten):
            by_path.pop(path, None)
        for file in (*commit.added, *commit.copied):
            by_path[file.path] = replace(file, stats="")
    return list(by_path.values())


def entry_of(version: int) -> str:
    """Return the path of a version's log entry, relative to the table's folder."""
    return f"{LOG}/{version:020d}.json"


def commit_info(now_ms: int, operation: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``commitInfo`` action with the time of the commit and this program's own facts about it.

    Args:
        now_ms: the time, in milliseconds since the epoch.
        operation: the operation as Delta names it.
        info: the facts; the text under ``NOTE`` is for readers of Delta's history.
    """
    parameters = {"mode": "Append"} if operation == "WRITE" else {}
    fields = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": "tablestore",
        # As Spark's Delta does: every entry has a unique text, so an entry that is read back shows who wrote it.
        "txnId": str(uuid.uuid4()),
    }
    return {"commitInfo": fields | facts(info)}


def facts(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of ``commitInfo`` that hold the facts about a commit and its note."""
    note = {NOTE: str(info[NOTE])} if NOTE in info else {}
    return {INFO_KEY: to_json({name: value for name, value in info.items() if name != NOTE}), **note}


def with_columns_of_others(schema_json: str, before_json: str, own: Collection[Path] | None) -> str:
    """Return a schema's JSON with those columns and fields of the one before that have none of these paths."""
    if own is None:
        return schema_json
    return json.dumps(with_others(json.loads(schema_json), json.loads(before_json), lambda path, _: path in own))


def metadata(
    *, table_id: str, schema_json: str, partition_by: Sequence[str], configuration: Mapping[str, str], created_ms: int
) -> dict[str, Any]:
    """Return a ``metaData`` action with the table's schema and properties."""
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


def ntz_protocol(readers: Iterable[str], writers: Iterable[str], *, append_only: bool) -> dict[str, Any]:
    """Add the ``timestampNtz`` feature to a protocol, as delta-rs does for a table that is created with such a column.

    Args:
        readers: the other required reader features.
        writers: the other required writer features.
        append_only: whether commits must not remove rows, which is a writer feature in such a protocol.
    """
    more = ("appendOnly",) if append_only else ()
    return {
        "protocol": {
            "minReaderVersion": FEATURES_READER,
            "minWriterVersion": FEATURES_WRITER,
            "readerFeatures": sorted({NTZ_FEATURE, *readers}),
            "writerFeatures": sorted({NTZ_FEATURE, *writers, *more}),
        }
    }


def transaction(app_id: str, number: int, now_ms: int) -> dict[str, Any]:
    """Return a ``txn`` action that records an application's version."""
    return {"txn": {"appId": app_id, "version": number, "lastUpdated": now_ms}}


def add(file: DataFile, now_ms: int, *, data_change: bool = True) -> dict[str, Any]:
    """Return an ``add`` action for a file."""
    return {
        "add": {
            "path": file.path_in_log,
            "partitionValues": dict(file.partition),
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": file.stats or (to_json({"numRecords": file.rows}) if file.rows >= 0 else None),
        }
    }


def remove(file: DataFile, now_ms: int, *, data_change: bool = True) -> dict[str, Any]:
    """Return a ``remove`` action for a file; without ``data_change``, its rows live on in other files."""
    return {
        "remove": {
            "path": file.path_in_log,
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.size,
        }
    }


def entry(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a log entry with these actions."""
    return "".join(to_json(action) + "\n" for action in actions).encode()


def to_json(value: object) -> str:
    """Return the JSON of a value for the log, without escapes of characters beyond ASCII.

    delta-rs takes two escapes that stand for one character, as in U+20BB7, for another character in every second plane
    of Unicode: arrow-json sets the bit 0x10000 of the code point instead of adding 0x10000.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

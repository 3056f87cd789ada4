"""Metadata tables as Arrow tables, made without Spark and without opening data files."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.errors import InvalidInputError
from snapshot.schema.json_types import sql_columns
from snapshot.schema.system_columns import BUCKET, SNAPSHOT
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.context import TableContext
from tablestore.options.specification import LOG_SYSTEM, OPTIONS
from tablestore.streaming.consumers import Consumers

_TIME = pa.timestamp("us", "UTC")
_LAG = [("snapshots", pa.int64()), ("rows", pa.int64()), ("seconds", pa.float64())]


@dataclass(frozen=True)
class Lag:
    """How far a log or consumer is behind.

    Attributes:
        snapshots: the number of missing snapshots.
        rows: the number of changes in them.
        seconds: the age of the oldest missing snapshot; 0 if none is missing.
    """

    snapshots: int
    rows: int
    seconds: float


def lag(files: TableFiles, after: int, through: int, now_ms: int | None = None) -> Lag:
    """Return the lag of a reader at snapshot ``after`` behind snapshot ``through``.

    Raises:
        DataLostError: one of them has expired.
    """
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    rows, oldest_ms = 0, now_ms
    for snapshot in range(through, after, -1):
        found = files.log.commit_at(snapshot)
        rows += int(found.info.get("rows", sum(max(f.rows, 0) for f in found.added)))
        oldest_ms = found.timestamp_ms
    return Lag(max(0, through - after), rows, max(0, now_ms - oldest_ms) / 1000)


def snapshots(table: TableContext) -> pa.Table:
    """Return the snapshots that have not expired, newest first.

    Columns: ``snapshot_id``, ``kind``, ``rows`` (number of changes), ``committed_at``, ``published`` (NULL without a
    log), ``tags``, ``commit_id``.
    """
    tags: dict[int, list[str]] = defaultdict(list)
    for tag in table.files.tags.all():
        tags[tag.snapshot.id].append(tag.name)
    visible = table.newest_visible()
    rows = [
        {
            "snapshot_id": s.id,
            "kind": s.operation,
            "rows": s.rows,
            "committed_at": s.timestamp_ms * 1000,
            "published": None if not table.log.publishes else s.id <= visible,
            "tags": tags.get(s.id, []),
            "commit_id": s.commit_id,
        }
        for s in table.files.snapshots()
    ]
    schema = [("snapshot_id", pa.int64()), ("kind", pa.string()), ("rows", pa.int64()), ("committed_at", _TIME)]
    return _table(
        rows, [*schema, ("published", pa.bool_()), ("tags", pa.list_(pa.string())), ("commit_id", pa.string())]
    )


def files(table: TableContext, snapshot: int | None = None) -> pa.Table:
    """Return the data files of a snapshot, by default the newest.

    Columns: ``path`` (relative to the table's folder), ``kind`` (``base`` or ``changes``), ``partition``, ``bucket``
    (NULL without a key), ``snapshot_id`` (only of change files), ``rows`` (NULL if unknown), ``size_bytes``.
    """
    found, folder = _layout(table, snapshot), table.files.log.storage.root
    prefix = f"{folder.removeprefix(table.path).lstrip('/')}/"
    rows = [_file(table, f, "base", f.path) for f in found.base]
    rows += [_file(table, f, "changes", prefix + f.path) for f in found.changes]
    schema = [("path", pa.string()), ("kind", pa.string()), ("partition", pa.string()), ("bucket", pa.int32())]
    return _table(rows, [*schema, ("snapshot_id", pa.int64()), ("rows", pa.int64()), ("size_bytes", pa.int64())])


def partitions(table: TableContext, snapshot: int | None = None) -> pa.Table:
    """Return the partitions of the base table of a snapshot, by default the newest, without changes not compacted yet.

    Columns: ``partition`` (such as ``city=Rome``; empty for a table without partitions), ``files``, ``rows`` (NULL if
    the row count of a file is unknown), ``size_bytes``.
    """
    groups: dict[str, list[DataFile]] = defaultdict(list)
    for file in _layout(table, snapshot).base:
        groups[_partition(table, file)].append(file)
    rows = [
        {"partition": name, "files": len(held), "rows": _rows(held), "size_bytes": sum(f.size for f in held)}
        for name, held in sorted(groups.items())
    ]
    return _table(
        rows,
        [("partition", pa.string()), ("files", pa.int64()), ("rows", pa.int64()), ("size_bytes", pa.int64())],
    )


def buckets(table: TableContext, snapshot: int | None = None) -> pa.Table:
    """Return the buckets of a snapshot, by default the newest; empty for a table without a key.

    Columns: ``bucket``; ``files``, ``rows`` and ``size_bytes`` of the base table; ``change_files``, ``change_rows`` and
    ``change_bytes`` of the changes that are not compacted yet.
    """
    found = _layout(table, snapshot)
    rows = []
    for bucket in range(table.options.buckets) if table.spec.has_key else ():
        base = [f for f in found.base if f.partition[BUCKET] == str(bucket)]
        changes = [f for f in found.changes if f.partition[BUCKET] == str(bucket)]
        rows.append(
            {
                "bucket": bucket,
                "files": len(base),
                "rows": _rows(base),
                "size_bytes": sum(f.size for f in base),
                "change_files": len(changes),
                "change_rows": _rows(changes),
                "change_bytes": sum(f.size for f in changes),
            }
        )
    names = ("files", "rows", "size_bytes", "change_files", "change_rows", "change_bytes")
    return _table(rows, [("bucket", pa.int32()), *((name, pa.int64()) for name in names)])


def schemas(table: TableContext) -> pa.Table:
    """Return the columns of the current schema and of past schemas, newest schema first.

    Columns: ``since`` (the first snapshot with the schema), ``until`` (the last one; NULL for the current schema),
    ``position``, ``name``, ``type`` (in SQL), ``nullable``, ``key_position`` and ``partition_position`` (from 0; NULL
    if the column is not in the key or the partitioning).
    """
    spec = table.spec
    versions: list[tuple[int, int | None, str]] = [(spec.since, None, spec.schema_json)]
    for past in reversed(spec.past):
        versions.append((past.since, versions[-1][0] - 1, past.schema_json))
    rows = [
        {
            "since": since,
            "until": until,
            "position": number,
            "name": name,
            "type": kind,
            "nullable": nullable,
            "key_position": spec.primary_key.index(name) if name in spec.primary_key else None,
            "partition_position": spec.partition_by.index(name) if name in spec.partition_by else None,
        }
        for since, until, columns in versions
        for number, (name, kind, nullable) in enumerate(sql_columns(columns))
    ]
    schema = [("position", pa.int32()), ("name", pa.string()), ("type", pa.string()), ("nullable", pa.bool_())]
    return _table(
        rows,
        [
            ("since", pa.int64()),
            ("until", pa.int64()),
            *schema,
            ("key_position", pa.int32()),
            ("partition_position", pa.int32()),
        ],
    )


def options(table: TableContext) -> pa.Table:
    """Return the options; credentials appear as references, as they are stored.

    Columns: ``name``, ``value`` (NULL if there is none), ``given`` (False for a default).
    """
    given = table.spec.properties
    rows = [{"name": name, "value": value, "given": True} for name, value in given.items()]
    has_log = table.log.publishes
    for spec in OPTIONS:
        of_log = spec is not LOG_SYSTEM and spec.name.startswith(("log.", "kafka.", "publish."))
        if spec.name not in given and (has_log or not of_log):
            rows.append({"name": spec.name, "value": spec.default, "given": False})
    rows.sort(key=lambda row: str(row["name"]))
    return _table(rows, [("name", pa.string()), ("value", pa.string()), ("given", pa.bool_())])


def log(table: TableContext) -> pa.Table:
    """Return the log's partitions and how far each is behind the table; empty for a table without a log.

    Columns: ``topic``, ``partition``, ``first_offset`` (retention has removed earlier records), ``end_offset``,
    ``published_end`` (the end offset of the newest published snapshot), ``published_snapshot``, ``lag_snapshots``,
    ``lag_rows`` (of this partition), ``lag_seconds``.

    Raises:
        UnavailableError: the broker does not answer.
    """
    rows: list[dict[str, Any]] = []
    if table.log.publishes:
        latest = table.index.latest()
        published = 0 if latest is None else latest.snapshot
        newest = table.files.latest()
        behind = lag(table.files, published, newest)
        offsets = {each.partition: each for each in table.log.offsets()}
        waiting = [table.files.published(s, table.log.partitions) for s in range(published + 1, newest + 1)]
        rows = [
            {
                "topic": table.log.storage.name,
                "partition": p,
                "first_offset": offsets[p].first if p in offsets else None,
                "end_offset": offsets[p].end if p in offsets else None,
                "published_end": None if latest is None else latest.ends[p],
                "published_snapshot": published,
                "lag_snapshots": behind.snapshots,
                "lag_rows": sum(changes.rows(p) for changes in waiting),
                "lag_seconds": behind.seconds,
            }
            for p in range(table.log.partitions)
        ]
    names = ("first_offset", "end_offset", "published_end", "published_snapshot")
    return _table(
        rows,
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            *((name, pa.int64()) for name in names),
            *((f"lag_{name}", kind) for name, kind in _LAG),
        ],
    )


def consumers(table: TableContext) -> pa.Table:
    """Return the named consumers and how far each is behind the table and the log.

    Columns: ``consumer``, ``snapshot_id`` (the last snapshot read), ``updated_at``, ``table_lag_snapshots``,
    ``table_lag_rows``, ``table_lag_seconds``, and the same with prefix ``log_lag`` (NULL without a log).
    """
    newest, visible, now_ms = table.files.latest(), table.newest_visible(), int(time.time() * 1000)
    rows = []
    for found in Consumers(table.files.storage).all():
        # Expired snapshots cannot be counted. A consumer that has not read them has to start again.
        after = max(found.snapshot, table.files.oldest(fresh=False) - 1)
        behind = {"table_lag": lag(table.files, after, newest, now_ms)}
        if table.log.publishes:
            behind["log_lag"] = lag(table.files, after, visible, now_ms)
        row = {"consumer": found.name, "snapshot_id": found.snapshot, "updated_at": found.updated_ms * 1000}
        for name, each in behind.items():
            row |= {f"{name}_snapshots": each.snapshots, f"{name}_rows": each.rows, f"{name}_seconds": each.seconds}
        rows.append(row)
    columns = [(f"{name}_{part}", kind) for name in ("table_lag", "log_lag") for part, kind in _LAG]
    return _table(rows, [("consumer", pa.string()), ("snapshot_id", pa.int64()), ("updated_at", _TIME), *columns])


def tags(table: TableContext) -> pa.Table:
    """Return the tags.

    Columns: ``tag``, ``snapshot_id``, ``committed_at``, ``created_at``, of the tagged snapshot ``files``,
    ``size_bytes`` and ``rows`` (with changes that were not compacted; NULL if unknown), and ``expires_at`` (NULL if the
    tag stays until it is deleted).
    """
    rows = []
    for tag in table.files.tags.all():
        held = (*tag.layout.base, *tag.layout.changes)
        rows.append(
            {
                "tag": tag.name,
                "snapshot_id": tag.snapshot.id,
                "committed_at": tag.snapshot.timestamp_ms * 1000,
                "created_at": tag.created_ms * 1000,
                "files": len(held),
                "size_bytes": sum(f.size for f in held),
                "rows": _rows(held),
                "expires_at": None if tag.expires_ms is None else tag.expires_ms * 1000,
            }
        )
    schema = [("tag", pa.string()), ("snapshot_id", pa.int64()), ("committed_at", _TIME), ("created_at", _TIME)]
    sizes = ((name, pa.int64()) for name in ("files", "size_bytes", "rows"))
    return _table(rows, [*schema, *sizes, ("expires_at", _TIME)])


OF_SNAPSHOT: Final[Mapping[str, Callable[[TableContext, int | None], pa.Table]]] = {
    "files": files,
    "partitions": partitions,
    "buckets": buckets,
}
"""The metadata tables that there are of each snapshot: the functions that make them, by name."""
INSPECTED: Final[Mapping[str, Callable[[TableContext], pa.Table]]] = {
    made.__name__: made for made in (snapshots, files, partitions, buckets, schemas, options, log, consumers, tags)
}
"""The functions that make the metadata tables, by name."""


def inspected(table: TableContext, name: str, snapshot: int | None = None) -> pa.Table:
    """Return the metadata table with this name; one of `OF_SNAPSHOT` of this snapshot, or else of the newest.

    Raises:
        InvalidInputError: there is no metadata table with this name.
    """
    if snapshot is not None:
        return OF_SNAPSHOT[name](table, snapshot)
    if name not in INSPECTED:
        msg = f"inspect {name!r}: expected one of {', '.join(INSPECTED)}."
        raise InvalidInputError(msg)
    return INSPECTED[name](table)


def _layout(table: TableContext, snapshot: int | None) -> SnapshotFiles:
    return table.files.layout(table.files.latest() if snapshot is None else snapshot)


def _file(table: TableContext, file: DataFile, kind: str, path: str) -> dict[str, Any]:
    bucket, snapshot = file.partition.get(BUCKET), file.partition.get(SNAPSHOT)
    return {
        "path": path,
        "kind": kind,
        "partition": _partition(table, file) if kind == "base" else "",
        "bucket": None if bucket is None else int(bucket),
        "snapshot_id": None if snapshot is None else int(snapshot),
        "rows": None if file.rows < 0 else file.rows,
        "size_bytes": file.size,
    }


def _partition(table: TableContext, file: DataFile) -> str:
    values = [(name, file.partition.get(name)) for name in table.spec.partition_by]
    return "/".join(f"{name}={'NULL' if value is None else value}" for name, value in values)


def _rows(held: Iterable[DataFile]) -> int | None:
    counts = [file.rows for file in held]
    return None if any(count < 0 for count in counts) else sum(counts)


def _table(rows: list[dict[str, Any]], columns: list[tuple[str, pa.DataType]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema(columns))

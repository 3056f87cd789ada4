"""The metadata tables of SQL, such as ``t$snapshots``: Paimon's columns that the store has, and then its own.

Paimon's columns are declared in one place, `_PAIMON`: each has the value of an own column, or is computed of the row.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from snapshot.schema.spark_types import physical_name, with_physical_names
from tablestore.context import TableContext
from tablestore.inspect.metadata_tables import inspected
from tablestore.sql.parser.statements import CreateTable, PhysicalColumn
from tablestore.sql.parser.types import of_spark

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Column:
    """A column that Paimon documents.

    Attributes:
        name: its name.
        own: the own column with the same values; empty if it is computed.
        type: the type of a computed column.
        of: computes its value of a row of own columns.
    """

    name: str
    own: str = ""
    type: pa.DataType | None = None
    of: Callable[[TableContext, Row], Any] | None = None


def _schema_id(table: TableContext, row: Row) -> int | None:
    """Return the number of the schema of a row's snapshot: how many schemas the table had before."""
    if row["snapshot_id"] is None:
        return None
    return bisect_right([since for since, _ in _versions(table)], row["snapshot_id"]) - 1


def _versions(table: TableContext) -> list[tuple[int, str]]:
    """Return the first snapshot and the columns of each schema of the table, the oldest first."""
    spec = table.spec
    return [*((past.since, past.schema_json) for past in spec.past), (spec.since, spec.schema_json)]


def _commit_user(_: TableContext, row: Row) -> str | None:
    writer, colon, _number = row["commit_id"].rpartition(":")
    return (writer if colon else row["commit_id"]) or None


def _commit_number(_: TableContext, row: Row) -> int | None:
    number = row["commit_id"].rpartition(":")[2]
    return int(number) if number.isdigit() else None


def _level(table: TableContext, row: Row) -> int:
    return _TOP_LEVEL if row["kind"] == "base" and table.spec.has_key else 0


def _retained(_: TableContext, row: Row) -> str | None:
    """Return for how long a tag is kept, as Java writes a duration, such as ``PT1H30M``."""
    if row["expires_at"] is None:
        return None
    left = (row["expires_at"] - row["created_at"]) // timedelta(milliseconds=1)
    text = "PT"
    for unit, milliseconds in (("H", 3_600_000), ("M", 60_000)):
        count, left = divmod(left, milliseconds)
        text += f"{count}{unit}" if count else ""
    return f"{text}{left / 1000:g}S" if left else text


_TOP_LEVEL: Final = 5
"""Paimon's level of the files of a full compaction; changes, and all rows without a key, are at level 0."""
_KINDS: Final = {
    **dict.fromkeys(("append", "upsert", "delete", "update", "merge", "foreign"), "APPEND"),
    **dict.fromkeys(("overwrite", "truncate"), "OVERWRITE"),
    "compact": "COMPACT",
}
"""Paimon's names of what makes a snapshot; others have none."""
_SCHEMA: Final = _Column("schema_id", "", pa.int64(), _schema_id)
_PAIMON: Final[Mapping[str, tuple[_Column, ...]]] = {
    "snapshots": (
        _Column("snapshot_id", "snapshot_id"),
        _SCHEMA,
        _Column("commit_user", "", pa.string(), _commit_user),
        _Column("commit_identifier", "", pa.int64(), _commit_number),
        _Column("commit_kind", "", pa.string(), lambda _, row: _KINDS.get(row["kind"])),
        _Column("commit_time", "committed_at"),
        _Column("delta_record_count", "rows"),
    ),
    "files": (
        _Column("partition", "partition"),
        _Column("bucket", "bucket"),
        _Column("file_path", "", pa.string(), lambda table, row: f"{table.path.rstrip('/')}/{row['path']}"),
        _Column("file_format", "", pa.string(), lambda *_: "parquet"),
        _Column("level", "", pa.int32(), _level),
        _Column("record_count", "rows"),
        _Column("file_size_in_bytes", "size_bytes"),
    ),
    "partitions": (
        _Column("partition", "partition"),
        _Column("record_count", "rows"),
        _Column("file_size_in_bytes", "size_bytes"),
        _Column("file_count", "files"),
    ),
    "buckets": (
        _Column("bucket", "bucket"),
        _Column("record_count", "", pa.int64(), lambda _, row: _sum(row["rows"], row["change_rows"])),
        _Column("file_size_in_bytes", "", pa.int64(), lambda _, row: _sum(row["size_bytes"], row["change_bytes"])),
        _Column("file_count", "", pa.int64(), lambda _, row: _sum(row["files"], row["change_files"])),
    ),
    "options": (_Column("key", "name"), _Column("value", "value")),
    "tags": (
        _Column("tag_name", "tag"),
        _Column("snapshot_id", "snapshot_id"),
        _SCHEMA,
        _Column("commit_time", "committed_at"),
        _Column("record_count", "rows"),
        _Column("create_time", "created_at"),
        _Column("time_retained", "", pa.string(), _retained),
    ),
    "consumers": (
        _Column("consumer_id", "consumer"),
        _Column("next_snapshot_id", "", pa.int64(), lambda _, row: row["snapshot_id"] + 1),
    ),
}


def in_sql(table: TableContext, made: CreateTable, name: str, snapshot: int | None) -> pa.Table:
    """Return a metadata table as SQL shows it.

    Args:
        table: the table that it is of.
        made: that table's definition.
        name: its name, without that of the table.
        snapshot: the snapshot that it is of; None for the newest.
    """
    if name == "schemas":
        return _schemas(table, made)
    own = inspected(table, name, snapshot)
    rows: list[Row] = own.to_pylist()
    columns: dict[str, Any] = {}
    for column in _PAIMON.get(name, ()):
        of = column.of
        columns[column.name] = (
            own[column.own] if of is None else pa.array([of(table, row) for row in rows], column.type)
        )
    return pa.table(columns | {each: own[each] for each in own.column_names if each not in columns})


def _schemas(table: TableContext, made: CreateTable) -> pa.Table:
    """Return a row for each schema of the table, the newest first; options are known of the newest alone.

    Fields have the numbers of Paimon's: that of the same column stays, however it is called.
    """
    spec, versions = table.spec, _versions(table)
    times = {each.id: each.timestamp_ms for each in table.files.snapshots()}
    declared = {each.name: each for each in made.physical}
    numbers: dict[str, int] = {}
    rows = []
    for number, (since, columns) in enumerate(versions):
        newest, fields = number + 1 == len(versions), []
        for field in with_physical_names(columns).fields:
            said = declared.get(field.name) if newest else None
            if said is None:
                kind, comment = of_spark(field.dataType, nullable=field.nullable), (field.metadata or {}).get("comment")
                said = PhysicalColumn(field.name, kind, comment)
            shown = {"id": numbers.setdefault(physical_name(field), len(numbers)), "name": field.name}
            fields.append(
                shown | {"type": said.type.declared} | ({"description": said.comment} if said.comment else {})
            )
        rows.append(
            {
                "schema_id": number,
                "fields": _json(fields),
                "partition_keys": _json(spec.partition_by),
                "primary_keys": _json(spec.primary_key),
                "options": _json(spec.properties) if newest else None,
                "comment": (made.comment or "") if newest else None,
                "update_time": None if since not in times else times[since] * 1000,
                "since": since,
                "until": None if newest else versions[number + 1][0] - 1,
            }
        )
    texts = ("fields", "partition_keys", "primary_keys", "options", "comment")
    ids = [(name, pa.int64()) for name in ("since", "until")]
    schema = [("schema_id", pa.int64()), *((name, pa.string()) for name in texts)]
    return pa.Table.from_pylist(rows[::-1], pa.schema([*schema, ("update_time", pa.timestamp("us", "UTC")), *ids]))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other

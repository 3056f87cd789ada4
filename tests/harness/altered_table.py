"""A table whose columns change, driven without Spark by the code that Spark runs, beside a model of plain dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.errors import InvalidInputError
from snapshot.records import Snapshot
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.evolution import Change
from snapshot.schema.spark_types import physical_name, with_physical_names
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.options.read_options import parse_read_options
from tablestore.read.split_planner import snapshot_splits
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tablestore.write.arrow_input import prepare_batches
from tablestore.write.writer import Writer
from tests.harness.local_writes import run_here

Row = Mapping[str, Any]
BUCKETS = 2


@dataclass
class Altered:
    """A table with a key ``id``, or without one.

    Attributes:
        path: its folder.
        schema: the columns it is made with.
        log: the options of its log; empty for none.
        key: whether it has a key.
        states: of each snapshot the columns and the rows it must have, by stored names.
    """

    path: Path
    schema: StructType
    log: Mapping[str, Any] = field(default_factory=dict)
    key: bool = True
    states: list[tuple[StructType, list[dict[str, Any]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the table, unless it is there."""
        made = (
            self.table
            if self.states
            else create_drop.create(
                TableDefinition(
                    str(self.path),
                    self.schema,
                    primary_key=["id"] if self.key else [],
                    log_system="kafka" if self.log else None,
                    options={"bucket": BUCKETS, "compaction.auto": False, **self.log} if self.key or self.log else {},
                )
            )
        )
        self.states = self.states or [(with_physical_names(made.spec.schema_json), [])]
        self._publisher: KafkaPublisher | None = made.log.publisher()
        self._writer = Writer(made, self._publisher)

    @classmethod
    def again(cls, table: Altered) -> Altered:
        """Open a table as another process does."""
        return cls(table.path, table.schema, table.log, table.key, table.states)

    @staticmethod
    def write_by(writer: Writer, rows: Sequence[Row]) -> Snapshot | None:
        """Write rows by a writer, outside of the model."""
        writer.recover_once()
        return writer.write(lambda stager: stager.stage(prepare_batches(iter([batch_of(rows)]), stager.spec, 0), 0))

    @property
    def table(self) -> TableContext:
        """The table, opened anew."""
        return TableContext.open(str(self.path))

    @property
    def columns(self) -> StructType:
        """The columns it must have, with stored names."""
        return self.states[-1][0]

    def write(self, rows: Sequence[Row], *, writer: Writer | None = None) -> Snapshot | None:
        """Write rows by the table's names; with a key, a row whose ``_change_type`` is ``delete`` deletes."""
        made = self.write_by(writer or self._writer, rows)
        if made is not None:
            columns, before = self.states[-1]
            self.states.append((columns, self._after(before, rows, columns)))
        return made

    def alter(self, *changes: Change) -> Snapshot | None:
        """Change the columns."""
        made = alter(self.table, changes, publish=self._publish)
        if made is not None:
            self.states.append((with_physical_names(self.table.spec.schema_json), self.states[-1][1]))
        return made

    def compact(self) -> None:
        """Fold the changes."""
        if compact(self.table, run_here) is not None:
            self.states.append(self.states[-1])
            self._publish(self.table.files.latest())

    def close(self) -> None:
        """Let go of the broker."""
        if self._publisher is not None:
            self._publisher.discard()

    def rows(self, snapshot: int | None = None, *, own: bool = False) -> list[dict[str, Any]]:
        """Read a snapshot with our own reader."""
        table = self.table
        wanted = table.files.latest() if snapshot is None else snapshot
        spec = table.files.spec_of(wanted) if own else table.spec
        found = [
            row
            for part in snapshot_splits(table.files, wanted, tasks=1, spec=spec)
            for batch in part.read()
            for row in batch.to_pylist()
        ]
        return ordered(found)

    def check_all(self) -> None:
        """Every snapshot has its rows, with today's columns and with its own; so have the changes, and the root."""
        assert self.table.files.latest() == len(self.states) - 1
        for snapshot, (columns, rows) in enumerate(self.states):
            assert self.rows(snapshot) == shown(rows, self.columns), f"snapshot {snapshot}, columns of today"
            assert self.rows(snapshot, own=True) == shown(rows, columns), f"snapshot {snapshot}, its own columns"
        for after in {0, len(self.states) // 2}:
            folded = self.folded(self.feed(Follower(self.table), after), shown(self.states[after][1], self.columns))
            assert folded == shown(self.states[-1][1], self.columns), f"changes after snapshot {after}"
        DeltaTable(self.path).to_pyarrow_table()

    def folded(self, feed: Sequence[dict[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Apply changes to rows."""
        if not self.key:
            return ordered([*rows, *(data_of(change) for change in feed)])
        found = {row["id"]: dict(row) for row in rows}
        for change in feed:
            if change[CHANGE_TYPE] == "delete":
                found.pop(change["id"], None)
            else:
                found[change["id"]] = data_of(change)
        return ordered(list(found.values()))

    def feed(self, follower: Follower, after: int) -> list[dict[str, Any]]:
        """Read the changes after a snapshot as a stream does."""
        return follower.changes(after)

    def _publish(self, snapshot: int) -> None:
        self._writer.publish(snapshot)

    def _after(self, before: list[dict[str, Any]], rows: Sequence[Row], columns: StructType) -> list[dict[str, Any]]:
        names = {f.name: physical_name(f) for f in columns.fields}
        kept = [(row, {names[k]: v for k, v in row.items() if k in names}) for row in rows]
        if not self.key:
            return [*before, *(held for _, held in kept)]
        found = {row["id"]: row for row in before}
        for row, held in kept:
            found.pop(held["id"], None)
            if row.get(CHANGE_TYPE) != "delete":
                found[held["id"]] = held
        return list(found.values())


class Follower:
    """A running stream: it keeps the columns that the table has when it begins."""

    def __init__(self, table: TableContext) -> None:
        """Begin."""
        given = parse_read_options({"path": table.path, "readChangeFeed": "true"})
        self.schema = feed_schema(table.spec)
        self._stream = SnapshotStream(given, self.schema)
        self._table_id = table.spec.table_id

    def changes(self, after: int) -> list[dict[str, Any]]:
        """Give every change after a snapshot, in order for each key, through the newest visible snapshot."""
        start = {"snapshot": after, "table": self._table_id}
        end = self._stream.latestOffset(start, ReadAllAvailable())
        read = [batch for part in self._stream.partitions(start, end) for batch in self._stream.read(part)]
        rows = [row for batch in read for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: row[COMMIT_VERSION])


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Make a batch of rows that may lack columns, in the types of their values."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})


def shown(rows: Sequence[Row], columns: StructType) -> list[dict[str, Any]]:
    """Give rows by stored names the columns of a schema, and its names."""
    return ordered([{f.name: row.get(physical_name(f)) for f in columns.fields} for row in rows])


def ordered(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Put rows in an order of their own."""
    return sorted(map(dict, rows), key=lambda row: sorted((k, repr(v)) for k, v in row.items()))


def data_of(change: Row) -> dict[str, Any]:
    """Give a change's row."""
    return {k: v for k, v in change.items() if k not in (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)}


__all__ = ["BUCKETS", "Altered", "Follower", "InvalidInputError", "data_of", "ordered", "shown"]

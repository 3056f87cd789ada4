"""A table on real Delta files and a real broker, driven without Spark: the same code that tasks and driver run.

Used where a test needs hundreds of writes, crashes or processes; what Spark adds is tested with Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import latest_offsets
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.records import CommitId, Snapshot
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ
from snapshot.staging.file_rewriter import Act, FileRewriter
from snapshot.staging.stage import StagedFile, Stager, change_file_schema
from snapshot.store.changes import SnapshotChanges
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.read.split_planner import snapshot_splits
from tablestore.write.optimistic_retry import Replaced
from tablestore.write.publish import recover
from tablestore.write.writer import Writer

SCHEMA = StructType().add("id", "long").add("v", "string")
Change = tuple[int, str | None]
"""A key and its new value; None deletes the key."""
TRUNCATED: Change = (-(1 << 62), None)
"""Stands for a record that says that all rows of its log partition are gone."""
Row = tuple[int, str]
"""A row of a table without a key."""


def make_table(path: Path, servers: str, topic: str, *, key: bool = True, **options: object) -> TableContext:
    """Create a table of ``(id, v)`` with a log."""
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    settings = {"kafka.bootstrap.servers": servers, "kafka.topic": topic, "bucket": 2, **named}
    keys = ["id"] if key else []
    return create_drop.create(
        TableDefinition(str(path), SCHEMA, primary_key=keys, log_system="kafka", options=settings)
    )


def publisher_of(table: TableContext) -> KafkaPublisher:
    """Make a publisher that runs its tasks in this process."""
    publisher = table.log.publisher()
    assert isinstance(publisher, KafkaPublisher)
    return publisher


def recover_at(path: Path, partitions: int) -> None:
    """Open a table anew and recover it."""
    table = TableContext.open(str(path))
    publisher = publisher_of(table)
    try:
        recover(table, publisher)
    finally:
        publisher.discard()


def write(writer: Writer, changes: Sequence[Change], commit_id: CommitId | None = None) -> Snapshot | None:
    """Write changes as one snapshot, staged in this process."""
    writer.recover_once()
    return writer.write(lambda stager: staged(stager, changes), commit_id)


def act(
    writer: Writer, table: TableContext, kind: str, decide: Callable[[dict[int, str]], Sequence[Change]]
) -> Snapshot | None:
    """Do a verb on a table with a key: ``decide`` gives the changes of the rows that there are."""
    writer.recover_once()
    return writer.write(
        lambda stager: staged(stager, decide(rows_of(table, stager.base))),
        kind=kind,
        all_rows=kind in ("truncate", "overwrite"),
    )


def rewriting(
    table: TableContext, change: Callable[[Row], Row | None]
) -> Callable[[int], tuple[Sequence[StagedFile], Replaced]]:
    """Stage in this process what Spark tasks do: None deletes a row, another row takes its place."""

    def stage(base: int) -> tuple[Sequence[StagedFile], Replaced]:
        files = table.files.base_table.files(base)
        held = SnapshotChanges(table.files.snapshot(base), table.files.storage, table.spec.columns, {0: tuple(files)})
        rows = [(row["id"], row["v"]) for batch in held.batches(0) for row in batch.to_pylist()]
        after = [change(row) for row in rows]
        acts = [
            Act.DELETE if new is None else Act.KEEP if new == old else Act.UPDATE
            for old, new in zip(rows, after, strict=True)
        ]
        if all(act is Act.DELETE for act in acts):
            return [], Replaced(files, (), base)
        columns = [
            *(pa.array([row[n] for row in rows], kind) for n, kind in enumerate(table.spec.arrow.types)),
            pa.array(acts, pa.int8()),
            *(pa.array([row and row[n] for row in after], kind) for n, kind in enumerate(table.spec.arrow.types)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=["o0", "o1", "act", "n0", "n1"])
        staged = FileRewriter(table.files.storage, table.spec, table.spec, 1 << 20).stage([batch], 0)
        return staged, Replaced((), files, base)

    return stage


def staged(stager: Stager, changes: Sequence[Change]) -> list[StagedFile]:
    """Stage changes in this process."""
    spec = stager.spec
    if spec.has_key:
        rows = [
            {"id": k, "v": v, KIND: int(RowKind.DELETE if v is None else RowKind.UPDATE_AFTER), SEQ: n}
            for n, (k, v) in enumerate(changes)
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=change_file_schema(spec))
    else:
        batch = pa.RecordBatch.from_pylist([{"id": k, "v": v} for k, v in changes], schema=spec.arrow)
    return stager.stage([batch], 0)


def run_here(tasks: Sequence[Any], work: Callable[[Any], str]) -> list[str]:
    """Run compaction tasks in this process."""
    return [work(task) for task in tasks]


def rows_of(table: TableContext, snapshot: int | None = None) -> dict[int, str]:
    """Read a snapshot of a key table with our own reader."""
    wanted = table.files.latest() if snapshot is None else snapshot
    batches = [b for part in snapshot_splits(table.files, wanted, tasks=1) for b in part.read()]
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = {row["id"]: row["v"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


Archive = dict[int, list[tuple[int, Change]]]
"""Changes of snapshots that may have expired since: of each its (partition, change), in order."""


def committed_changes(path: Path, partitions: int, archive: Archive | None = None) -> list[list[tuple[int, Change]]]:
    """Read with deltalake and pyarrow alone what the log must hold: for each partition (snapshot, change), in order.

    What is in the archive is taken from there, and what is not is put there.
    """
    archive = {} if archive is None else archive
    folder = path / "_changes"
    newest = DeltaTable(folder).version()
    for version in range(1, newest + 1):
        if version not in archive:
            archive[version] = _changes_of(folder, version, partitions)
    return [[(v, c) for v in range(1, newest + 1) for p, c in archive[v] if p == part] for part in range(partitions)]


def _changes_of(folder: Path, version: int, partitions: int) -> list[tuple[int, Change]]:
    text = (folder / "_delta_log" / f"{version:020d}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    adds = [a["add"] for a in actions if "add" in a]
    adds = [add for add in adds if add["dataChange"] and not add["path"].startswith("tombstones/")]
    facts = [json.loads(a["commitInfo"].get("tablestore", "{}")) for a in actions if "commitInfo" in a]
    truncates = any("truncate-record" in each for each in facts)
    found: list[tuple[int, Change]] = [(p, TRUNCATED) for p in range(partitions)] if truncates else []
    for add in sorted(adds, key=lambda a: a["path"]):
        for row in pq.read_table(folder / add["path"], partitioning=None).to_pylist():
            value = None if row[KIND] == RowKind.DELETE else row["v"]
            if value is None and truncates:
                continue
            found.append((int(add["partitionValues"]["_bucket"]), (row["id"], value)))
    return found


def drain(servers: str, topic: str, partitions: int, *, settled: bool = True) -> list[list[Change]]:
    """Read a topic to its end as any Kafka user would: a plain ``read_committed`` consumer, a JSON or Arrow reader."""
    read = drain_raw(servers, topic, partitions, settled=settled)
    return [[c for record in records for c in _changes(record)] for records in read]


def drain_raw(servers: str, topic: str, partitions: int, *, settled: bool = True) -> list[list[Any]]:
    """Read a topic's committed messages, partition by partition; if ``settled``, see :func:`settle` first."""
    if settled:
        settle(servers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "stranger",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    found: list[list[Any]] = [[] for _ in range(partitions)]
    open_ones = set(range(partitions))
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    try:
        while open_ones:
            message = consumer.poll(30)
            assert message is not None, f"topic {topic!r}: nothing came for 30 s"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_ones.discard(message.partition())
            else:
                found[message.partition()].append(message)
    finally:
        consumer.close()
    return found


def settle(servers: str, topic: str, seconds: float = 10.0) -> None:
    """Wait until read-committed readers are given all that is written, or a transaction stays open for longer.

    The broker answers a commit before it writes the marker into each partition; on a busy machine a reader that comes
    at once may be given less than is committed.
    """
    client, until = KafkaClient({"bootstrap.servers": servers}), time.monotonic() + seconds
    while time.monotonic() < until:
        written, committed = (latest_offsets(client, topic, read_committed=c) for c in (False, True))
        if written == committed:
            return
        time.sleep(0.02)


def _changes(message: Any) -> list[Change]:
    key, value = message.key(), message.value()
    if key is not None:
        return [(json.loads(key)["id"], None if value is None else json.loads(value)["v"])]
    if value == b'{"_change_type":"truncate"}':
        return [TRUNCATED]
    rows = pa.ipc.open_stream(value).read_all().to_pylist()
    if [row[KIND] for row in rows] == [4]:
        return [TRUNCATED]
    return [(row["id"], None if row[KIND] == RowKind.DELETE else row["v"]) for row in rows]


def fold(changes: Iterable[Change]) -> dict[int, str]:
    """Fold changes by key."""
    return fold_into({}, changes)


def fold_into(table: dict[int, str], changes: Iterable[Change]) -> dict[int, str]:
    """Fold changes by key into a table that is there."""
    for key, value in changes:
        if (key, value) == TRUNCATED:
            table.clear()
        elif value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table

"""A table of ``(id, v)`` with a few snapshots, and ways to damage its log, index, register and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from log_system.index import IndexEntry, OffsetRange
from log_system.kafka.client.topic import delete_topic, topic_id
from log_system.kafka.register import RegisterPosition
from log_system.report import Difference, DifferenceKind, RepairReport, Report
from snapshot.delta.log import DataFile
from tablestore.context import TableContext
from tablestore.write.writer import Writer
from tests.harness.local_writes import Change, act, drain_raw, make_table, publisher_of, rewriting, settle, write
from tests.harness.log_audit import repair_anew, verify
from tests.harness.plain_topics import make_topic
from tests.harness.spark_tables import delete_records
from tests.harness.waiting import PATIENCE_SECONDS

PARTITIONS = 2
ROWS = 12


class Damaged:
    """A table that gets damaged, on a real broker."""

    def __init__(self, servers: str, topic: str, path: Path, **options: Any) -> None:
        """Make the table with four snapshots, all published; the fourth deletes where there is a key."""
        self.servers, self.topic, self.path = servers, topic, path
        self.key = bool(options.get("key", True))
        make_table(path, servers, topic, **options)
        # One writer, since taking the log over costs as much as three writes.
        self.write_rows(*map(_rows, range(1, 4)), [(0, None), (1, "new")] if self.key else _rows(4))

    def open(self) -> TableContext:
        """Open the table as another process would, without anything cached."""
        return TableContext.open(str(self.path))

    def write(self, batch: int, *, publish: bool = True) -> None:
        """Write one more snapshot."""
        self.write_rows(_rows(batch), publish=publish)

    def write_rows(self, *snapshots: Sequence[Change], publish: bool = True) -> None:
        """Write some changes as one more snapshot, or several such snapshots."""
        table = self.open()
        publisher = publisher_of(table) if publish else None
        writer = Writer(table, publisher)
        for changes in snapshots:
            write(writer, changes)
        if publisher is not None:
            publisher.discard()
            settle(self.servers, self.topic)

    def delete_all(self, *, publish: bool = True) -> None:
        """Delete all rows as one more snapshot: with ``log.truncate-record``, one record of each partition says so."""
        table = self.open()
        publisher = publisher_of(table) if publish else None
        writer = Writer(table, publisher)
        if self.key:
            act(writer, table, "truncate", lambda held: [(key, None) for key in held])
        else:
            writer.replace(rewriting(table, lambda _: None), kind="truncate", all_rows=True)
        if publisher is not None:
            publisher.discard()
            settle(self.servers, self.topic)

    def verify(self) -> Report:
        """Verify with nothing cached."""
        return verify(self.open())

    def repair(self) -> RepairReport:
        """Repair with nothing cached."""
        return repair_anew(self.open())

    def found(self, kind: DifferenceKind) -> list[Difference]:
        """Verify and give the differences of one kind."""
        return [d for d in self.verify().differences if d.kind is kind]

    # The index.

    def entry(self, snapshot: int) -> IndexEntry:
        """Read an entry."""
        entry = self.open().index.get(snapshot)
        assert entry is not None
        return entry

    def entry_file(self, snapshot: int) -> Path:
        """Name an entry's file."""
        return self.path / "_log" / f"{snapshot:020d}.json"

    def edit_entry(self, snapshot: int, edit: Callable[[dict[str, Any]], None]) -> None:
        """Change what an entry says."""
        raw = json.loads(self.entry_file(snapshot).read_text())
        edit(raw)
        self.entry_file(snapshot).write_text(json.dumps(raw))

    # The log.

    def send(self, partition: int, value: bytes | None, key: bytes | None = None, headers: Any = None) -> int:
        """Put a record into the log as a stranger would; give its offset."""
        landed: list[int] = []
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(
            self.topic, value, key, partition, headers=headers, on_delivery=lambda _, m: landed.append(m.offset())
        )
        producer.flush(PATIENCE_SECONDS)
        return landed[0]

    def records(self, partition: int) -> list[Any]:
        """Read the messages of a partition."""
        return list(drain_raw(self.servers, self.topic, PARTITIONS)[partition])

    def record_at(self, partition: int, offset: int) -> Any:
        """Read one message."""
        return next(m for m in self.records(partition) if m.offset() == offset)

    def truncate(self, ends: dict[int, int]) -> None:
        """Let retention pass."""
        delete_records(self.servers, self.topic, ends)

    def drop_topic(self) -> None:
        """Delete the topic."""
        log = self.open().log.settings
        delete_topic(log.client, self.topic)

    def recreate_topic(self) -> None:
        """Delete the topic and make an empty one of its name."""
        self.drop_topic()
        make_topic(self.servers, self.topic, PARTITIONS)

    def forge(self, edit: Callable[[list[Any]], list[tuple[Any, Any, Any]]]) -> None:
        """Make the log anew from its own records, each partition edited: (key, value, headers) a record."""
        held = drain_raw(self.servers, self.topic, PARTITIONS)
        self.recreate_topic()
        log = self.open().log.settings
        found = topic_id(log.client, self.topic)
        for entry in (self.path / "_log").glob("*.json"):
            self.edit_entry(int(entry.stem), lambda told: told.update(topic=found))
        for partition, messages in enumerate(held):
            for key, value, headers in edit(messages):
                self.send(partition, value, key, headers)

    def forget_group(self) -> None:
        """Delete the register, as a broker does with a group that is idle."""
        log = self.open().log.settings
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_consumer_groups([log.group])[log.group].result()

    def settle_past(self, partition: int, end: int) -> None:
        """Say in an eventual log's register that all up to an offset is settled: what is wrong there is damage."""
        publisher = publisher_of(self.open())
        publisher.take_over()
        publisher.restore({partition: replace(publisher.positions()[partition], end=end)})
        publisher.discard()

    # The table's files.

    def change_file(self, snapshot: int, partition: int) -> Path:
        """Name a file of a snapshot's changes."""
        changes = self.open().files.changes(snapshot, PARTITIONS)
        file: DataFile = changes.files[partition][0]
        return Path(changes.storage.path(file.path))

    def partition_of(self, snapshot: int) -> int:
        """Give a partition with changes of a snapshot."""
        return next(p for p, r in enumerate(self.entry(snapshot).partitions) if r.rows)


def _rows(batch: int) -> list[Change]:
    return [(n, f"{batch}.{n}") for n in range(ROWS)]


def raw(message: Any) -> tuple[Any, Any, Any]:
    """Give what is needed to send a message again."""
    return message.key(), message.value(), message.headers()


KINDS = [
    pytest.param({}, id="json-key"),
    pytest.param({"key": False}, id="json-append"),
    pytest.param({"log__format": "arrow"}, id="arrow-key"),
    pytest.param({"key": False, "log__format": "arrow"}, id="arrow-append"),
    pytest.param({"publish__driver_rows_max": 3, "publish__transaction_rows_max": 2}, id="json-tasks"),
]
"""Tables of every kind of log."""


def lose_index(table: Damaged) -> None:
    for snapshot in (2, 3):
        table.entry_file(snapshot).unlink()


def lose_register(table: Damaged) -> None:
    table.forget_group()
    table.entry_file(4).unlink()


def lose_end(table: Damaged) -> None:
    """Let index and register be as if the broker had lost two snapshots, and the log had grown since."""
    last = table.entry(4)
    entries = []
    for snapshot in (5, 6):
        table.write(snapshot, publish=False)
        made = table.open().files.snapshot(snapshot)
        ranges = tuple(OffsetRange(r.end, r.end + 6, 5, 5) for r in last.partitions)
        last = replace(last, snapshot=snapshot, kind=made.operation, partitions=ranges, commit=made.fingerprint)
        entries.append(replace(last, timestamp_ms=made.timestamp_ms))
    publisher = publisher_of(table.open())
    publisher.restore(
        {p: RegisterPosition(6, 5, 5, done=True, end=end, commit=last.commit) for p, end in enumerate(last.ends)}
    )
    publisher.discard()
    for entry in entries:
        table.open().index.put(entry)
    producer = Producer({"bootstrap.servers": table.servers, "transactional.id": f"stranger-{table.topic}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for n in range(60):
        producer.produce(table.topic, b"{}", b"{}", n % PARTITIONS)
    producer.flush(PATIENCE_SECONDS)
    producer.abort_transaction()


def lose_topic(table: Damaged) -> None:
    table.recreate_topic()

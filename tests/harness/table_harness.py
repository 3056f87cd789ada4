"""A table under attack: written, damaged from outside, recovered and audited, each step as another process would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from log_system.gate import slices
from log_system.kafka.client.cluster import delete_groups
from log_system.kafka.client.topic import delete_topic
from log_system.kafka.log import KafkaLog
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.reader.snapshot_reader import read_slice
from snapshot.records import CommitId, Snapshot
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.local_writes import Change, make_table, publisher_of, write
from tests.harness.plain_topics import make_topic
from tests.harness.table_audit import assert_index_is_true, audit
from tests.harness.waiting import PATIENCE_SECONDS

PARTITIONS = 2


def changes(batch: int, rows: int = 10) -> list[Change]:
    """Make the changes of a numbered batch: the same keys in each, values that tell the batch."""
    return [(n, f"{batch}.{n}") for n in range(rows)]


@dataclass
class TableHarness:
    """One table of ``(id, v)`` with two log partitions.

    Attributes:
        path: the table's folder.
        servers: the broker.
        topic: the log's topic.
        options: the table's options.
    """

    path: Path
    servers: str
    topic: str
    options: dict[str, Any] = field(default_factory=dict)
    _publishers: list[KafkaPublisher] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the table."""
        make_table(self.path, self.servers, self.topic, **{"compaction__auto": False, **self.options})

    @property
    def table(self) -> TableContext:
        """The table, opened as a new process does."""
        return TableContext.open(str(self.path))

    @property
    def log(self) -> KafkaLog:
        """Its log."""
        return self.table.log.settings

    @cached_property
    def admin(self) -> AdminClient:
        """An admin client of the broker."""
        return AdminClient({"bootstrap.servers": self.servers})

    def writer(self) -> Writer:
        """Make a writer of its own process."""
        table = self.table
        self._publishers.append(publisher_of(table))
        return Writer(table, self._publishers[-1])

    def write(self, *batches: int, rows: int = 10) -> list[Snapshot]:
        """Write and publish batches by a new writer."""
        writer = self.writer()
        made = [write(writer, changes(batch, rows)) for batch in batches]
        return [snapshot for snapshot in made if snapshot is not None]

    def commit(self, *batches: int, rows: int = 10, commit_id: CommitId | None = None) -> None:
        """Commit batches that nobody publishes."""
        for batch in batches:
            write(Writer(self.table, None), changes(batch, rows), commit_id)

    def recover(self) -> list[int]:
        """Recover as a new process does; gives the snapshots published."""
        table = self.table
        publisher = publisher_of(table)
        try:
            return [e.snapshot for e in recover(table, publisher)]
        finally:
            publisher.discard()

    def audit(self) -> None:
        """Nothing lost, doubled, early or out of order, and the index is true."""
        audit(self.path, self.servers, self.topic, PARTITIONS)
        assert_index_is_true(self.path, PARTITIONS)

    def feed(self, after: int = 0, through: int | None = None) -> list[tuple[int, int, str | None]]:
        """Read the log between two snapshots with our own reader; each change as (snapshot, id, v)."""
        table = self.table
        parts = slices(table.index.entries(after, table.newest_visible() if through is None else through))
        rows = [row for part in parts for batch in read_slice(self.log, part) for row in batch.to_pylist()]
        return sorted((row[COMMIT_VERSION], row["id"], row["v"]) for row in rows)

    def close(self) -> None:
        """Drop the writers' producers."""
        for publisher in self._publishers:
            publisher.discard()
        self._publishers.clear()

    def forget_groups(self) -> None:
        """Delete the register's groups, as a broker does with groups that were idle for long."""
        delete_groups(self.log.client, [self.log.group, self.log.tasks_group])

    def set_topic(self, settings: Mapping[str, str]) -> None:
        """Change settings of the topic, as an administrator does."""
        entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in settings.items()]
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result()

    def delete_topic(self) -> None:
        """Delete the topic."""
        delete_topic(self.log.client, self.topic)

    def remake_topic(self, partitions: int = PARTITIONS) -> None:
        """Delete the topic and make it again, empty."""
        self.delete_topic()
        make_topic(self.servers, self.topic, partitions)

    @contextmanager
    def stranger(self, transactional_id: str = "", **config: Any) -> Iterator[Producer]:
        """Yield a producer that is not ours; with an id, in an open transaction."""
        ids = {"transactional.id": transactional_id} if transactional_id else {}
        producer = Producer({"bootstrap.servers": self.servers, **ids, **config})
        if transactional_id:
            producer.init_transactions(20)
            producer.begin_transaction()
        yield producer
        producer.flush(PATIENCE_SECONDS)

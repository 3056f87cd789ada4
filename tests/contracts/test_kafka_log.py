"""What every Kafka log must do, in each format and with publishing tasks: in order, once, after any crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from log_system.gate import slices
from log_system.index import LogIndex
from log_system.kafka import published_positions
from log_system.kafka.client.topic import latest_offsets
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.reader.snapshot_reader import read_slice
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import CorruptedError, DataLostError, TableStoreError
from tablestore.context import TableContext
from tablestore.write.publish import publish_through, recover
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import Change, drain, drain_raw, make_table, publisher_of, write
from tests.harness.table_audit import assert_index_is_true, assert_log_is_table
from tests.harness.waiting import PATIENCE_SECONDS

PARTITIONS = 2


def changes(batch: int, rows: int = 10) -> list[Change]:
    return [(n, f"{batch}.{n}") for n in range(rows)]


class KafkaLogContract:
    """A log takes committed snapshots in order, once, from one owner at a time."""

    options: ClassVar[dict[str, Any]]

    @pytest.fixture
    def table(self, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> TableContext:
        self.servers, self.topic, self.path = kafka.bootstrap_servers, topic(), tmp_path / "t"
        return make_table(self.path, self.servers, self.topic, **self.options)

    @pytest.fixture
    def publisher(self, table: TableContext) -> Iterator[KafkaPublisher]:
        made = publisher_of(table)
        yield made
        made.discard()

    def commit(self, table: TableContext, batch: int) -> int:
        """Commit a snapshot that nobody publishes."""
        made = write(Writer(table, None), changes(batch))
        assert made is not None
        return made.id

    def recover(self, table: TableContext) -> None:
        """Recover as another process would."""
        other = publisher_of(table)
        recover(table, other)
        other.discard()

    def log(self) -> list[Change]:
        return sorted(change for partition in drain(self.servers, self.topic, PARTITIONS) for change in partition)

    def assert_log_is_table(self) -> None:
        assert_log_is_table(self.path, self.servers, self.topic, PARTITIONS)

    def test_a_snapshot_is_in_the_log_and_the_index_after_publish(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        snapshot = self.commit(table, 1)
        assert self.log() == []
        [entry] = publisher.publish([table.files.changes(snapshot, PARTITIONS)])
        assert (entry.snapshot, entry.rows) == (snapshot, 10)
        assert LogIndex(table.files.storage).get(snapshot) == entry
        assert self.log() == sorted(changes(1))

    def test_a_snapshot_published_twice_is_there_once(self, table: TableContext, publisher: KafkaPublisher) -> None:
        snapshot = self.commit(table, 1)
        first = publisher.publish([table.files.changes(snapshot, PARTITIONS)])
        assert publisher.publish([table.files.changes(snapshot, PARTITIONS)]) == first
        other = publisher_of(table)
        assert other.publish([table.files.changes(snapshot, PARTITIONS)]) == first
        other.discard()
        self.assert_log_is_table()

    def test_an_owner_that_was_replaced_publishes_nothing(self, table: TableContext, publisher: KafkaPublisher) -> None:
        publisher.take_over()
        newer = publisher_of(table)
        newer.take_over()
        snapshot = self.commit(table, 1)
        with pytest.raises(TableStoreError):
            publisher.publish([table.files.changes(snapshot, PARTITIONS)])
        assert not publisher.owns_log
        assert self.log() == []
        newer.publish([table.files.changes(snapshot, PARTITIONS)])
        newer.discard()
        self.assert_log_is_table()

    def test_a_snapshot_left_half_way_is_finished_by_the_next_owner(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        self.commit(table, 1)
        with failing(Sender, "position", hits=range(2, 3)), pytest.raises(Crash):
            recover(table, publisher)
        recover(table, publisher)
        self.assert_log_is_table()

    def test_all_that_is_missing_is_published_in_order(self, table: TableContext, publisher: KafkaPublisher) -> None:
        for batch in range(4):
            self.commit(table, batch)
        done = publish_through(table, publisher, table.files.latest())
        assert [entry.snapshot for entry in done] == [1, 2, 3, 4]
        self.assert_log_is_table()

    @pytest.mark.parametrize("hit", range(1, 5))
    def test_snapshots_that_are_published_together_are_listed_one_by_one_also_after_a_crash(
        self, table: TableContext, publisher: KafkaPublisher, hit: int
    ) -> None:
        """Who lists them, from memory or from the log, gives them the same ranges."""
        for batch in range(4):
            self.commit(table, batch)
        with failing(LogIndex, "put", hits=range(hit, hit + 1)), pytest.raises(Crash):
            recover(table, publisher)
        assert table.index.newest() == hit - 1
        # No call fails: they are counted. Each partition is scanned once, however many snapshots are to be listed.
        with failing(published_positions, "scan_ends", hits=range(0)) as scans:
            self.recover(table)
        assert scans() <= PARTITIONS
        assert table.index.newest() == 4
        assert_index_is_true(self.path, PARTITIONS)
        self.assert_log_is_table()

    def test_snapshots_before_one_that_cannot_be_published_are_published(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        for batch in range(4):
            self.commit(table, batch)
        lost = table.files.changes(3, PARTITIONS)
        for file in [file for files in lost.files.values() for file in files]:
            lost.storage.delete(file.path)
        with pytest.raises(DataLostError, match="snapshot 4 is committed but not yet in the log"):
            recover(table, publisher)
        assert table.index.newest() == 2

    def test_a_published_snapshot_without_index_entry_gets_it_back(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        for batch in range(3):
            self.commit(table, batch)
        recover(table, publisher)
        kept = table.index.get(3), table.index.get(2)
        table.index.delete([2, 3])
        fresh = TableContext.open(str(self.path))
        publisher.discard()
        self.recover(fresh)
        assert (fresh.index.get(3), fresh.index.get(2)) == kept
        self.assert_log_is_table()


class BrokerContract(KafkaLogContract):
    """What a Kafka log must survive besides."""

    def forget_group(self, table: TableContext) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_consumer_groups([table.log.settings.group])[table.log.settings.group].result()

    def test_a_register_that_the_broker_expired_is_read_from_the_log(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        self.commit(table, 1)
        with failing(LogIndex, "put", after=False), pytest.raises(Crash):
            recover(table, publisher)
        publisher.discard()
        self.forget_group(table)
        self.commit(table, 2)
        recover(table, publisher)
        self.assert_log_is_table()

    def test_an_expired_register_and_a_lost_index_are_rebuilt_from_the_log(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        for batch in range(3):
            self.commit(table, batch)
        recover(table, publisher)
        publisher.discard()
        self.forget_group(table)
        table.index.delete(table.index.snapshots()[1:])
        fresh = TableContext.open(str(self.path))
        publisher.discard()
        self.recover(fresh)
        self.assert_log_is_table()
        assert_index_is_true(self.path, PARTITIONS)

    def test_a_reader_finds_the_records_of_another_producer(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        self.commit(table, 1)
        recover(table, publisher)
        record = drain_raw(self.servers, self.topic, PARTITIONS)[0][0]
        stranger = Producer({"bootstrap.servers": self.servers})
        stranger.produce(self.topic, record.value(), record.key(), partition=0)
        assert stranger.flush(PATIENCE_SECONDS) == 0
        self.commit(table, 2)
        recover(table, publisher)
        own, disturbed = slices(table.index.entries(0, 1)), slices(table.index.entries(1, 2))
        assert sum(batch.num_rows for part in own for batch in read_slice(table.log.settings, part)) == 10
        with pytest.raises(CorruptedError, match="Another producer"):
            list(read_slice(table.log.settings, disturbed[0]))

    def test_aborted_transactions_at_the_end_of_the_log_hide_nothing(
        self, table: TableContext, publisher: KafkaPublisher
    ) -> None:
        self.commit(table, 1)
        recover(table, publisher)
        self.commit(table, 2)
        for _ in range(3):
            with failing(Sender, "position"), pytest.raises(Crash):
                recover(table, publisher)
        publisher.discard()
        self.forget_group(table)
        recover(table, publisher)
        self.assert_log_is_table()


class TestJsonLog(BrokerContract):
    options: ClassVar[dict[str, Any]] = {"bucket": PARTITIONS}

    def test_small_snapshots_share_a_transaction(self, table: TableContext, publisher: KafkaPublisher) -> None:
        for batch in range(4):
            self.commit(table, batch)
        recover(table, publisher)
        records = [len(partition) for partition in drain_raw(self.servers, self.topic, PARTITIONS)]
        assert sum(records) == 40
        ends = latest_offsets(table.log.settings.client, self.topic, read_committed=True)
        assert [ends[partition] for partition in range(PARTITIONS)] == [count + 1 for count in records]

    def test_a_large_snapshot_has_transactions_of_its_own(
        self, table: TableContext, publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tablestore.write.publish._TOGETHER_ROWS_MAX", 25)
        for batch, rows in enumerate((10, 10, 30, 10)):
            write(Writer(table, None), changes(batch, rows))
        with failing(KafkaPublisher, "publish", after=True, hits=range(2, 3)), pytest.raises(Crash):
            recover(table, publisher)
        assert table.index.newest() == 3
        self.recover(table)
        self.assert_log_is_table()


class TestJsonLogByTasks(BrokerContract):
    options: ClassVar[dict[str, Any]] = {
        "bucket": PARTITIONS,
        "publish__driver_rows_max": 3,
        "publish__transaction_rows_max": 2,
    }


class TestArrowLog(BrokerContract):
    options: ClassVar[dict[str, Any]] = {"bucket": PARTITIONS, "log__format": "arrow"}

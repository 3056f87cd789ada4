"""What every log system must do, asked only through ``log_system/base.py``: a new one adds a class here."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql.types import IntegerType

from log_system.base import LogIdentity
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, InvalidInputError, NotFoundError, TableStoreError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.evolution import AddColumn
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.expire_snapshots import Rule, expire
from tablestore.streaming.change_feed import Feed
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.local_writes import SCHEMA, Change, staged, write
from tests.harness.log_audit import repair, verify

PARTITIONS = 2
Given = tuple[int, int, str | None]
"""A change as a reader gets it: snapshot, key, value (None for a delete)."""


def upserts(batch: int, keys: range = range(10)) -> list[Change]:
    return [(key, f"{batch}.{key}") for key in keys]


class LogSystemContract:
    """Readers get each committed change once, in commit order, and nothing else."""

    system: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def table(self, tmp_path: Path, settings: dict[str, Any]) -> TableContext:
        return self.create(tmp_path / "t", settings)

    @pytest.fixture
    def writer(self, table: TableContext) -> Iterator[Writer]:
        writer = Writer(table, table.log.publisher())
        yield writer
        writer.discard()

    def create(self, path: Path, settings: dict[str, Any]) -> TableContext:
        given = {"bucket": PARTITIONS, "compaction.auto": False, **settings, **self.options}
        return create_drop.create(
            TableDefinition(str(path), SCHEMA, primary_key=["id"], log_system=self.system, options=given)
        )

    def open(self, table: TableContext) -> TableContext:
        """Open the table as another process does."""
        return TableContext.open(table.path)

    def commit(self, table: TableContext, changes: list[Change]) -> int:
        """Commit a snapshot as a writer does that dies before it publishes."""
        snapshot = write(Writer(self.open(table), None), changes)
        assert snapshot is not None
        return snapshot.id

    def recover(self, table: TableContext) -> None:
        """Recover as the next writer does."""
        table = self.open(table)
        publisher = table.log.publisher()
        recover(table, publisher)
        if publisher is not None:
            publisher.discard()

    def read(self, table: TableContext, after: int, through: int) -> list[Given]:
        """Read changes as the streaming read does, each split as a task does."""
        rows: list[Given] = []
        for split in Feed(self.open(table)).parts(after, through):
            for batch in pickle.loads(pickle.dumps(split)).read():
                for row in batch.to_pylist():
                    value = None if row[KIND] == RowKind.DELETE else row["v"]
                    rows.append((row[COMMIT_VERSION], row["id"], value))
        return rows

    def test_a_published_snapshot_is_the_newest_and_holds_its_changes(
        self, table: TableContext, writer: Writer
    ) -> None:
        assert table.log.newest() == 0
        write(writer, upserts(1))
        assert self.open(table).log.newest() == 1
        assert table.log.rows(1) == 10
        assert sorted(self.read(table, 0, 1)) == [(1, key, f"1.{key}") for key in range(10)]

    def test_any_range_of_snapshots_holds_exactly_its_changes_in_commit_order(
        self, table: TableContext, writer: Writer
    ) -> None:
        wanted: dict[int, list[Given]] = {}
        for batch in range(1, 5):
            changes = [*upserts(batch, range(batch, batch + 4)), (batch, None)]
            snapshot = write(writer, changes)
            assert snapshot is not None
            # Of a key that a write changes twice, the last change counts.
            wanted[snapshot.id] = sorted((snapshot.id, *change) for change in dict(changes).items())
        for after in range(4):
            for through in range(after + 1, 5):
                got = self.read(table, after, through)
                assert sorted(got, key=lambda row: row[:2]) == [
                    row for snapshot in range(after + 1, through + 1) for row in wanted[snapshot]
                ]
                by_key: dict[int, list[int]] = {}
                for snapshot, key, _ in got:
                    by_key.setdefault(key, []).append(snapshot)
                assert all(held == sorted(held) for held in by_key.values())

    def test_what_a_writer_left_unpublished_is_visible_once_after_recovery(self, table: TableContext) -> None:
        snapshots = [self.commit(table, upserts(batch)) for batch in (1, 2)]
        # Where a snapshot has to be published, a commit alone does not make it visible.
        is_published = table.log.publisher(None) is None
        assert self.open(table).log.newest() == (snapshots[-1] if is_published else 0)
        for _ in range(2):
            self.recover(table)
            assert self.open(table).log.newest() == snapshots[-1]
            assert sorted(self.read(table, 0, 2)) == sorted(
                (snapshot, key, f"{snapshot}.{key}") for snapshot in snapshots for key in range(10)
            )

    def test_writers_that_race_lose_and_repeat_nothing(self, table: TableContext) -> None:
        errors: list[TableStoreError] = []

        def run(number: int) -> None:
            opened = self.open(table)
            writer = Writer(opened, opened.log.publisher())
            try:
                for batch in range(4):
                    write(writer, upserts(100 * number + batch, range(10 * number, 10 * number + 3)))
            except TableStoreError as error:
                errors.append(error)
            finally:
                writer.discard()

        threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        self.recover(table)
        assert self.open(table).log.newest() == 12
        values = sorted(value or "" for _, _, value in self.read(table, 0, 12))
        assert values == sorted(
            f"{100 * n + batch}.{key}" for n in (1, 2, 3) for batch in range(4) for key in range(10 * n, 10 * n + 3)
        )
        assert verify(self.open(table)).ok

    def test_columns_that_were_added_are_null_in_older_changes(self, table: TableContext, writer: Writer) -> None:
        write(writer, upserts(1))
        alter(table, [AddColumn("w", IntegerType())], publish=writer.publish)
        rows = [
            row for split in Feed(self.open(table)).parts(0, 2) for batch in split.read() for row in batch.to_pylist()
        ]
        assert sorted((row["id"], row["v"], row["w"]) for row in rows) == [(n, f"1.{n}", None) for n in range(10)]

    def test_expired_changes_are_an_error_and_later_ones_are_not(self, table: TableContext, writer: Writer) -> None:
        for batch in range(1, 5):
            write(writer, upserts(batch))
        expire(self.open(table), [Rule(replaced_before_ms=1 << 60, keep_last=2, now_ms=1 << 60)])
        oldest = self.open(table).files.oldest()
        assert oldest > 1
        with pytest.raises(DataLostError):
            Feed(self.open(table)).parts(0, 4)
        assert {snapshot for snapshot, _, _ in self.read(table, oldest - 1, 4)} == set(range(oldest, 5))

    def test_verify_agrees_and_repair_does_nothing_to_a_whole_log(self, table: TableContext, writer: Writer) -> None:
        for batch in (1, 2):
            write(writer, upserts(batch))
        report = verify(self.open(table))
        assert (report.ok, report.pending) == (True, ())
        opened = self.open(table)
        publisher = opened.log.publisher()
        repaired = repair(opened, publisher)
        if publisher is not None:
            publisher.discard()
        assert repaired.ok
        assert repaired.actions == ()
        assert len(self.read(table, 0, 2)) == 20

    def test_uncommitted_records_are_shown_by_the_tail_only_if_the_log_says_so(
        self, table: TableContext, writer: Writer
    ) -> None:
        write(writer, upserts(1))
        if not table.log.shows_uncommitted:
            assert table.log.sink() is None
            with pytest.raises(InvalidInputError):
                table.log.tail()
            return
        sink = table.log.sink()
        assert sink is not None
        tail, committed = table.log.tail(), table.log.newest()
        starts = tail.ends()
        staged(Writer(table, None).stager(whole_buckets=True), upserts(9, range(70, 73)))
        ends = enumerate(zip(starts, tail.ends(), strict=True))
        splits = tail.splits([(p, start.offset, end.offset) for p, (start, end) in ends], newest=False)
        seen = [row["id"] for split in splits for batch in split.read() for row in batch.to_pylist()]
        assert sorted(seen) == [70, 71, 72]
        assert table.log.newest() == committed

    def test_offsets_cover_the_partitions_or_there_are_none(self, table: TableContext, writer: Writer) -> None:
        write(writer, upserts(1))
        offsets = table.log.offsets()
        assert [each.partition for each in offsets] in ([], list(range(PARTITIONS)))
        assert all(each.first <= each.end for each in offsets)
        assert table.log.partitions == PARTITIONS

    def test_the_watch_notices_that_the_log_was_deleted(
        self, table: TableContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("log_system.kafka.client.topic.LOOK_SECONDS", 0.0)
        watch, is_apart = table.log.watch(), bool(table.log.offsets())
        watch.look()
        assert table.log.storage.remove(
            table.spec.table_id, table.log.storage.identify(table.spec) or LogIdentity(), dropping=True,
            deleted=lambda: None,
        ) == (table.log.storage.name if is_apart else None)  # fmt: skip
        # A log in the table's files exists as long as the table, which readers check themselves.
        with pytest.raises(NotFoundError) if is_apart else nullcontext():
            watch.look()

    def test_a_dropped_table_leaves_room_for_another_of_the_same_log(
        self, table: TableContext, writer: Writer, settings: dict[str, Any]
    ) -> None:
        write(writer, upserts(1))
        writer.discard()
        create_drop.drop(table)
        with pytest.raises(NotFoundError):
            self.open(table)
        again = self.create(Path(table.path), settings)
        assert (again.log.newest(), again.spec.table_id == table.spec.table_id) == (0, False)
        other = Writer(again, again.log.publisher())
        write(other, upserts(7))
        other.discard()
        assert sorted(self.read(again, 0, 1)) == [(1, key, f"7.{key}") for key in range(10)]
        with pytest.raises(TableStoreError):
            write(writer, upserts(2))
        writer.discard()
        assert self.open(again).log.newest() == 1


class TestFiles(LogSystemContract):
    system = "files"

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {}


class OnKafka(LogSystemContract):
    system = "kafka"

    @pytest.fixture
    def settings(self, kafka: LocalKafka, topic: Callable[[], str]) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}


class TestKafkaJson(OnKafka):
    pass


class TestKafkaArrow(OnKafka):
    options: ClassVar[dict[str, Any]] = {"log.format": "arrow"}


class TestKafkaCompacted(OnKafka):
    options: ClassVar[dict[str, Any]] = {"log.compacted": True, "log.headers": "all"}


class TestKafkaSkippingForeignRecords(OnKafka):
    options: ClassVar[dict[str, Any]] = {"log.foreign-records": "skip"}


class TestKafkaEventual(OnKafka):
    options: ClassVar[dict[str, Any]] = {"log.consistency": "eventual"}

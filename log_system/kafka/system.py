"""The Kafka log system: a table's log in a topic with one partition per bucket."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from log_system.base import LogPublisher, LogTail, PartitionOffsets, TaskRunner
from log_system.index import IndexEntry
from log_system.kafka.audit.repair import repair, repair_transactional
from log_system.kafka.audit.verify import verify
from log_system.kafka.audit.verify_eventual import repair_eventual, verify_eventual
from log_system.kafka.bound_log import BoundLog
from log_system.kafka.client.topic import TopicWatch, earliest_offsets, latest_offsets
from log_system.kafka.publisher.at_least_once_publisher import AtLeastOncePublisher
from log_system.kafka.publisher.eager_producer import KafkaLogSinkFactory
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.publisher.partition_tasks import PartitionTask, publish_partition
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher, run_here
from log_system.kafka.reader.log_tail import KafkaTail
from log_system.kafka.reader.range_planner import REPLACING, plan
from log_system.kafka.record_limits import RecordCheck
from log_system.kafka.register import RegisterPosition
from log_system.report import Compared, Mended, Progress, RepairReport, Report
from snapshot.errors import InvalidInputError
from snapshot.records import LogSinkFactory, RowCheck, Split
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec

if TYPE_CHECKING:
    from snapshot.schema.evolution import Change


class TransactionalLog(BoundLog):
    """A log that shows whole, committed snapshots (``log.consistency=transactional``)."""

    publishes = True
    shows_uncommitted = False

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.settings.partitions

    def sink(self) -> LogSinkFactory | None:
        """Return None: changes are published after their commit."""
        return None

    def record_check(self) -> RowCheck:
        """Return the check against the largest record that the topic accepts."""
        return RecordCheck(self.settings)

    def check_columns(self, columns: pa.Schema) -> None:
        """Check that the log's format can hold these columns, which ``_kind`` follows."""
        self.settings.under(columns).codec()

    def check_changes(self, spec: TableSpec, changes: Sequence[Change]) -> None:
        """Accept all changes: a record's snapshot tells readers its schema."""

    def publisher(self, run_tasks: TaskRunner | None = None) -> LogPublisher:
        """Return a publisher that sends each snapshot in transactions."""
        return KafkaPublisher(self.settings, self.index, run_here if run_tasks is None else in_tasks(run_tasks))

    def newest(self) -> int:
        """Return the newest published snapshot."""
        return self.index.newest()

    def rows(self, snapshot: int) -> int:
        """Return the number of changes in a snapshot."""
        entry = self.index.get(snapshot)
        if entry is None or entry.kind in REPLACING:
            return self.files.snapshot(snapshot).rows
        return entry.rows

    def commit_of(self, snapshot: int) -> str:
        """Return the fingerprint of a snapshot's commit, without a read if the snapshot is the newest in the log."""
        seen = self.index.last_seen
        entry = seen if seen is not None and seen.snapshot == snapshot else self.index.get(snapshot)
        return self.files.fingerprint(snapshot) if entry is None else entry.commit

    def plan(self, after: int, through: int, columns: Columns) -> Sequence[Split] | None:
        """Return splits of the log, one per partition.

        Returns:
            The splits; None if the log lacks some of the changes, or may lack them: the table's files hold its own
            changes, and all of them. Readers cannot see which changes Kafka has removed from a compacted topic, among
            them deletes that nothing replaces, and have to skip other producers' records where they are told to.
        """
        log = self.settings
        return None if log.compacted or log.skips_foreign else plan(self, after, through, columns)

    def watch(self) -> TopicWatch:
        """Return the watch of the topic."""
        return TopicWatch(self.settings.client, self.settings.topic, self.settings.topic_id)

    def tail(self) -> LogTail:
        """Raise an error: readers wait for the commit."""
        msg = f"table {self.path!r}: its log is transactional, so changes are visible only after their commit."
        raise InvalidInputError(msg)

    def offsets(self) -> list[PartitionOffsets]:
        """Return the first and the last stable offset of each partition of the topic.

        Raises:
            UnavailableError: the broker does not respond.
        """
        client, topic = self.settings.client, self.settings.topic
        first, ends = earliest_offsets(client, topic), latest_offsets(client, topic, read_committed=True)
        return [PartitionOffsets(partition, first[partition], ends[partition]) for partition in sorted(ends)]

    def publishing_marks(self) -> list[int]:
        """Return the end of each partition, with records of open transactions."""
        ends = latest_offsets(self.settings.client, self.settings.topic, read_committed=False)
        return [ends[partition] for partition in sorted(ends)]

    def verify(
        self, progress: Progress | None = None, after: Compared | None = None, through: int | None = None
    ) -> Report:
        """Compare the log with the table; see ``audit/verify.py``.

        Raises:
            CorruptedError: another Delta writer has changed rows of a table with a key.
            InvalidInputError: another Delta writer has enabled an unsupported feature.
        """
        # Records are compared with the store's own commits only, so the newest snapshot must consist of these.
        self.files.layout(self.files.latest())
        return self._compare(progress, after, through)

    def repair(
        self, publisher: LogPublisher | None, recover: Callable[[], list[IndexEntry]], progress: Progress | None = None
    ) -> RepairReport:
        """Repair the topic, the log, its index and its register; see ``audit/repair.py``."""
        assert publisher is not None
        return repair(self, self._mend(publisher, recover, progress), self.verify, progress)

    def _compare(self, progress: Progress | None, after: Compared | None, through: int | None) -> Report:
        """Compare the snapshots in the log with the table, record by record."""
        return verify(self, progress, after, through)

    def _mend(
        self, publisher: LogPublisher, recover: Callable[[], list[IndexEntry]], progress: Progress | None
    ) -> Callable[[Sequence[int]], Mended]:
        """Return the function that rebuilds the index, the register and the end of the log."""
        return partial(repair_transactional, self, cast(KafkaPublisher, publisher), recover, progress)


class EventualLog(TransactionalLog):
    """A log that shows changes before they are committed (``log.consistency=eventual``).

    It converges to a table with a key. Of a table without one, it holds each committed change at least once.
    """

    shows_uncommitted = True

    def sink(self) -> KafkaLogSinkFactory:
        """Return the sink that sends changes while they are staged."""
        return KafkaLogSinkFactory(self.settings)

    def check_changes(self, spec: TableSpec, changes: Sequence[Change]) -> None:
        """Check that old records are still read correctly; see ``schema_changes.py``."""
        # PySpark takes a moment to import, and only changing columns needs its types.
        from log_system.kafka.schema_changes import check_decoded_by_name  # noqa: PLC0415

        check_decoded_by_name(self.path, spec, changes)

    def publisher(self, run_tasks: TaskRunner | None = None) -> LogPublisher:
        """Return a publisher that corrects the log after each commit, as far as a table without a key permits."""
        kind = EventualPublisher if self.spec.has_key else AtLeastOncePublisher
        return kind(self.settings, self.index, self.source(self.settings))

    def plan(self, after: int, through: int, columns: Columns) -> Sequence[Split] | None:
        """Return None: the log does not keep snapshots apart."""
        return None

    def tail(self) -> KafkaTail:
        """Return the reader of uncommitted records."""
        return KafkaTail(self.settings, self.files)

    def publishing_marks(self) -> list[int]:
        """Return nothing: writers send records all the time."""
        return []

    def _compare(self, progress: Progress | None, after: Compared | None, through: int | None) -> Report:
        """Compare the last record of each key with the newest snapshot, whatever ``through`` is."""
        return verify_eventual(self, progress, after)

    def _mend(
        self, publisher: LogPublisher, recover: Callable[[], list[IndexEntry]], progress: Progress | None
    ) -> Callable[[Sequence[int]], Mended]:
        """Return the function that corrects keys whose last record differs from the table, and rebuilds the index."""
        return partial(repair_eventual, self, cast(EventualPublisher, publisher))


def in_tasks(run_tasks: TaskRunner) -> Callable[[Sequence[PartitionTask]], list[RegisterPosition]]:
    """Return a function that publishes each partition in a task of ``run_tasks``."""

    def publish(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        results = run_tasks(tasks, lambda task: json.dumps(asdict(publish_partition(task))))
        return [RegisterPosition(**json.loads(result)) for result in results]

    return publish

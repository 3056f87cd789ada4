"""Publish the changes of committed snapshots to the log, in order and exactly once.

One publisher owns the log at a time. Ownership is the transactional id: a publisher that takes it over fences the
previous owner and aborts its open transaction (KIP-98). librdkafka lacks KIP-890, so a producer is never reused after
an error: it is discarded and the log is taken over again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from confluent_kafka import TopicPartition

from log_system.formats import LogFormat
from log_system.index import IndexEntry, LogIndex, OffsetRange
from log_system.kafka.client.admin_requests import missing
from log_system.kafka.client.connect import discard, discarding, flush, kafka_errors, send_offsets, take_over
from log_system.kafka.client.consumers import READER
from log_system.kafka.client.topic import TopicOffsets, earliest_offsets, is_gone, latest_offsets
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import (
    SnapshotEnds,
    caught_up,
    check_kept,
    check_topic_is,
    followed,
    register,
    tasks_token,
    topic_ends,
)
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.partition_tasks import PartitionTask, publish_partition
from log_system.kafka.record_limits import record_limit
from log_system.kafka.register import RegisterPosition
from snapshot.errors import CorruptedError, UnavailableError
from snapshot.messages import snapshots_from_to
from snapshot.records import ChangeSet, SentRange, Snapshot
from snapshot.threads import Threads

_THREADS_MAX = 8
_THREAD_ROWS_MIN = 10_000
"""The fewest changes that justify another thread."""
RunTasks = Callable[[Sequence[PartitionTask]], list[RegisterPosition]]
"""Runs one task per partition, each at least once, and returns their results in order."""
SentSnapshots = Mapping[int, Mapping[int, RegisterPosition]]
"""For each snapshot that was sent just now, its end in each partition."""


def run_here(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
    """Run publishing tasks in this process, for callers without a Spark session."""
    with Threads(_THREADS_MAX, "publish") as threads:
        return threads.map(publish_partition, tasks)


class KafkaPublisher:
    """Publishes snapshots to one table's log. Not thread-safe."""

    _replaces_entries = True
    """Every publisher writes the same index entry of a snapshot, so it does not matter whose stays."""

    def __init__(self, log: KafkaLog, index: LogIndex, run_tasks: RunTasks = run_here) -> None:
        """Create the publisher of ``log``; nothing connects before the first call."""
        self._log = log
        self._index = index
        self._run_tasks = run_tasks
        self._coded: pa.Schema | None = None
        self._codecs: list[LogFormat] = []
        self._producer: Any = None
        self._group: Any = None
        self._tasks_group: Any = None
        self._register: list[RegisterPosition] = []
        self._topic_id = ""
        self._token = uuid.uuid4().hex

    @property
    def owns_log(self) -> bool:
        """Whether this publisher has taken over the log and, as far as it knows, has not been fenced since."""
        return self._producer is not None

    @property
    def wait_seconds(self) -> float:
        """How long the broker may be unreachable before publishing fails, in seconds."""
        return self._log.client.wait_seconds

    @property
    def servers(self) -> str:
        """The bootstrap servers in the table's definition when this publisher was created."""
        return self._log.servers

    @property
    def newest(self) -> int:
        """The newest snapshot with at least one change in the log, according to the register read by ``take_over``."""
        return max((position.snapshot for position in self._register), default=0)

    @property
    def claimed(self) -> Sequence[tuple[int, str]]:
        """The last snapshot in each partition with its commit fingerprint (empty: unknown)."""
        return [(position.snapshot, position.commit) for position in self._register]

    def positions(self) -> Sequence[RegisterPosition]:
        """Return the register as known to this publisher, the log's owner."""
        return tuple(self._register)

    def take_over(self, *, check: bool = True) -> None:
        """Become the log's only publisher.

        1. Fence the previous publisher and abort its open transaction. A crash here leaves the log without an owner.
        2. If tasks of the previous publisher may be writing, or the broker has lost that information, replace their
           token, fence each task, and only then clear the token. The order matters: a task checks its token after it
           has fenced others. A crash in between leaves a token, so the next take-over fences the tasks again.
        3. Read what is published, now that no other publisher can change it.

        Args:
            check: reject a topic that ends before its published offsets; False only for repairing such a topic.

        Raises:
            UnavailableError: the broker does not respond.
            FencedError: yet another publisher has taken over in the meantime.
            NotFoundError: the topic was deleted.
            DataLostError: the topic was created again, or has lost published records.
        """
        self.discard()
        limit = record_limit(self._log.client, self._log.topic, fresh=True)
        log = self._log = replace(self._log, batch_bytes_max=None if limit is None else limit.batch_bytes)
        self._coded = None
        with kafka_errors(f"take over the log in topic {log.topic!r}", log.client):
            # Step 1.
            producer = log.producer()
            take_over(producer, log.client.wait_seconds)
            # Step 2.
            token, self._tasks_group = tasks_token(log)
            if token != "":
                # Check the topic first: if it does not exist, the broker rejects its offsets and the client retries
                # until the timeout.
                topic_ends(log)
                self._announce_tasks(producer, f"fenced-by-{self._token}")
                self._fence_tasks()
                self._announce_tasks(producer, "")
            # Step 3.
            with closing(log.client.consumer(log.group, **READER)) as consumer:
                self._group = consumer.consumer_group_metadata()
                topic = topic_ends(log)
                self._topic_id = topic.topic_id
                self._register = register(log, consumer, self._index)
                if check:
                    check_topic_is(log, topic, self._register, self._index.latest())
                    self._check_records(consumer, topic)
            self._producer = producer

    def publish(self, snapshots: Sequence[ChangeSet]) -> list[IndexEntry]:
        """Write snapshots to the log and the index, unless they are already there.

        All earlier snapshots must be published. Several snapshots, which follow each other, share one transaction.

        1. Send the changes that the log lacks: small snapshots in one transaction over all partitions, a large one by
           tasks. The register moves in the same transactions. A crash here leaves all or nothing of each transaction.
        2. Write the index entries, which open the gate. A crash before this leaves published snapshots that readers
           cannot see until the next publisher writes the entries.

        Raises:
            FencedError: another publisher has taken over.
            TableStoreError: the broker failed; this publisher must take over again.
        """
        with self._as_owner():
            # Step 1.
            ends = SnapshotEnds(self._log, snapshots, self._send(snapshots))
            # Step 2.
            return [self._list(changes, ends) for changes in snapshots]

    def expect(self, snapshot: int, sent: Mapping[int, SentRange]) -> None:
        """Do nothing: a transactional log holds no changes of a snapshot before it is published."""

    def mend(self) -> None:
        """Do nothing: readers of a transactional log see only committed changes."""

    def restore(self, positions: Mapping[int, RegisterPosition]) -> None:
        """Set the register of some partitions to positions found in the log, in a transaction of the log's owner.

        Raises:
            FencedError: another publisher has taken over.
            UnavailableError: the broker does not respond.
        """
        doing = f"restore the register of topic {self._log.topic!r}"
        with self._as_owner(), kafka_errors(doing, self._log.client, handle=self._producer):
            self._producer.begin_transaction()
            self._move_register(positions)

    def abort_hanging(self) -> None:
        """Abort transactions of this log's own publishers that are open though their coordinator has ended them.

        That is so in a partition whose broker has lost the marker at the end of a transaction. The coordinator does not
        write it again, but the marker of a later transaction of the same transactional id ends both.

        Raises:
            FencedError: another publisher has taken over.
            UnavailableError: the broker does not respond.
        """
        log = self._log
        with self._as_owner(), kafka_errors(f"abort open transactions in topic {log.topic!r}", log.client):
            written = topic_ends(log).offsets
            stable = latest_offsets(log.client, log.topic, read_committed=True)
            hidden = [partition for partition in range(log.partitions) if stable[partition] < written[partition]]
            if hidden:
                _abort_in(log, self._producer, hidden)
            for partition in hidden:
                with discarding(log.producer(partition)) as producer:
                    take_over(producer, log.client.wait_seconds)
                    _abort_in(log, producer, [partition])

    def discard(self) -> None:
        """Discard the producer; its open transaction is aborted by the next take-over or by the transaction timeout."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            discard(producer)

    def _check_records(self, consumer: Any, topic: TopicOffsets) -> None:
        """Check that the log still holds what the register says (``check_kept``), and follow it (``caught_up``)."""
        check_kept(self._log, consumer, self._register)
        for partition in followed(self._log, consumer, self._register, topic.offsets):
            self._register[partition] = caught_up(self._log, self._register[partition], partition)

    @contextmanager
    def _as_owner(self) -> Iterator[None]:
        """Own the log within the context; discard the producer after any error, as its transaction is then in doubt."""
        if not self.owns_log:
            self.take_over()
        try:
            yield
        except UnavailableError as error:
            self.discard()
            if is_gone(self._log.client, self._log.topic):
                raise missing(self._log.client, self._log.topic) from error
            raise
        except BaseException:
            self.discard()
            raise

    def _send(self, snapshots: Sequence[ChangeSet]) -> SentSnapshots:
        """Send the changes of snapshots that the log lacks, and return where they are."""
        lacking: list[tuple[ChangeSet, list[int]]] = []
        for changes in snapshots:
            snapshot, held = changes.snapshot.id, enumerate(self._register)
            if missing := [p for p, position in held if changes.rows(p) and not position.holds(snapshot)]:
                lacking.append((changes, missing))
        if sum(changes.rows(p) for changes, missing in lacking for p in missing) <= self._log.driver_rows_max:
            return self._publish_here(lacking)
        for changes, missing in lacking:
            self._publish_by_tasks(changes, missing)
        return {}

    def _publish_here(self, lacking: Sequence[tuple[ChangeSet, list[int]]]) -> SentSnapshots:
        """Publish snapshots to the partitions that lack them, in one transaction."""
        if not lacking:
            return {}
        ids = [changes.snapshot.id for changes, _ in lacking]
        doing = f"publish {snapshots_from_to(ids[0], ids[-1])} to topic {self._log.topic!r}"
        with kafka_errors(doing, self._log.client, handle=self._producer):
            self._producer.begin_transaction()
            senders = [self._produce(changes, missing) for changes, missing in lacking]
            flush(self._producer, self._log.client.wait_seconds)
            sent = {
                snapshot: {partition: sender.position() for partition, sender in each.items()}
                for snapshot, each in zip(ids, senders, strict=True)
            }
            moved = {partition: position for each in sent.values() for partition, position in each.items()}
            self._move_register(moved)
        return sent

    def _produce(self, changes: ChangeSet, partitions: Sequence[int]) -> dict[int, Sender]:
        """Queue a snapshot's changes, in the open transaction; return the sender of each partition."""
        rows = sum(changes.rows(partition) for partition in partitions)
        threads = max(1, min(len(partitions), _THREADS_MAX, rows // _THREAD_ROWS_MIN))
        senders: dict[int, Sender] = {}

        def send(share: Sequence[int], codec: LogFormat) -> None:
            for partition in share:
                senders[partition] = Sender(self._log, self._producer, codec, partition)
                position = self._register[partition].part_of(changes.snapshot)
                senders[partition].send(changes, position, changes.rows(partition))

        shares = [partitions[number::threads] for number in range(threads)]
        codecs = [self._codec_of(changes.schema, number) for number in range(threads)]
        if threads == 1:
            send(partitions, codecs[0])
        else:
            with Threads(threads, "publish") as pool:
                pool.map(send, shares, codecs)
        return senders

    def _publish_by_tasks(self, changes: ChangeSet, missing: Sequence[int]) -> None:
        """Publish with one task per partition, each in its own transactions under its partition's transactional id.

        The token records that tasks may be writing. A take-over replaces the token before it fences the tasks, and a
        task checks the token after it has fenced others, so a task of a fenced publisher publishes nothing.
        """
        self._announce_tasks(self._producer, self._token)
        tasks = [PartitionTask(self._log, changes, p, self._token, self._register[p]) for p in missing]
        for partition, position in zip(missing, self._run_tasks(tasks), strict=True):
            self._register[partition] = position
        self._announce_tasks(self._producer, "")

    def _codec_of(self, schema: pa.Schema, thread: int = 0) -> LogFormat:
        """Return a thread's format object for changes with the columns that the table had in their snapshot."""
        if self._coded != schema:
            self._coded, self._codecs = schema, []
        while len(self._codecs) <= thread:
            self._codecs.append(self._log.under(schema).codec())
        return self._codecs[thread]

    def _announce_tasks(self, producer: Any, token: str) -> None:
        """Commit, in an owner's transaction, the token of the tasks that may write; a fenced owner cannot do this."""
        doing = f"say whose tasks may write to topic {self._log.topic!r}"
        with kafka_errors(doing, self._log.client, handle=producer):
            producer.begin_transaction()
            word = TopicPartition(self._log.topic, 0, 0, token)
            send_offsets(self._log.client, producer, [word], self._tasks_group)
            producer.commit_transaction(self._log.client.wait_seconds)

    def _move_register(self, positions: Mapping[int, RegisterPosition]) -> None:
        """Commit the open transaction with the register at other positions in some partitions."""
        self._send_offsets(positions)
        self._producer.commit_transaction(self._log.client.wait_seconds)
        for partition, position in positions.items():
            self._register[partition] = position

    def _send_offsets(self, positions: Mapping[int, RegisterPosition]) -> None:
        topic = self._log.topic
        offsets = [TopicPartition(topic, p, position.end, position.metadata()) for p, position in positions.items()]
        send_offsets(self._log.client, self._producer, offsets, self._group)

    def _fence_tasks(self) -> None:
        """Take over each partition's transactional id, which aborts the tasks' open transactions."""

        def fence(partition: int) -> None:
            with kafka_errors(f"fence tasks of topic {self._log.topic!r}", self._log.client):
                take_over(self._log.producer(partition), self._log.client.wait_seconds)

        with Threads(_THREADS_MAX, "fence") as threads:
            threads.map(fence, range(self._log.partitions))

    def _list(self, changes: ChangeSet, ends: SnapshotEnds) -> IndexEntry:
        """Write and return the index entry of a snapshot that the log holds.

        A publisher that was suspended before this step may find that another one has written the entry, and that the
        previous entry, which defines the start of the range, has expired. Then nothing is written.

        Raises:
            CorruptedError: the previous entry is lost.
        """
        snapshot = changes.snapshot.id
        before = self._index.get(snapshot - 1)
        expired = False
        if before is None:
            listed = self._index.get(snapshot)
            if listed is not None:
                return listed
            expired = self._index.has_expired(snapshot)
            if snapshot > 1 and not expired:
                msg = (
                    f"topic {self._log.topic!r}: snapshot {snapshot - 1} has no entry in the log index, so the "
                    f"offsets where snapshot {snapshot} begins are unknown. log.repair() rebuilds the index."
                )
                raise CorruptedError(msg)
        entry = self._entry(changes, before.ends if before is not None else self._log_starts(), ends)
        return entry if expired else self._index.put(entry, replaces=self._replaces_entries)

    def _log_starts(self) -> Sequence[int]:
        found = earliest_offsets(self._log.client, self._log.topic)
        return [found[partition] for partition in range(self._log.partitions)]

    def _entry(self, changes: ChangeSet, starts: Sequence[int], ends: SnapshotEnds) -> IndexEntry:
        """Return a snapshot's index entry.

        ``starts`` are the ends of the previous snapshot; ``ends`` say where snapshots end in partitions that have moved
        on.
        """
        snapshot = changes.snapshot
        ranges: list[OffsetRange] = []
        for partition, start in enumerate(starts):
            rows = changes.rows(partition)
            if not rows:
                ranges.append(OffsetRange(start, start, 0, 0))
                continue
            held = self._register[partition]
            position = held if held.snapshot == snapshot.id else ends.find(partition, start, snapshot.id)
            end, records = (start, 0) if position is None else (position.end, position.records)
            ranges.append(OffsetRange(start, end, records, rows))
        return self._described(snapshot, ranges)

    def _described(self, snapshot: Snapshot, ranges: Sequence[OffsetRange]) -> IndexEntry:
        return IndexEntry(
            snapshot.id,
            snapshot.timestamp_ms,
            snapshot.operation,
            tuple(ranges),
            table=self._log.table_id,
            commit=snapshot.fingerprint,
            topic=self._topic_id,
        )


def _abort_in(log: KafkaLog, producer: Any, partitions: Sequence[int]) -> None:
    """Begin a transaction in some partitions and abort it; a partition is part of it only with a record."""
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(log.topic, b"", b"", partition)
    flush(producer, log.client.wait_seconds)
    producer.abort_transaction(log.client.wait_seconds)

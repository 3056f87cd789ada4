"""Settling an eventual log: after a commit, see that the log's last word on every key is the committed one.

Changes are in the log before they are committed, in whatever order tasks and writers sent them. A snapshot is settled
when the log, folded up to the end of its range, holds the committed value of every key that the range or the snapshot
touches. Only the log's owner settles, one after the other: repairs go out in a transaction that also moves the
register, so an owner that was replaced repairs nothing with old values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from log_system.index import IndexEntry, LogIndex, OffsetRange
from log_system.kafka.client.connect import flush, kafka_errors
from log_system.kafka.client.topic import latest_offsets
from log_system.kafka.log import KafkaLog
from log_system.kafka.publisher.eager_producer import RecordStream
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.register import RegisterPosition
from snapshot.records import ChangeSet, SentRange, Snapshot


class RepairSource(Protocol):
    """Knows what is committed."""

    def unsettled(self, snapshot: int) -> Sequence[ChangeSet]:
        """Give the changes of a snapshot and of every later one that is committed, in order."""
        ...

    def wrong(
        self, partition: int, start: int, end: int, unsettled: Sequence[ChangeSet], *, whole: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Give the changes that make the log right: the committed value, or a delete, of each key that needs it.

        Args:
            partition: the log partition, which is the bucket.
            start: offset from which the log is read.
            end: offset at which that ends; the caller sends the changes after it.
            unsettled: snapshots whose keys must have their last word between the two.
            whole: every key of the bucket must.
        """
        ...


class EventualPublisher(KafkaPublisher):
    """Settles snapshots whose changes are in the log since before their commit. Not for several threads at once."""

    def __init__(self, log: KafkaLog, index: LogIndex, repairs: RepairSource) -> None:
        """Settle in ``log``; nothing is connected before the first call."""
        super().__init__(log, index)
        self._repairs = repairs
        self._expected: tuple[int, Mapping[int, SentRange]] = (-1, {})

    @property
    def log(self) -> KafkaLog:
        """The log."""
        return self._log

    def expect(self, snapshot: int, sent: Mapping[int, SentRange]) -> None:
        """Hear where this writer's own snapshot is: if nothing else is there, the log need not be read."""
        self._expected = snapshot, sent

    def mend(self) -> None:
        """Repair what attempts that never committed have left after the last settled snapshot.

        The register stays: there is no snapshot to which the range belongs. It becomes part of the next one's.

        Raises:
            FencedError: another publisher has taken over.
            TableStoreError: the broker failed; this publisher must take over again.
        """
        with self._as_owner():
            ends = self._log_ends()
            dirty = {p: held.end for p, held in enumerate(self._register) if ends[p] > held.end}
            self._repair(dirty, ends, (), None)

    def reconcile_all(self, newest: Snapshot) -> Mapping[int, int]:
        """Make the log's last word on every key of the table the committed one, reading all of the log.

        Needs no register that is true; moves it to the newest snapshot. A crash leaves the log as it was, or right.

        Args:
            newest: the newest committed snapshot.

        Returns:
            For each partition that had something wrong, how many changes were sent.

        Raises:
            FencedError: another publisher has taken over.
            TableStoreError: the broker failed; take over and begin again.
        """
        with self._as_owner():
            return self._repair(dict.fromkeys(range(self._log.partitions), 0), self._log_ends(), (), newest, whole=True)

    def _send(self, changes: ChangeSet) -> None:
        """Settle a snapshot, and every later one with it, unless that is done.

        What is wrong is repaired in a transaction that also moves the register: a crash before its end leaves the log
        as it was; after it, the next publisher writes the index entry from the register. The entry's range begins where
        the one before ends; where several snapshots are settled at once, the last of them has the range.
        """
        if all(position.holds(changes.snapshot.id) for position in self._register):
            return
        unsettled = self._repairs.unsettled(changes.snapshot.id)
        ends = self._log_ends()
        dirty = {p: held.end for p, held in enumerate(self._register) if not self._is_clean(p, ends[p], unsettled)}
        self._repair(dirty, ends, unsettled, unsettled[-1].snapshot)

    def _log_ends(self) -> list[int]:
        found = latest_offsets(self._log.client, self._log.topic, read_committed=True)
        return [found[partition] for partition in range(self._log.partitions)]

    def _is_clean(self, partition: int, end: int, unsettled: Sequence[ChangeSet]) -> bool:
        """Tell whether a partition holds this writer's records of the one snapshot to settle, and nothing else.

        An attempt's records are in order and without gap (the producer is idempotent), so as many offsets as records
        leave no room for others. A repair before them has left one offset, that of its transaction's end.
        """
        held = self._register[partition]
        starts = (held.end, held.end + 1) if held.records else (held.end,)
        filled = [changes.snapshot.id for changes in unsettled if changes.rows(partition)]
        if not filled:
            return end in starts
        snapshot, sent = self._expected
        own = sent.get(partition)
        return (
            filled == [snapshot]
            and own is not None
            and own.first in starts
            and own.end - own.first == own.records
            and own.end == end
        )

    def _repair(
        self,
        dirty: Mapping[int, int],
        ends: Sequence[int],
        unsettled: Sequence[ChangeSet],
        settled: Snapshot | None,
        *,
        whole: bool = False,
    ) -> Mapping[int, int]:
        """Send what is wrong, in transactions of bounded size; the last one moves the register to ``settled``.

        Args:
            dirty: partitions to look at, and the offsets from which; what retention has removed is passed over.
            ends: for each partition, where to stop.
            unsettled: snapshots whose keys must be right after it.
            settled: the newest of them; None leaves the register as it is.
            whole: every key must be right after it.

        Returns:
            For each partition to which something was sent, how many changes.
        """
        log = self._log
        held_from = self._log_starts() if dirty else ()
        with kafka_errors(f"repair the log in topic {log.topic!r}", log.client):
            streams: dict[int, RecordStream] = {}
            split: set[int] = set()
            sent: Counter[int] = Counter()
            rows, is_open = 0, False
            for partition, start in dirty.items():
                first = max(start, held_from[partition])
                for batch in self._repairs.wrong(partition, first, ends[partition], unsettled, whole=whole):
                    if not is_open:
                        self._producer.begin_transaction()
                        is_open = True
                    if partition not in streams:
                        streams[partition] = RecordStream(log.topic, partition, self._producer)
                    streams[partition].send(self._codec_of(batch.schema).encode(batch))
                    sent[partition] += batch.num_rows
                    rows += batch.num_rows
                    if rows >= log.transaction_rows_max:
                        self._producer.commit_transaction(log.client.wait_seconds)
                        split |= set(streams)
                        rows, is_open, streams = 0, False, {}
            if settled is None and not is_open:
                return sent
            if not is_open:
                self._producer.begin_transaction()
            flush(self._producer, log.client.wait_seconds)
            moved = [
                self._moved(p, ends[p], None if p in split else streams.get(p), settled) for p in range(log.partitions)
            ]
            if settled is not None:
                self._send_offsets(moved, range(log.partitions))
            self._producer.commit_transaction(log.client.wait_seconds)
        if settled is not None:
            self._register = moved
        return sent

    def _moved(
        self, partition: int, end: int, stream: RecordStream | None, settled: Snapshot | None
    ) -> RegisterPosition:
        """Give where a partition's range ends: after the repair if it follows at once, else before it.

        What others have sent in between may be wrong again, so it is left to the next range, with the repair.
        """
        held = self._register[partition]
        snapshot, commit = (held.snapshot, held.commit) if settled is None else (settled.id, settled.fingerprint)
        if stream is not None:
            sent = stream.sent()
            if sent.first == end and sent.end - sent.first == sent.records:
                return RegisterPosition(snapshot, 0, sent.records, done=True, end=sent.end, commit=commit)
        return RegisterPosition(snapshot, 0, 0, done=True, end=end, commit=commit)

    def _entry(self, changes: ChangeSet, starts: Sequence[int]) -> IndexEntry:
        """Describe the range of a settled snapshot; it counts offsets, since others' records may be among them."""
        snapshot = changes.snapshot
        ranges: list[OffsetRange] = []
        for partition, start in enumerate(starts):
            held = self._register[partition]
            end = max(start, held.end) if held.snapshot == snapshot.id else start
            ranges.append(OffsetRange(start, end, end - start, changes.rows(partition)))
        return self._described(snapshot, ranges)

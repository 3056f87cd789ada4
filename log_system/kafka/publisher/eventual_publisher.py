"""Settle an eventual log: after a commit, make the last record of every key in the log hold the committed value.

Changes are in the log before they are committed, in whatever order tasks and writers sent them. A snapshot is settled
when the log, replayed up to the end of the snapshot's range, yields the committed value of every key that occurs in the
range or in the snapshot. Only the log's owner settles snapshots. It sends repairs in a transaction that also moves the
register, so a fenced owner cannot repair anything with old values.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from log_system.base import RepairSource
from log_system.index import IndexEntry, LogIndex, OffsetRange
from log_system.kafka.client.connect import flush, kafka_errors
from log_system.kafka.client.topic import TopicOffsets, stable_ends
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import (
    SnapshotEnds,
    check_topic_is,
    replaced,
    shortened_partitions,
    topic_ends,
)
from log_system.kafka.publisher.eager_producer import RecordStream
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher, SentSnapshots
from log_system.kafka.register import RegisterPosition
from snapshot.records import ChangeSet, LogEnd, SentRange, Snapshot

logger = logging.getLogger("tablestore")


class EventualPublisher(KafkaPublisher):
    """Settles snapshots whose changes were sent to the log before their commit. Not thread-safe."""

    _replaces_entries = False
    """Where a snapshot ends depends on who settled it with which others; the next entry begins where this one ends."""

    def __init__(self, log: KafkaLog, index: LogIndex, repairs: RepairSource) -> None:
        """Create the publisher of ``log``; nothing connects before the first call."""
        super().__init__(log, index)
        self._repairs = repairs
        self._expected: tuple[int, Mapping[int, SentRange]] = (-1, {})

    @property
    def log(self) -> KafkaLog:
        """The log to which this publisher publishes."""
        return self._log

    def expect(self, snapshot: int, sent: Mapping[int, SentRange]) -> None:
        """Record where this writer sent its own snapshot: if nothing else is there, the log need not be read."""
        self._expected = snapshot, sent

    def mend(self) -> None:
        """Repair records that uncommitted attempts left after the last settled snapshot.

        The register does not move, because the repaired range belongs to no snapshot. The range becomes part of the
        next snapshot's range.

        Raises:
            FencedError: another publisher has taken over.
            TableStoreError: the broker failed; this publisher must take over again.
        """
        with self._as_owner():
            ends = self._log_ends()
            dirty = {p: held.end for p, held in enumerate(self._register) if ends[p].offset > held.end}
            self._repair(dirty, ends, (), None)

    def reconcile_all(self, newest: Snapshot) -> Mapping[int, int]:
        """Read the whole log and repair every key of the table whose last record does not hold the committed value.

        Does not rely on the register, and moves it to the newest snapshot. A crash leaves the log unchanged, partly
        repaired or fully repaired; running this again completes it.

        Returns:
            The number of changes sent to each partition that needed repairs.

        Raises:
            FencedError: another publisher has taken over.
            TableStoreError: the broker failed; take over and start again.
        """
        with self._as_owner():
            ends = self._log_ends(check=False)
            return self._repair(dict.fromkeys(range(self._log.partitions), 0), ends, (), newest, whole=True)

    def _send(self, snapshots: Sequence[ChangeSet]) -> SentSnapshots:
        """Settle snapshots and all later committed snapshots, unless already done.

        Repairs are sent in a transaction that also moves the register. A crash before its commit leaves the register
        unchanged; after a crash that follows the commit, the next publisher writes the index entry from the register.
        The entry's range starts where the previous one ends. If several snapshots are settled at once, the last one
        gets the range.
        """
        if unsettled := self._unsettled(snapshots):
            ends = self._log_ends()
            dirty = {
                p: held.end for p, held in enumerate(self._register) if not self._is_clean(p, ends[p].offset, unsettled)
            }
            self._repair(dirty, ends, unsettled, unsettled[-1].snapshot)
        return {}

    def _unsettled(self, snapshots: Sequence[ChangeSet]) -> Sequence[ChangeSet]:
        """Return the first of the snapshots that is not settled, and all later committed snapshots; none if all are."""
        for snapshot in (changes.snapshot.id for changes in snapshots):
            if not all(position.holds(snapshot) for position in self._register):
                return self._repairs.changes_from(snapshot)
        return ()

    def _check_records(self, consumer: Any, topic: TopicOffsets) -> None:
        """Do nothing: the records of an eventual log carry no positions."""

    def _log_ends(self, *, check: bool = True) -> list[LogEnd]:
        """Return where each partition ends; ``check`` that none has lost what is settled."""
        log = self._log
        found = stable_ends(log.client, log.topic)[: log.partitions]
        if check:
            if any(end.offset < held.end for end, held in zip(found, self._register, strict=True)):
                # An open transaction hides the end, or the broker has lost it.
                check_topic_is(log, topic_ends(log), self._register, None)
            for partition in shortened_partitions(log, [held.log_end for held in self._register], found):
                raise replaced(log, partition, self._register[partition].end - 1)
        return found

    def _is_clean(self, partition: int, end: int, unsettled: Sequence[ChangeSet]) -> bool:
        """Return whether a partition needs no repair: its new records are exactly this writer's for the one snapshot.

        A partition without new records is clean too if the snapshots to settle have no changes in it. An attempt's
        records are contiguous (the producer is idempotent), so if there are as many offsets as records, there are no
        other records. A preceding repair leaves one additional offset, its transaction marker.
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
        ends: Sequence[LogEnd],
        unsettled: Sequence[ChangeSet],
        settled: Snapshot | None,
        *,
        whole: bool = False,
    ) -> Mapping[int, int]:
        """Send repairs in transactions of bounded size; the last transaction moves the register to ``settled``.

        Args:
            dirty: the partitions to read and the offset to start from. If retention has removed records after it, their
                keys are unknown, so every key of the partition is made correct.
            ends: for each partition, the offset at which to stop, with its leader epoch.
            unsettled: snapshots whose keys must be correct afterwards.
            settled: the newest snapshot that is settled afterwards; None leaves the register unchanged.
            whole: whether every key must be correct afterwards.

        Returns:
            The number of changes sent to each partition that needed repairs.
        """
        log = self._log
        held_from = self._log_starts() if dirty else ()
        with kafka_errors(f"repair the log in topic {log.topic!r}", log.client, handle=self._producer):
            streams: dict[int, RecordStream] = {}
            split: set[int] = set()
            sent: Counter[int] = Counter()
            rows, is_open = 0, False
            for partition, start in dirty.items():
                first = max(start, held_from[partition])
                every = whole or self._has_lost(partition, start, first)
                for batch in self._repairs.wrong(partition, first, ends[partition].offset, unsettled, whole=every):
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
            # What was sent just now may be in a later leader epoch.
            after = self._log_ends(check=False) if streams else ends
            moved = {
                p: replace(
                    self._moved(p, ends[p].offset, None if p in split else streams.get(p), settled),
                    epoch=(after if p in streams else ends)[p].epoch,
                )
                for p in range(log.partitions)
            }
            if settled is None:
                self._producer.commit_transaction(log.client.wait_seconds)
            else:
                self._move_register(moved)
        return sent

    def _has_lost(self, partition: int, start: int, first: int) -> bool:
        """Return whether records after the last settled snapshot are gone; ``first`` is the first offset that is not.

        Readers may have read them, and attempts that were never committed may have sent them.
        """
        held = self._register[partition]
        if first <= (held.end + 1 if held.records and start == held.end else start):
            return False
        logger.warning(
            "topic %r, partition %d: retention removed offsets %d to %d before they were compared with the table. "
            "Rows of the table that the rest of the partition does not hold are sent again. Keys that only a failed "
            "write has sent are unknown: readers that read the removed offsets need a new checkpoint.",
            self._log.topic,
            partition,
            start,
            first - 1,
        )
        return True

    def _moved(
        self, partition: int, end: int, stream: RecordStream | None, settled: Snapshot | None
    ) -> RegisterPosition:
        """Return the position at the end of a partition's range: after the repair if it directly follows, else before.

        Records that others sent in between may be wrong again, so they and the repair are left to the next range.
        """
        held = self._register[partition]
        snapshot, commit = (held.snapshot, held.commit) if settled is None else (settled.id, settled.fingerprint)
        if stream is not None:
            sent = stream.sent()
            if sent.first == end and sent.end - sent.first == sent.records:
                return RegisterPosition(snapshot, 0, sent.records, done=True, end=sent.end, commit=commit)
        return RegisterPosition(snapshot, 0, 0, done=True, end=end, commit=commit)

    def _entry(self, changes: ChangeSet, starts: Sequence[int], ends: SnapshotEnds) -> IndexEntry:
        """Return the index entry of a settled snapshot; ``records`` counts offsets, as others may have sent records."""
        snapshot = changes.snapshot
        ranges: list[OffsetRange] = []
        for partition, start in enumerate(starts):
            held = self._register[partition]
            end = max(start, held.end) if held.snapshot == snapshot.id else start
            ranges.append(OffsetRange(start, end, end - start, changes.rows(partition)))
        return self._described(snapshot, ranges)

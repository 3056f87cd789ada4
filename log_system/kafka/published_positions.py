"""Read the register, which says how far each partition is published, from one of three sources.

1. The offsets of the table's consumer group move with each transaction and are exact, but brokers expire the offsets of
   an idle group (``offsets.retention.minutes``, 7 days).
2. The headers of the partition's last records, read from where the log index ends, hold the same information.
3. If retention has removed those records too, the log index decides: every snapshot that it lists is published.

A broker that loses the end of the group's offsets, but not that of the log, sets the register back. The headers of the
records that follow then say how far each partition is published (``caught_up``).

Each function raises ``UnavailableError`` if the broker does not respond.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from log_system.index import IndexEntry, LogIndex
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.cluster import group_offsets, shortened
from log_system.kafka.client.connect import kafka_errors
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.errors import NOTHING_THERE, codes, is_unavailable
from log_system.kafka.client.messages import Records, Wanted
from log_system.kafka.client.range_reader import BatchSize, read_records
from log_system.kafka.client.topic import TopicOffsets, earliest_offsets, latest_of, latest_offsets, topic_id
from log_system.kafka.log import KafkaLog
from log_system.kafka.register import RegisterPosition
from snapshot.errors import DataLostError, UnavailableError
from snapshot.records import ChangeSet, LogEnd

logger = logging.getLogger("tablestore")
_ANEW = (
    "The topic was recreated, or the broker lost records: what was published is gone from the log. The table's files "
    "hold every row: log.repair() publishes them again, into a topic with one partition a bucket."
)
_POLL_SECONDS: Final = 0.5
_UNKNOWN: Final = codes("_UNKNOWN_PARTITION")
_REMEDY: Final = "Try again; a longer log.retention gives more time."
_MESSAGES: Final = Wanted(messages=True)
_WARNED: Final[set[tuple[str, int]]] = set()
"""Table ids and partition counts for which this process has already warned about more partitions than buckets."""


def register(log: KafkaLog, consumer: Any, index: LogIndex) -> list[RegisterPosition]:
    """Return how far each partition is published."""
    positions = group_positions(log, consumer, range(log.partitions))
    if all(positions):
        return [p for p in positions if p]
    latest = index.latest()
    found: list[RegisterPosition] = []
    for partition, position in enumerate(positions):
        if position is None:
            start = latest.ends[partition] if latest else 0
            snapshot, commit = (latest.snapshot, latest.commit) if latest else (0, "")
            known = RegisterPosition(snapshot, 0, 0, done=True, end=start, commit=commit)
            found.append(last_position(log, partition, start) or known)
        else:
            found.append(position)
    return found


def topic_ends(log: KafkaLog) -> TopicOffsets:
    """Return the end offset of each partition, including open transactions.

    Raises:
        NotFoundError: the topic does not exist.
        DataLostError: the topic has fewer partitions than the table has buckets.
    """
    found = latest_of(log.client, log.topic, read_committed=False)
    ends = found.offsets
    if len(ends) < log.partitions:
        msg = f"topic {log.topic!r} has {len(ends)} partitions, the table {log.partitions} buckets. {_ANEW}"
        raise DataLostError(msg)
    if len(ends) > log.partitions and (log.table_id, len(ends)) not in _WARNED:
        # Each take-over runs this code; warn only once per process.
        _WARNED.add((log.table_id, len(ends)))
        logger.warning(
            "topic %r has %d partitions, the table %d buckets; nothing is published to the others.",
            log.topic,
            len(ends),
            log.partitions,
        )
    return found


def check_topic_is(
    log: KafkaLog, topic: TopicOffsets, positions: Sequence[RegisterPosition], latest: IndexEntry | None
) -> None:
    """Check that the topic is the one published to and that no partition ends before its published offset.

    A topic that was deleted and created again starts at offset 0. New records could then be taken for published ones,
    or occupy offsets that the log index assigns to older snapshots.

    Raises:
        DataLostError: another topic has the same name, or a partition ends before its published offset.
    """
    ends: Mapping[int, int] = topic.offsets
    for partition, position in enumerate(positions):
        published = max(position.end, latest.ends[partition] if latest else 0)
        if ends[partition] < published:
            raise shorter(log, partition, published, ends[partition])
    if latest is not None and is_another(latest.topic, topic.topic_id):
        msg = (
            f"topic {log.topic!r}: expected the topic with id {latest.topic}, to which snapshot {latest.snapshot} was "
            f"published, got one with id {topic.topic_id}. {_ANEW}"
        )
        raise DataLostError(msg)


def check_topic_is_own(log: KafkaLog) -> None:
    """Check, for what goes to the log without a transaction, that the topic is the one of the table's definition.

    Raises:
        DataLostError: another topic has the same name, perhaps that of a table that was created since.
        NotFoundError: there is none.
    """
    found = topic_id(log.client, log.topic)
    if is_another(log.topic_id, found):
        msg = f"topic {log.topic!r}: expected the topic with id {log.topic_id}, got one with id {found}. {_ANEW}"
        raise DataLostError(msg)


def check_kept(log: KafkaLog, consumer: Any, positions: Sequence[RegisterPosition]) -> None:
    """Check that the last published record of each partition is still there and committed.

    A broker that loses the end of a log (an unclean leader election, a crash before the disk had it) appends what comes
    next at the same offsets, so that the end alone does not show the loss. If only the end of the last transaction is
    lost, the next publisher would commit its records, or abort them.

    Not checked is what retention has removed, what an open transaction of another producer hides, and what Kafka may
    have compacted away. ``consumer`` reads only what is committed, and reports the end of partitions.

    Raises:
        DataLostError: another record is there, or none.
    """
    last = {p: held.end - 1 for p, held in enumerate(positions) if held.records}
    for partition, message in _first(log, consumer, last):
        is_last = _is_last(log, positions[partition], message)
        if not is_last and not _may_be_gone(log, partition, message, last[partition]):
            raise replaced(log, partition, last[partition])


def followed(log: KafkaLog, consumer: Any, positions: Sequence[RegisterPosition], ends: Mapping[int, int]) -> set[int]:
    """Return the partitions that hold committed records after the register's position.

    ``consumer`` is read-committed and reports the end of partitions; ``ends`` include what is in open transactions.
    """
    longer = {p: held.end for p, held in enumerate(positions) if held.is_short_of(ends[p])}
    return {partition for partition, message in _first(log, consumer, longer) if message.error() is None}


def _first(log: KafkaLog, consumer: Any, offsets: Mapping[int, int]) -> Iterator[tuple[int, Any]]:
    """Yield the first message at or after an offset of each partition; one with an error if nothing is there.

    Partitions in which an open transaction hides what is there are left out.

    Raises:
        KafkaException: the broker responds with an error.
    """
    if not offsets:
        return
    waiting = dict(offsets)
    until = time.monotonic() + log.client.wait_seconds
    # Without this, the client looks the topic up only when it scans its topics, once a second.
    consumer.list_topics(log.topic, log.client.wait_seconds)
    consumer.assign([TopicPartition(log.topic, partition, offset) for partition, offset in waiting.items()])
    while waiting:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            waiting = {p: offset for p, offset in waiting.items() if not _is_hidden(log, consumer, p, offset)}
            if waiting and time.monotonic() > until:
                seconds = f"{log.client.wait_seconds:g} s"
                msg = f"read the last published records of topic {log.topic!r}: no answer in {seconds}."
                raise UnavailableError(msg)
        elif message.partition() in waiting:
            if message.error() is not None and message.error().code() not in NOTHING_THERE:
                raise KafkaException(message.error())
            del waiting[message.partition()]
            yield message.partition(), message
    consumer.unassign()


def caught_up(log: KafkaLog, position: RegisterPosition, partition: int) -> RegisterPosition:
    """Return a partition's position according to its records, if some follow the register's position.

    The broker has then lost the register's last moves, though they were part of the transactions with the records.
    """
    # What open transactions of other producers hide is not the table's: its own have ended.
    stable = latest_offsets(log.client, log.topic, read_committed=True)[partition]
    later = last_position(log, partition, position.end, stable)
    if later is None:
        return position
    logger.warning(
        "topic %r, partition %d: the register says that snapshot %d ends at offset %d, and snapshot %d follows, up to "
        "offset %d: the broker has lost the register's end. The log counts.",
        log.topic,
        partition,
        position.snapshot,
        position.end,
        later.snapshot,
        later.end,
    )
    return later


def is_another(known: str, found: str) -> bool:
    """Return whether two Kafka topic ids identify different topics; an empty (unknown) id matches any."""
    return bool(known and found) and known != found


def shorter(log: KafkaLog, partition: int, published: int, end: int) -> DataLostError:
    """Return the error for a partition that ends before its published offset."""
    return DataLostError(
        f"topic {log.topic!r}, partition {partition}: published up to offset {published}, but it ends at {end}. {_ANEW}"
    )


def _is_last(log: KafkaLog, held: RegisterPosition, message: Any) -> bool:
    """Return whether a message, the first one from ``held.end - 1`` on, is the partition's last published record."""
    if message.error() is not None:
        return False
    found = RegisterPosition.from_headers(message.offset(), message.headers(), log.table_id)
    return found == held and (found.commit == held.commit or not held.commit)


def _may_be_gone(log: KafkaLog, partition: int, message: Any, last: int) -> bool:
    """Return whether the record at offset ``last``, instead of which a message was found, is hidden or was removed."""
    if message.offset() <= last:
        # Nothing can be read at the offset, or another record is there.
        return message.error() is not None
    if log.compacted or earliest_offsets(log.client, log.topic)[partition] > last:
        return True
    # The policy may have been changed, and then a delete is removed after some time.
    shape = describe_topic(log.client, log.topic)
    return shape is not None and shape.compacted


def _is_hidden(log: KafkaLog, consumer: Any, partition: int, offset: int) -> bool:
    """Return whether an open transaction hides what is at an offset; False if the partition's leader does not answer.

    If the leader has died, the client asks it until the time is over, or knows no such partition (librdkafka 2.16).
    """
    try:
        end = consumer.get_watermark_offsets(TopicPartition(log.topic, partition), _POLL_SECONDS)[1]
    except KafkaException as error:
        if not (is_unavailable(error) or error.args[0].code() in _UNKNOWN):
            raise
        return False
    return int(end) <= offset


def shortened_partitions(log: KafkaLog, reached: Sequence[LogEnd], now: Sequence[LogEnd]) -> list[int]:
    """Return the partitions of a log that have lost what they had in a leader epoch that is over; see ``shortened``.

    ``reached`` is an earlier end of each partition; of those ``now``, only the epochs are used.
    """
    was, found = ({(log.topic, partition): end for partition, end in enumerate(ends)} for ends in (reached, now))
    return sorted(partition for _, partition in shortened(log.client, f"{log.group}-ends", was, found))


def replaced(log: KafkaLog, partition: int, offset: int) -> DataLostError:
    """Return the error for a partition that no longer holds its last published record."""
    return DataLostError(
        f"topic {log.topic!r}, partition {partition}: the last published record, at offset {offset}, is not there "
        f"any more, or not committed. {_ANEW}"
    )


def group_positions(log: KafkaLog, consumer: Any, partitions: Iterable[int]) -> list[RegisterPosition | None]:
    """Return the positions in the group's offsets; None for a partition without one.

    The consumer is ``read_committed``, so it waits for open transactions that move the offsets.
    """
    return [
        RegisterPosition.from_metadata(committed.offset, committed.metadata)
        for committed in _group_offsets(log, consumer, partitions)
    ]


def tasks_token(log: KafkaLog) -> tuple[str | None, Any]:
    """Read which publisher's tasks may be writing.

    Returns:
        The token of the publisher that started the tasks, and the consumer group metadata needed to change the token.
        The token is empty if no tasks are running, and None if the broker has no offset, which may have expired.
    """
    with closing(log.client.consumer(log.tasks_group)) as consumer:
        committed = _group_offsets(log, consumer, [0])[0]
        return (committed.metadata or "") if committed.offset >= 0 else None, consumer.consumer_group_metadata()


def _group_offsets(log: KafkaLog, consumer: Any, partitions: Iterable[int]) -> list[TopicPartition]:
    asked = [TopicPartition(log.topic, partition) for partition in partitions]
    return group_offsets(f"read the register of topic {log.topic!r}", log.client, consumer, asked)


def last_position(log: KafkaLog, partition: int, start: int, end: int | None = None) -> RegisterPosition | None:
    """Return the last position carried by a record from ``start`` to ``end``; None if no record there carries one."""
    found: RegisterPosition | None = None
    for position in _positions(log, partition, start, end):
        found = position
    return found


class SnapshotEnds:
    """Where published snapshots that follow each other end in each partition: as sent just now, or as the log says."""

    def __init__(
        self, log: KafkaLog, snapshots: Sequence[ChangeSet], sent: Mapping[int, Mapping[int, RegisterPosition]]
    ) -> None:
        """Keep what is known: by snapshot, the partitions to which it was sent just now, with its end."""
        self._log = log
        self._last = snapshots[-1].snapshot.id
        self._sent = sent
        self._scanned: dict[int, Mapping[int, RegisterPosition]] = {}

    def find(self, partition: int, start: int, snapshot: int) -> RegisterPosition | None:
        """Return the end of a snapshot; None if retention has removed it.

        A partition is scanned once for all snapshots from the first that is asked for, which begins at ``start``.
        """
        sent = self._sent.get(snapshot, {}).get(partition)
        if sent is not None:
            return sent
        if partition not in self._scanned:
            self._scanned[partition] = scan_ends(self._log, partition, start, self._last)
        return self._scanned[partition].get(snapshot)


def scan_ends(log: KafkaLog, partition: int, start: int, last: int) -> Mapping[int, RegisterPosition]:
    """Return the ends of published snapshots, up to snapshot ``last``, according to the records from an offset on."""
    ends: dict[int, RegisterPosition] = {}
    for position in _positions(log, partition, start):
        if position.snapshot > last:
            break
        if position.done:
            ends[position.snapshot] = position
            if position.snapshot == last:
                break
    return ends


def committed_records(
    log: KafkaLog,
    partition: int,
    start: int,
    end: int | None,
    *,
    wanted: Wanted = _MESSAGES,
    batch: BatchSize | None = None,
) -> Iterator[Records]:
    """Yield a partition's committed records from an offset, or from its first offset if that is later.

    Args:
        log: the log.
        partition: the partition.
        start: the first offset.
        end: the offset to stop at; None for the end of the partition, with what is in open transactions. The reader
            then waits for these to end.
        wanted: which parts of the records to return; the client's messages by default.
        batch: how many records to return together; None for the default.

    Raises:
        DataLostError: retention has removed the first offset just now.
        UnavailableError: the broker does not respond, or a transaction stays open.
    """
    with kafka_errors(f"read topic {log.topic!r}", log.client):
        low = earliest_offsets(log.client, log.topic)[partition]
        # Ask for the end explicitly: the consumer takes the start of the first open transaction for the end.
        high = latest_offsets(log.client, log.topic, read_committed=False)[partition] if end is None else end
    part = FetchRange(log.topic, partition, max(start, low), high)
    if part.start < part.end:
        yield from read_records(log.client, f"{log.group}-scan", part, wanted, remedy=_REMEDY, batch=batch)


def _positions(log: KafkaLog, partition: int, start: int, end: int | None = None) -> Iterator[RegisterPosition]:
    """Yield the positions that committed records carry, from an offset to another or to the end of the partition."""
    for records in committed_records(log, partition, start, end):
        for message in records.messages:
            position = RegisterPosition.from_headers(message.offset(), message.headers(), log.table_id)
            if position is not None:
                yield position

"""Read the records of an offset range, a few megabytes at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.consumers import ANSWER_SECONDS, CONSUMERS, FetchRange
from log_system.kafka.client.errors import codes
from log_system.kafka.client.messages import Records, Take, Wanted, joined, taking
from log_system.kafka.client.topic import LOOK_SECONDS, LOOK_SECONDS_MAX, TopicWatch, latest_offsets
from snapshot.errors import DataLostError, UnavailableError

logger: Final = logging.getLogger("tablestore")
_STEP_SECONDS: Final = 0.05
"""The wait of one request. Transaction markers occupy offsets, so fewer records may arrive than were requested."""
_OVERHEAD_BYTES: Final = 150


@dataclass(frozen=True)
class BatchSize:
    """How many records are returned, and so decoded, together.

    Attributes:
        first: number of records of the first request, when their size is not known yet.
        records: maximum number of records.
        bytes: approximate maximum size in bytes.
    """

    first: int = 1_000
    records: int = 40_000
    bytes: int = 8 << 20

    def room(self, count: int, size: int) -> int:
        """Return how many more records of the same average size fit behind those there are; 0 if there are enough."""
        if count >= self.records or size >= self.bytes:
            return 0
        return max(1, min((self.bytes - size) * count // max(1, size), self.records - count))


BATCH: Final = BatchSize()
"""The default. A DuckDB query takes one or two milliseconds however few records it has; larger batches exceed the
processor's cache (measured)."""
_REMEDY: Final = "Set 'properties.auto.offset.reset' to 'earliest' to go on with what is left, or start a new query."
_TRANSACTION: Final = (
    " Another producer's transaction may be open: see it with Kafka's kafka-transactions.sh --find-hanging, and end it "
    "with --abort."
)
_OUT_OF_RANGE: Final = codes("OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET")


def read_records(
    client: KafkaClient,
    group: str,
    part: FetchRange,
    wanted: Wanted,
    *,
    isolation: str = "read_committed",
    remedy: str = _REMEDY,
    batch: BatchSize | None = None,
) -> Iterator[Records]:
    """Yield the records of a range. Offsets without a record are skipped.

    Requests never exceed the number of remaining offsets or records, so that the client does not wait for more.

    Args:
        client: the cluster.
        group: the consumer group, which identifies the cached connection; nothing is committed for it.
        part: the range.
        wanted: which parts of the records to return.
        isolation: ``read_committed`` or ``read_uncommitted``.
        remedy: advice for the error message if retention has removed the range's first offset.
        batch: how many records to return together; None for the default.

    Raises:
        DataLostError: retention has removed the range's first offset, the topic was deleted and created again, or the
            partition ends before the range does.
        NotFoundError: the topic was deleted.
        UnavailableError: the broker does not respond, or a transaction stays open.
    """
    doing = f"read {part}"
    watch = TopicWatch(client, part.topic, part.topic_id)
    batch = batch or BATCH
    held: list[Records] = []
    position, step, count, size, silent_since, looked = part.start, batch.first, 0, 0, time.monotonic(), 0.0
    left = part.end - part.start if part.records is None else part.records
    with (
        kafka_errors(doing, client),
        CONSUMERS.lend(client, group, isolation, in_bulk=not wanted.messages, count=left) as consumer,
        taking(consumer, part.topic, part.partition, wanted) as take,
    ):
        consumer.assign([TopicPartition(part.topic, part.partition, part.start)])
        while position < part.end and left > 0:
            records, reached = _within(take, min(part.end - position, left, step), doing, remedy)
            position = max(position, reached, int(records.offsets[-1]) + 1 if records is not None else 0)
            if records is not None or reached >= 0:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since >= ANSWER_SECONDS:
                hint = _TRANSACTION if isolation == "read_committed" else ""
                msg = f"{doing}: no record arrived in {ANSWER_SECONDS:.0f} s, at offset {position}.{hint}"
                raise UnavailableError(msg)
            elif time.monotonic() - max(silent_since, looked) >= LOOK_SECONDS:
                # The client reports no error for a deleted topic or a lost end; their partitions just return nothing.
                looked = time.monotonic()
                watch.look()
                _check_end(client, part)
            if records is None:
                continue
            inside = records.before(part.end)
            held.append(inside)
            count += len(inside)
            left -= len(inside)
            size += inside.size + _OVERHEAD_BYTES * len(inside)
            step = batch.room(count, size)
            if not step:
                step = count
                yield joined(held)
                held, count, size = [], 0, 0
        if count:
            yield joined(held)
        consumer.unassign()


def _check_end(client: KafkaClient, part: FetchRange) -> None:
    """Check that the partition reaches to the end of a range; ignore a broker that does not answer."""
    try:
        end = latest_offsets(client.within(LOOK_SECONDS_MAX), part.topic, read_committed=False)[part.partition]
    except UnavailableError as error:
        logger.debug("look at the end of topic %r: %s", part.topic, error)
        return
    if end < part.end:
        msg = (
            f"read {part}: the partition ends at offset {end}. The broker has lost the end of the log, as after an "
            "unclean leader election. For the log of a table, log.repair() publishes what is missing again."
        )
        raise DataLostError(msg)


def _within(take: Take, count: int, doing: str, remedy: str) -> tuple[Records | None, int]:
    try:
        return take(count, _STEP_SECONDS)
    except KafkaException as error:
        if error.args[0].code() not in _OUT_OF_RANGE:
            raise
        msg = (
            f"{doing}: the topic no longer holds them; its retention has overtaken this reader, or it was recreated. "
            f"{remedy}"
        )
        raise DataLostError(msg) from error

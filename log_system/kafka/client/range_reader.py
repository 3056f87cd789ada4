"""Read the records of an offset range, a few megabytes at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.consumers import ANSWER_SECONDS, CONSUMERS, FetchRange
from log_system.kafka.client.errors import codes
from log_system.kafka.client.messages import Records, Take, joined, taking
from log_system.kafka.client.topic import LOOK_SECONDS, TopicWatch
from snapshot.errors import DataLostError, UnavailableError

_STEP_SECONDS: Final = 0.05
"""The wait of one request. Transaction markers occupy offsets, so fewer records may arrive than were requested."""
_FIRST_RECORDS: Final = 1_000
_BATCH_RECORDS: Final = 40_000
_BATCH_BYTES: Final = 8 << 20
"""Records are decoded together up to these bounds. A DuckDB query takes one or two milliseconds however few records it
has; larger batches exceed the processor's cache (measured)."""
_OVERHEAD_BYTES: Final = 150
_REMEDY: Final = "Set 'properties.auto.offset.reset' to 'earliest' to go on with what is left, or start a new query."
_OUT_OF_RANGE: Final = codes("OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET")


def read_records(
    client: KafkaClient,
    group: str,
    part: FetchRange,
    isolation: str,
    *,
    all_keys: bool,
    messages: bool,
    times: bool = False,
    remedy: str = _REMEDY,
) -> Iterator[Records]:
    """Yield the records of a range. Offsets without a record are skipped.

    Requests never exceed the number of remaining offsets, so that the client does not wait for more records.

    Args:
        client: the cluster.
        group: the consumer group, which identifies the cached connection; nothing is committed for it.
        part: the range.
        isolation: ``read_committed`` or ``read_uncommitted``.
        all_keys: return all keys, not only those of batches with NULL values.
        messages: return the client's own messages too, for their headers or timestamps.
        times: return each record's timestamp.
        remedy: advice for the error message if retention has removed the range's first offset.

    Raises:
        DataLostError: retention has removed the range's first offset, or the topic was deleted and created again.
        NotFoundError: the topic was deleted.
        UnavailableError: the broker does not respond.
    """
    doing = f"read {part}"
    watch = TopicWatch(client, part.topic, part.topic_id)
    held: list[Records] = []
    position, step, count, size, silent_since = part.start, _FIRST_RECORDS, 0, 0, time.monotonic()
    with (
        kafka_errors(doing, client),
        CONSUMERS.lend(client, group, isolation, in_bulk=not messages) as consumer,
        taking(consumer, part.topic, part.partition, all_keys=all_keys, messages=messages, times=times) as take,
    ):
        consumer.assign([TopicPartition(part.topic, part.partition, part.start)])
        while position < part.end:
            records, reached = _within(take, min(part.end - position, step), doing, remedy)
            position = max(position, reached, int(records.offsets[-1]) + 1 if records is not None else 0)
            if records is not None or reached >= 0:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since >= ANSWER_SECONDS:
                msg = f"{doing}: no record arrived in {ANSWER_SECONDS:.0f} s, at offset {position}."
                raise UnavailableError(msg)
            elif time.monotonic() - silent_since >= LOOK_SECONDS:
                # The client reports no error for a deleted topic; its partitions just return nothing.
                watch.look()
            if records is None:
                continue
            inside = records.before(part.end)
            held.append(inside)
            count += len(inside)
            size += inside.size + _OVERHEAD_BYTES * len(inside)
            # Request as many records as fit into the batch, if they have the same average size as those before.
            step = max(1, min((_BATCH_BYTES - size) * count // max(1, size), _BATCH_RECORDS - count))
            if count >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                step = count
                yield joined(held)
                held, count, size = [], 0, 0
        if count:
            yield joined(held)
        consumer.unassign()


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

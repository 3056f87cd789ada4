"""Reads the records of a range of offsets, a few megabytes at a time."""

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
"""Markers of transactions leave gaps, so that fewer records may come than a range has offsets."""
_FIRST_RECORDS: Final = 1_000
_BATCH_RECORDS: Final = 40_000
_BATCH_BYTES: Final = 8 << 20
"""Records are decoded together up to these bounds: a query of DuckDB takes a millisecond or two, however few they are;
with more than this the processor's cache is too small (measured)."""
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
    """Read the records of a range. Offsets without a record are passed over.

    Asking for no more records than the range may hold keeps the client from waiting for more.

    Args:
        client: the cluster.
        group: names the connection; nothing is committed for it.
        part: the range.
        isolation: ``read_committed`` or ``read_uncommitted``.
        all_keys: keys are needed, not just where a value is NULL.
        messages: so are the client's own messages, for their headers or timestamps.
        times: so is each record's time.
        remedy: what to do where retention has removed the range's first offset.

    Raises:
        DataLostError: retention has removed the range's first offset, or the topic was deleted and created again.
        NotFoundError: the topic was deleted.
        UnavailableError: the broker does not answer.
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
                # To the client, a partition of a topic that is gone is only silent.
                watch.look()
            if records is None:
                continue
            inside = records.before(part.end)
            held.append(inside)
            count += len(inside)
            size += inside.size + _OVERHEAD_BYTES * len(inside)
            # As many as the batch has room for, if they are as large as those before.
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

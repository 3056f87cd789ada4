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
"""The longest wait of one request."""
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
_REMEDY: Final = "Set 'properties.auto.offset.reset' to 'earliest' to continue with what is left, or start a new query."
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
    batch = batch or BATCH
    held: list[Records] = []
    position, step, count, size, silence = part.start, batch.first, 0, 0, _Silence(client, part, isolation)
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
                silence.ends()
            else:
                silence.lasts(doing, position)
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


class _Silence:
    """How long a partition has given no record, whether its brokers answer questions about it or not.

    The client reports no error for a deleted topic, a lost end or brokers that are away; it just returns nothing.
    """

    def __init__(self, client: KafkaClient, part: FetchRange, isolation: str) -> None:
        self._client = client
        self._part = part
        self._hint = _TRANSACTION if isolation == "read_committed" else ""
        self._watch = TopicWatch(client, part.topic, part.topic_id)
        self._since = time.monotonic()
        self._looked = 0.0
        self._is_away = False

    def ends(self) -> None:
        """Note that something has arrived."""
        self._since, self._is_away = time.monotonic(), False

    def lasts(self, doing: str, position: int) -> None:
        """Look now and then for what the silence may mean.

        Raises:
            DataLostError: the topic was deleted and created again, or the partition ends before the range does.
            NotFoundError: the topic was deleted.
            UnavailableError: the brokers answer and have given no record for ``ANSWER_SECONDS``, or they have not
                answered for as long as the client waits for them, if that is longer.
        """
        now = time.monotonic()
        most = max(ANSWER_SECONDS, self._client.wait_seconds) if self._is_away else ANSWER_SECONDS
        if now - self._since >= most:
            hint = self._hint if not self._is_away else f" {self._client.bootstrap_servers} does not answer."
            msg = f"{doing}: no record arrived in {most:.0f} s, at offset {position}.{hint}"
            raise UnavailableError(msg)
        if now - max(self._since, self._looked) < LOOK_SECONDS:
            return
        self._looked, was_away = now, self._is_away
        self._watch.look()
        self._is_away = not self._reaches_end()
        if was_away and not self._is_away:
            # Now the client connects again.
            self._since = time.monotonic()
        elif self._is_away and not was_away:
            logger.warning("%s: %s does not answer; waiting for it.", doing, self._client.bootstrap_servers)

    def _reaches_end(self) -> bool:
        """Return whether the brokers answer, and check that the partition reaches to the end of the range."""
        part, client = self._part, self._client.within(LOOK_SECONDS_MAX)
        try:
            end = latest_offsets(client, part.topic, read_committed=False)[part.partition]
        except UnavailableError as error:
            logger.debug("look at the end of topic %r: %s", part.topic, error)
            return False
        if end < part.end:
            msg = (
                f"read {part}: the partition ends at offset {end}. The broker has lost the end of the log, as after an "
                "unclean leader election. For the log of a table, log.repair() publishes what is missing again."
            )
            raise DataLostError(msg)
        return True


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

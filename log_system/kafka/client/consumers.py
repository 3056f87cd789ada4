"""Cached consumers that outlive a Spark task, for reading messages of one partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from log_system.kafka.client.connect import KafkaClient, Setting
from log_system.thread_local_cache import ThreadLocalCache

ANSWER_SECONDS: Final = 30.0
READER: Final[dict[str, Setting]] = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}
"""Settings of a consumer that reads up to the end of a partition and waits for nothing there."""
_AHEAD: Final = "queued.min.messages"
_SHORT_RECORDS: Final = 50_000
"""The client fetches this many records ahead. Most of them are after the end of a shorter range and are thrown away."""
_SHORT: Final[dict[str, Setting]] = {_AHEAD: 1_000}


class CachedConsumers:
    """A cache of consumers by client and group; each consumer is used by one reader at a time."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._kept = ThreadLocalCache[tuple[KafkaClient, str, str, bool, bool], Any](lambda consumer: consumer.close())

    @contextmanager
    def lend(
        self, client: KafkaClient, group: str, isolation: str = "read_committed", *, in_bulk: bool, count: int
    ) -> Iterator[Any]:
        """Lend a cached or new consumer. It returns to the cache unless the reader fails or is abandoned.

        An abandoned reader (a generator not run to its end) is closed when Python collects it, at any time and in any
        thread. A lent consumer is therefore removed from the cache, so that no other reader can get it.

        Args:
            client: the cluster.
            group: the consumer group.
            isolation: ``read_committed`` or ``read_uncommitted``.
            in_bulk: messages are read directly from partition queues. These queues no longer feed the consumer, so
                such a consumer cannot be shared with readers that call ``consume``.
            count: how many records are to be read at most.
        """
        is_short = count < _SHORT_RECORDS and _AHEAD not in client.config
        key = (client, group, isolation, in_bulk, is_short)
        consumer = self._kept.borrow(key)
        if consumer is None:
            # fetch.wait.max.ms is short because a fetch waiting at the end of one slice delays the first fetch of the
            # next one.
            settings = READER | (_SHORT if is_short else {}) | {"isolation.level": isolation}
            consumer = client.consumer(group, **settings)
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        self._kept.give_back(key, consumer)

    def close(self) -> None:
        """Close this thread's cached consumers, before it waits for long."""
        self._kept.clear()


CONSUMERS: Final = CachedConsumers()


@dataclass(frozen=True)
class FetchRange:
    """A range of offsets in one partition.

    Attributes:
        topic: the topic.
        partition: the partition.
        start: the first offset.
        end: the offset after the last one.
        topic_id: the topic's id; empty accepts any topic of that name.
        records: how many records are to be read at most; None for all.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    records: int | None = None

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end} of partition {self.partition} of topic {self.topic!r}"


def consume(consumer: Any, count: int, seconds: float) -> tuple[list[Any], int]:
    """Wait for a message, or for the end of the partition, and return the messages that there are, at most ``count``.

    Returns:
        The messages, and the partition's end offset if it was reached, else -1.
    """
    # A call waits until there are as many as are asked for, even at the end of the partition.
    messages = consumer.consume(1, seconds)
    if messages and count > 1:
        messages += consumer.consume(count - 1, 0)
    reached = -1
    for message in filter(Message.error, messages):
        if message.error().code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no public name for it
            raise KafkaException(message.error())
        reached = message.offset()
    return messages if reached < 0 else [m for m in messages if m.error() is None], reached

"""Takes messages of one partition, over connections that outlive a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from log_system.kafka.client.connect import KafkaClient, Setting
from log_system.kafka.client.thread_local_cache import ThreadLocalCache

ANSWER_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 0.5
_READER: Final[dict[str, Setting]] = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}


class CachedConsumers:
    """Connections by client and group, each used by one reader at a time."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._kept = ThreadLocalCache[tuple[KafkaClient, str, str, bool], Any](close=lambda consumer: consumer.close())

    @contextmanager
    def lend(
        self, client: KafkaClient, group: str, isolation: str = "read_committed", *, in_bulk: bool
    ) -> Iterator[Any]:
        """Lend a consumer, kept from before or new. It is kept again unless the reader fails or is left halfway.

        A reader that is left halfway ends when Python collects it, whenever that is and in whatever thread. So while it
        has its consumer, nobody else is given that one.

        Args:
            client: the cluster.
            group: the consumer group.
            isolation: ``read_committed`` or ``read_uncommitted``.
            in_bulk: messages are taken past the consumer, from the queues of its partitions, which no longer come to
                the consumer itself; so such a one is of no use to who takes them from the consumer.
        """
        key = (client, group, isolation, in_bulk)
        consumer = self._kept.borrow(key)
        if consumer is None:
            # A fetch that waits at the end of the last slice holds up the first fetch of the next one.
            consumer = client.consumer(group, **_READER, **{"isolation.level": isolation})
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        self._kept.give_back(key, consumer)


CONSUMERS: Final = CachedConsumers()


@dataclass(frozen=True)
class FetchRange:
    """Messages of one partition.

    Attributes:
        topic: the topic.
        partition: the partition.
        start: the first offset.
        end: the offset after the last.
        topic_id: the topic's id; empty accepts any topic of that name.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end} of partition {self.partition} of topic {self.topic!r}"


def consume(consumer: Any, count: int, seconds: float = _WAIT_SECONDS) -> tuple[list[Any], int]:
    """Take up to ``count`` messages; tell where the partition ends if that is reached, else -1.

    The client waits for all of the time unless so many are there, also at the end of the partition.
    """
    messages = consumer.consume(count, seconds)
    reached = -1
    for message in filter(Message.error, messages):
        if message.error().code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no public name for it
            raise KafkaException(message.error())
        reached = message.offset()
    return messages if reached < 0 else [m for m in messages if m.error() is None], reached

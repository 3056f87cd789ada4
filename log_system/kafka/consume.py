"""Takes messages of one partition, over connections that outlive a task."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from log_system.kafka.client import KafkaClient, Setting

ANSWER_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 0.5
_READER: Final[dict[str, Setting]] = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}
_CONSUMERS_MAX: Final = 4


class Consumers(threading.local):
    """Connections by client and group: Spark reuses its Python workers, and connecting costs more than a small read."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._open: OrderedDict[tuple[KafkaClient, str, str], Any] = OrderedDict()

    def take(self, client: KafkaClient, group: str, isolation: str = "read_committed") -> Any:
        """Give the consumer for a group, made when it is asked for first."""
        key = (client, group, isolation)
        if key not in self._open:
            # A fetch that waits at the end of the last slice holds up the first fetch of the next one.
            self._open[key] = client.consumer(group, **_READER, **{"isolation.level": isolation})
            while len(self._open) > _CONSUMERS_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return self._open[key]

    def forget(self, client: KafkaClient, group: str, isolation: str = "read_committed") -> None:
        """Close a consumer that has failed."""
        consumer = self._open.pop((client, group, isolation), None)
        if consumer is not None:
            consumer.close()


CONSUMERS: Final = Consumers()
"""Those of this process, for each thread its own: a consumer reads one slice at a time."""


@dataclass(frozen=True)
class OffsetRange:
    """Messages of one partition.

    Attributes:
        topic: the topic.
        partition: the partition.
        start: the first offset.
        end: the offset after the last.
    """

    topic: str
    partition: int
    start: int
    end: int

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

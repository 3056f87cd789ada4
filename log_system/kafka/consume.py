"""Takes messages of one partition, over connections that outlive a task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from log_system.kafka.client import KafkaClient, Setting
from log_system.kafka.kept import Kept

ANSWER_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 0.5
_READER: Final[dict[str, Setting]] = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}


class Consumers:
    """Connections by client and group: a consumer reads one slice at a time."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._kept = Kept[tuple[KafkaClient, str, str], Any](close=lambda consumer: consumer.close())

    def take(self, client: KafkaClient, group: str, isolation: str = "read_committed") -> Any:
        """Give the consumer for a group, made when it is asked for first."""
        # A fetch that waits at the end of the last slice holds up the first fetch of the next one.
        made = partial(client.consumer, group, **_READER, **{"isolation.level": isolation})
        return self._kept.take((client, group, isolation), made)

    def forget(self, client: KafkaClient, group: str, isolation: str = "read_committed") -> None:
        """Close a consumer that has failed."""
        self._kept.forget((client, group, isolation))


CONSUMERS: Final = Consumers()


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

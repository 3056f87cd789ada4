"""Reads messages of one partition in bulk, over connections that outlive a task."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from log_system.kafka.client import KafkaClient, Setting, kafka_errors
from log_system.kafka.errors import codes
from snapshot.errors import DataLostError, UnavailableError

ANSWER_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 0.5
_STEP_SECONDS: Final = 0.05
"""Markers of transactions leave gaps, so that fewer messages may come than a range has offsets."""
_READER: Final[dict[str, Setting]] = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}
_CONSUMERS_MAX: Final = 4
_FIRST_RECORDS: Final = 1_000
_BATCH_RECORDS: Final = 20_000
_BATCH_BYTES: Final = 4 << 20
_OVERHEAD_BYTES: Final = 150
_SAMPLED: Final = 10
"""One record in so many is measured."""
_REMEDY: Final = "Set 'properties.auto.offset.reset' to 'earliest' to go on with what is left, or start a new query."
_OUT_OF_RANGE: Final = codes("OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET")
_offset: Callable[[Any], int] = cast(Any, Message.offset)


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


def read_range(
    client: KafkaClient, group: str, part: OffsetRange, isolation: str, *, remedy: str = _REMEDY
) -> Iterator[list[Any]]:
    """Read the messages of a range, a few megabytes at a time. Offsets without a message are passed over.

    Asking for no more messages than the range may hold keeps the client from waiting for more.

    Args:
        client: the cluster.
        group: names the connection; nothing is committed for it.
        part: the range.
        isolation: ``read_committed`` or ``read_uncommitted``.
        remedy: what to do where retention has removed the range's first offset.

    Raises:
        DataLostError: retention has removed the range's first offset.
        UnavailableError: the broker does not answer.
    """
    doing = f"read {part}"
    consumer = CONSUMERS.take(client, group, isolation)
    held: list[Any] = []
    position, step, size, silent_since = part.start, _FIRST_RECORDS, 0, time.monotonic()
    try:
        with kafka_errors(doing, client):
            consumer.assign([TopicPartition(part.topic, part.partition, part.start)])
            while position < part.end:
                messages, reached = _within(consumer, min(part.end - position, step), doing, remedy)
                position = max(position, reached, _offset(messages[-1]) + 1 if messages else 0)
                if messages or reached >= 0:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since >= ANSWER_SECONDS:
                    msg = f"{doing}: no record came in {ANSWER_SECONDS:.0f} s, at offset {position}."
                    raise UnavailableError(msg)
                if not messages:
                    continue
                inside = messages[: bisect_left(messages, part.end, key=_offset)]
                held += inside
                size += _SAMPLED * sum(map(len, inside[::_SAMPLED])) + _OVERHEAD_BYTES * len(inside)
                if len(held) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                    yield held
                    held, size = [], 0
                # As many as the batch has room for, if they are as large as those before.
                room = (_BATCH_BYTES - size) * max(1, len(held)) // max(1, size) if held else _BATCH_RECORDS
                step = max(1, min(room, _BATCH_RECORDS - len(held)))
            if held:
                yield held
    except BaseException:
        CONSUMERS.forget(client, group, isolation)
        raise
    consumer.unassign()


def _within(consumer: Any, count: int, doing: str, remedy: str) -> tuple[list[Any], int]:
    try:
        return consume(consumer, count, _STEP_SECONDS)
    except KafkaException as error:
        if error.args[0].code() not in _OUT_OF_RANGE:
            raise
        msg = (
            f"{doing}: the topic no longer holds them; its retention has overtaken this reader, or it was made anew. "
            f"{remedy}"
        )
        raise DataLostError(msg) from error

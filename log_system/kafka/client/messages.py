"""Takes records of one partition as columns: in bulk where librdkafka can be called directly, else as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Message

from log_system.kafka.client import bulk_consume
from log_system.kafka.client.consumers import consume

_key: Callable[[Any], bytes | None] = cast(Any, Message.key)
_value: Callable[[Any], bytes | None] = cast(Any, Message.value)
_offset: Callable[[Any], int] = cast(Any, Message.offset)


@dataclass(frozen=True)
class Records:
    """Records of one partition, in order.

    Attributes:
        keys: large_binary, NULL for a null key. All NULL where nobody needs them.
        values: large_binary, NULL for a null value.
        offsets: int64, ascending.
        size: bytes of keys and values.
        times: int64, milliseconds since the epoch; None where they were not asked for.
        messages: the same records as the client gives them; empty where they were not asked for.
    """

    keys: pa.Array
    values: pa.Array
    offsets: np.ndarray
    size: int
    times: np.ndarray | None = None
    messages: Sequence[Any] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.offsets)

    def before(self, end: int) -> Records:
        """Give those with offsets below ``end``."""
        count = int(np.searchsorted(self.offsets, end))
        return self if count == len(self) else self.slice(0, count)

    def slice(self, start: int, count: int) -> Records:
        """Give up to ``count`` of them from the one numbered ``start`` on; ``size`` stays that of all."""
        return Records(
            self.keys.slice(start, count),
            self.values.slice(start, count),
            self.offsets[start : start + count],
            self.size,
            None if self.times is None else self.times[start : start + count],
            self.messages[start : start + count],
        )

    def take(self, rows: np.ndarray) -> Records:
        """Give those with these numbers; without messages."""
        keys, values = self.keys.take(pa.array(rows)), self.values.take(pa.array(rows))
        times = None if self.times is None else self.times[rows]
        return Records(keys, values, self.offsets[rows], keys.nbytes + values.nbytes, times)


def joined(parts: Sequence[Records]) -> Records:
    """Put records one after another; at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Records(
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        sum(part.size for part in parts),
        None if parts[0].times is None else np.concatenate([part.times for part in parts if part.times is not None]),
        [message for part in parts for message in part.messages],
    )


Take = Callable[[int, float], tuple[Records | None, int]]
"""Takes up to so many records, waiting until they are there or so many seconds are over. Gives them (None for none),
and where the partition ends if that is reached, else -1."""


@contextmanager
def taking(
    consumer: Any, topic: str, partition: int, *, all_keys: bool, messages: bool, times: bool = False
) -> Iterator[Take]:
    """Take the records of a partition that the consumer is assigned to inside of this, and of no other.

    Args:
        consumer: the consumer.
        topic: the topic.
        partition: the partition.
        all_keys: keys are needed, not just where a value is NULL.
        messages: so are the client's own messages, such as for their headers.
        times: so is each record's time.
    """
    if messages or not bulk_consume.can_take(consumer):
        wanted = {"all_keys": all_keys, "messages": messages, "times": times}
        yield lambda count, seconds: _as_messages(consumer, count, seconds, **wanted)
        return
    with bulk_consume.PartitionQueue(consumer, topic, partition) as queue:
        yield lambda count, seconds: _in_bulk(consumer, queue, count, seconds, all_keys=all_keys, times=times)


def _as_messages(
    consumer: Any, count: int, seconds: float, *, all_keys: bool, messages: bool, times: bool
) -> tuple[Records | None, int]:
    came, reached = consume(consumer, count, seconds)
    if not came:
        return None, reached
    values = pa.array(map(_value, came), pa.large_binary())
    keys = pa.array(map(_key, came), pa.large_binary()) if all_keys or values.null_count else _no_keys(len(came))
    offsets = np.fromiter(map(_offset, came), np.int64, len(came))
    made = np.fromiter((message.timestamp()[1] for message in came), np.int64, len(came)) if times else None
    return Records(keys, values, offsets, sum(map(len, came)), made, came if messages else ()), reached


def _in_bulk(
    consumer: Any, queue: bulk_consume.PartitionQueue, count: int, seconds: float, *, all_keys: bool, times: bool
) -> tuple[Records | None, int]:
    taken, reached = queue.take(count, seconds, all_keys=all_keys, times=times)
    # Callbacks, and errors that are not the partition's, come this way.
    message = consumer.poll(0)
    if message is not None:
        if message.error() is None:
            msg = f"a record of {message.topic()!r} went to the consumer and not to the queue of its partition"
            raise RuntimeError(msg)
        raise KafkaException(message.error())
    if taken is None:
        return None, reached
    keys = _no_keys(len(taken.offsets)) if taken.keys is None else taken.keys
    return Records(keys, taken.values, taken.offsets, taken.size, taken.times), reached


def _no_keys(count: int) -> pa.Array:
    return pa.nulls(count, pa.large_binary())

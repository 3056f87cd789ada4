"""Read records of one partition as columns: in bulk if librdkafka can be called directly, else message by message."""

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
class Wanted:
    """Which parts of records are read beside values and offsets.

    Attributes:
        all_keys: all keys, not only those of batches with NULL values.
        messages: the client's own messages too, for example for their headers.
        times: each record's timestamp.
    """

    all_keys: bool = False
    messages: bool = False
    times: bool = False


@dataclass(frozen=True)
class Records:
    """Records of one partition, in order.

    Attributes:
        keys: large_binary, NULL for a null key. All NULL if keys were not requested.
        values: large_binary, NULL for a null value.
        offsets: int64, ascending.
        size: bytes of keys and values.
        times: int64, milliseconds since the epoch; None if not requested.
        messages: the same records as ``Message`` objects of the client; empty if not requested.
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
        """Return the records with offsets below ``end``."""
        count = int(np.searchsorted(self.offsets, end))
        return self if count == len(self) else self.slice(0, count)

    def slice(self, start: int, count: int) -> Records:
        """Return up to ``count`` records from position ``start``; ``size`` remains that of all records."""
        return Records(
            self.keys.slice(start, count),
            self.values.slice(start, count),
            self.offsets[start : start + count],
            self.size,
            None if self.times is None else self.times[start : start + count],
            self.messages[start : start + count],
        )

    def take(self, rows: np.ndarray) -> Records:
        """Return the records at the given positions, without ``messages``."""
        keys, values = self.keys.take(pa.array(rows)), self.values.take(pa.array(rows))
        times = None if self.times is None else self.times[rows]
        return Records(keys, values, self.offsets[rows], keys.nbytes + values.nbytes, times)


def joined(parts: Sequence[Records]) -> Records:
    """Return the concatenation of records; requires at least one part."""
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


def newest(records: Records) -> Records:
    """Return the last record of each key, in log order; keys are compared by their bytes, and none may be NULL."""
    codes = records.keys.dictionary_encode()
    last = np.empty(len(codes.dictionary), np.int64)
    # numpy keeps the last of several values assigned to the same index.
    last[codes.indices.to_numpy()] = np.arange(len(records))
    return records if len(last) == len(records) else records.take(np.sort(last))


Take = Callable[[int, float], tuple[Records | None, int]]
"""Takes a record count and a timeout in seconds. Waits for a record, or for the end of the partition. Returns the
records that there are, at most so many (None if there are none), and the partition's end if it was reached, else -1."""


@contextmanager
def taking(consumer: Any, topic: str, partition: int, wanted: Wanted) -> Iterator[Take]:
    """Yield a function that takes the ``wanted`` parts of a partition's records; assign only it to the consumer."""
    if wanted.messages or not bulk_consume.can_take(consumer):
        yield lambda count, seconds: _as_messages(consumer, count, seconds, wanted)
        return
    with bulk_consume.PartitionQueue(consumer, topic, partition) as queue:
        yield lambda count, seconds: _in_bulk(consumer, queue, count, seconds, wanted)


def _as_messages(consumer: Any, count: int, seconds: float, wanted: Wanted) -> tuple[Records | None, int]:
    messages, reached = consume(consumer, count, seconds)
    if not messages:
        return None, reached
    values = pa.array(map(_value, messages), pa.large_binary())
    has_keys = wanted.all_keys or values.null_count
    keys = pa.array(map(_key, messages), pa.large_binary()) if has_keys else _no_keys(len(messages))
    offsets = np.fromiter(map(_offset, messages), np.int64, len(messages))
    made = (
        np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages)) if wanted.times else None
    )
    return Records(keys, values, offsets, sum(map(len, messages)), made, messages if wanted.messages else ()), reached


def _in_bulk(
    consumer: Any, queue: bulk_consume.PartitionQueue, count: int, seconds: float, wanted: Wanted
) -> tuple[Records | None, int]:
    taken, reached = queue.take(count, seconds, all_keys=wanted.all_keys, times=wanted.times)
    # The consumer's own queue delivers callbacks, and errors that do not concern the partition.
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

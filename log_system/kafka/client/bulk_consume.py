"""Take many messages with one call, from librdkafka into Arrow columns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from log_system.kafka.client import librdkafka_ffi

_PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client has no public name for it
_WORDS: Final = {"err": 0, "payload": 3, "size": 4, "key": 5, "key_size": 6, "offset": 7}
"""Positions of the fields of ``rd_kafka_message_t``, in 64-bit words."""


@dataclass(frozen=True)
class Taken:
    """Messages of one partition.

    Attributes:
        keys: large_binary; None if they were not requested and no value is NULL.
        values: large_binary.
        offsets: int64.
        size: bytes of keys and values.
        times: int64, milliseconds since the epoch; None if not requested.
    """

    keys: pa.Array | None
    values: pa.Array
    offsets: np.ndarray
    size: int
    times: np.ndarray | None


class PartitionQueue:
    """Takes messages directly from a partition's queue, bypassing its consumer. Create it before ``assign``.

    A context manager. The consumer's own queue still delivers its callbacks, and errors that do not concern the
    partition, so ``poll`` the consumer too.
    """

    def __init__(self, consumer: Any, topic: str, partition: int) -> None:
        """Detach the partition's queue from the queue of the consumer, which must stay open longer than this object."""
        self._handle = librdkafka_ffi.handle(consumer)
        self._queue = librdkafka_ffi.rdkafka.rd_kafka_queue_get_partition(self._handle, topic.encode(), partition)
        librdkafka_ffi.rdkafka.rd_kafka_queue_forward(self._queue, None)

    def __enter__(self) -> PartitionQueue:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the queue, which stays detached from the consumer's queue.

        If it were forwarded to the consumer's queue again, a thread that still takes from it would run the consumer's
        callbacks outside the client's own calls, which aborts the process (``CallState_get: Assertion `cs != NULL'
        failed``).
        """
        librdkafka_ffi.rdkafka.rd_kafka_queue_destroy(self._queue)

    def take(self, count: int, seconds: float, *, all_keys: bool, times: bool) -> tuple[Taken | None, int]:
        """Take the messages that there are; wait for the first one, or for the end of the partition.

        Args:
            count: the most messages to take.
            seconds: how long to wait.
            all_keys: copy keys even if no value is NULL.
            times: read each message's timestamp.

        Returns:
            The messages (None if there are none), and the partition's end offset if it was reached, else -1.

        Raises:
            KafkaException: the partition cannot be read.
        """
        addresses = np.zeros(count, np.uint64)
        consume = librdkafka_ffi.rdkafka.rd_kafka_consume_batch_queue
        # A call waits until there are as many as are asked for, even at the end of the partition.
        received = consume(self._queue, int(seconds * 1000), addresses.ctypes.data, 1)
        if received < 0:
            raise KafkaException(KafkaError(librdkafka_ffi.rdkafka.rd_kafka_last_error()))
        if not received:
            return None, -1
        received += max(0, consume(self._queue, 0, addresses[1:].ctypes.data, count - 1))
        addresses = addresses[:received]
        try:
            return _copied(addresses, all_keys=all_keys, times=times)
        finally:
            deque(map(librdkafka_ffi.quick.rd_kafka_message_destroy, addresses.tolist()), 0)


def can_take(consumer: Any) -> bool:
    """Return whether a ``PartitionQueue`` works with this consumer."""
    return librdkafka_ffi.handle(consumer) is not None


class _Memory:
    """Foreign memory that numpy can read as 64-bit words."""

    def __init__(self, address: int, words: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (words,), "typestr": "<u8", "version": 3}


def _copied(addresses: np.ndarray, *, all_keys: bool, times: bool) -> tuple[Taken | None, int]:
    """Return messages copied from librdkafka's memory, and the partition's end offset if it was reached, else -1.

    Raises:
        KafkaException: one of the messages is an error other than the end of the partition.
    """
    base = int(addresses.min())
    memory = np.asarray(_Memory(base, (int(addresses.max()) - base + librdkafka_ffi.MESSAGE.itemsize) // 8))
    first = ((addresses - np.uint64(base)) // np.uint64(8)).astype(np.int64)
    field = {name: memory[first + word] for name, word in _WORDS.items()}
    errors = field["err"].astype(np.uint32).view(np.int32)
    offsets = field["offset"].view(np.int64)
    reached = -1
    bad = np.flatnonzero(errors)
    for number in bad.tolist():
        code = int(errors[number])
        if code != _PARTITION_EOF:
            text = librdkafka_ffi.rdkafka.rd_kafka_message_errstr(int(addresses[number])) or b""
            raise KafkaException(KafkaError(code, text.decode(errors="replace")))
        reached = int(offsets[number])
    if len(bad):
        field = {name: np.delete(column, bad) for name, column in field.items()}
        offsets = np.delete(offsets, bad)
        addresses = np.delete(addresses, bad)
    if not len(offsets):
        return None, reached
    values = _gathered(field["payload"], field["size"])
    keys = _gathered(field["key"], field["key_size"]) if all_keys or values.null_count else None
    size = int(field["size"].sum() + field["key_size"].sum())
    return Taken(keys, values, offsets, size, _times(addresses) if times else None), reached


def _times(addresses: np.ndarray) -> np.ndarray:
    """Return each message's timestamp from librdkafka, whose public message struct has no field for it."""
    ask = librdkafka_ffi.quick.rd_kafka_message_timestamp
    return np.fromiter(map(ask, addresses.tolist(), repeat(None)), np.int64, len(addresses))


def _gathered(addresses: np.ndarray, sizes: np.ndarray) -> pa.Array:
    """Return pieces of memory, copied into one large_binary array; address 0 becomes NULL.

    ``take`` copies the pieces from an array whose data buffer is the foreign memory and whose offsets enclose each
    piece: every second value is a piece. The values in between are never read. The last offset serves only as the
    estimate from which ``take`` allocates memory.
    """
    missing = addresses == 0
    sizes = np.where(missing, np.uint64(0), sizes)
    there = addresses[~missing]
    base = int(there.min()) if len(there) else 0
    starts = np.where(missing, np.uint64(0), addresses - np.uint64(base)).astype(np.int64)
    offsets = np.empty(2 * len(addresses) + 1, np.int64)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + sizes.astype(np.int64)
    offsets[-1] = offsets[0] + 2 * int(sizes.sum())
    reach = int(offsets.max())
    data = pa.foreign_buffer(base, reach) if reach else pa.py_buffer(b"")
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * len(addresses), [None, pa.py_buffer(offsets), data]
    )
    wanted = np.arange(0, 2 * len(addresses), 2)
    return pieces.take(pa.array(wanted, mask=missing if missing.any() else None))

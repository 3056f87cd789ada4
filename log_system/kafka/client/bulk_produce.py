"""Send many records with one call, from Arrow columns directly to librdkafka."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from log_system.kafka.client import librdkafka_ffi
from log_system.kafka.client.connect import QUEUE_WAIT_SECONDS

_COPY: Final = 2
_QUEUE_FULL: Final = KafkaError._QUEUE_FULL  # noqa: SLF001 - the client has no public name for it
_SEND_RECORDS: Final = 10_000
"""Most records per call; delivery reports are served between calls."""


def can_send(producer: Any) -> bool:
    """Return whether ``send`` works with this producer."""
    return librdkafka_ffi.handle(producer) is not None


def send(producer: Any, topic: str, partition: int, keys: pa.Array, values: pa.Array) -> None:
    """Queue records without headers or delivery callbacks, in order; wait while the queue is full.

    Keys and values are large_binary; a NULL is a record without a key, or a null value.

    Raises:
        KafkaException: the error that ``produce`` would raise for the first record that cannot be queued; records
            after it may have been queued.
    """
    if not len(values):
        return
    messages = np.zeros(len(values), librdkafka_ffi.MESSAGE)
    messages["payload"], messages["size"] = _pointers(values, messages)
    messages["key"], messages["key_size"] = _pointers(keys, messages)
    handle = librdkafka_ffi.rdkafka.rd_kafka_topic_new(librdkafka_ffi.handle(producer), topic.encode(), None)
    if not handle:
        raise _refused(librdkafka_ffi.rdkafka.rd_kafka_last_error())
    try:
        start = 0
        while start < len(messages):
            part = messages[start : start + _SEND_RECORDS]
            queued = librdkafka_ffi.rdkafka.rd_kafka_produce_batch(
                handle, partition, _COPY, part.ctypes.data, len(part)
            )
            if queued < len(part):
                # The call ends at the first record that finds the queue full, so all queued records precede it.
                error = int(part["err"][np.flatnonzero(part["err"])[0]])
                if error != _QUEUE_FULL:
                    raise _refused(error)
            producer.poll(0 if queued == len(part) else QUEUE_WAIT_SECONDS)
            start += queued
    finally:
        librdkafka_ffi.rdkafka.rd_kafka_topic_destroy(handle)


def _pointers(values: pa.Array, anywhere: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the address and the size of each value: address 0 for NULL, some nonzero address for an empty value."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    base = data.address if data is not None and data.size else anywhere.ctypes.data
    addresses = ends[:-1].astype(np.uint64) + np.uint64(base)
    sizes = np.diff(ends).astype(np.uint64)
    if values.null_count:
        there = values.is_valid().to_numpy(zero_copy_only=False)
        addresses, sizes = addresses * there, sizes * there
    return addresses, sizes


def _refused(error: int) -> KafkaException:
    text = librdkafka_ffi.rdkafka.rd_kafka_err2str(error).decode()
    return KafkaException(KafkaError(error, f"Unable to produce message: {text}"))

"""Sends a sink's messages to Kafka, directly or through a buffer that keeps only the last message of each key."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException

from log_system.kafka.client import bulk_produce
from log_system.kafka.client.connect import KafkaClient, Setting, discard, kafka_errors, produce
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.partitioners import JAVA_COMPATIBLE, Choose

_POLL_EVERY: Final = 5_000
_FLUSH_SECONDS: Final = 1.0


class Receiver(Protocol):
    """Accepts messages: a sender, a staging file, or a buffer in front of either."""

    def send(self, messages: EncodedMessages) -> None:
        """Accept messages, in order."""
        ...

    def finish(self) -> None:
        """Return once all accepted messages are durably written."""
        ...

    def close(self) -> None:
        """Discard unfinished messages after an error. After ``finish`` there are none."""
        ...


class MessageSender:
    """Sends messages through one producer. A failed delivery raises in ``send``, or at the latest in ``finish``."""

    def __init__(
        self, client: KafkaClient, topic: str, choose: Choose | None, transactional_id: str | None, **more: Setting
    ) -> None:
        """Create the producer.

        Args:
            client: the cluster.
            topic: the topic of messages that name none.
            choose: chooses the partition of each message; None leaves the choice to the client.
            transactional_id: the transactional id; None for a producer without transactions.
            more: further client options.
        """
        self._client = client
        self._topic = topic
        self._choose = choose
        self._failed: Any = None
        self._transactional = transactional_id is not None
        only_errors: dict[str, Any] = {"on_delivery": self._on_delivery, "delivery.report.only.error": True}
        self.producer = client.producer(transactional_id, **{"partitioner": JAVA_COMPATIBLE, **only_errors, **more})

    def send(self, messages: EncodedMessages) -> None:
        """Queue messages; block while the producer's queue is full."""
        self._topic = messages.topic or self._topic
        partitions = messages.partitions
        if partitions is None:
            nowhere = np.full(len(messages), -1, np.int32)
            partitions = nowhere if self._choose is None else self._choose(messages)
        with self._errors():
            if messages.timestamps is None and messages.headers is None:
                if self._transactional and bulk_produce.can_send(self.producer):
                    self._send_in_bulk(messages, partitions)
                    return
                self._send_plain(messages, partitions.tolist())
            else:
                self._send_all(messages, partitions.tolist())

    def finish(self) -> None:
        """Wait until every message is delivered; ``delivery.timeout.ms`` limits how long the client retries."""
        with self._errors():
            while self.producer.flush(_FLUSH_SECONDS) and self._failed is None:
                pass
            self._check()

    def close(self) -> None:
        """Discard the queued messages."""
        discard(self.producer)

    def _send_in_bulk(self, messages: EncodedMessages, partitions: np.ndarray) -> None:
        """Queue messages without delivery reports: the transaction's commit fails if a message was not delivered."""
        keys = pa.nulls(len(messages), pa.large_binary()) if messages.keys is None else messages.keys
        if (partitions == partitions[0]).all():
            bulk_produce.send(self.producer, self._topic, int(partitions[0]), keys, messages.values)
            return
        for partition in np.unique(partitions).tolist():
            mask = pa.array(partitions == partition)
            bulk_produce.send(self.producer, self._topic, partition, keys.filter(mask), messages.values.filter(mask))

    def _send_plain(self, messages: EncodedMessages, partitions: Sequence[int]) -> None:
        queue, topic, poll = self.producer.produce, self._topic, self.producer.poll
        for number, ((key, value), partition) in enumerate(zip(messages.pairs(), partitions, strict=True)):
            try:
                queue(topic, value, key, partition)
            except BufferError:
                produce(self.producer, topic, value, key, partition, check=self._check)
            if number % _POLL_EVERY == 0:
                poll(0)
                self._check()
        poll(0)
        self._check()

    def _send_all(self, messages: EncodedMessages, partitions: Sequence[int]) -> None:
        nothing: list[Any] = [None] * len(messages)
        for number, ((key, value), partition, timestamp, headers) in enumerate(
            zip(
                messages.pairs(),
                partitions,
                messages.timestamps or nothing,
                messages.headers or nothing,
                strict=True,
            )
        ):
            named: dict[str, Any] = {} if timestamp is None else {"timestamp": timestamp}
            if headers:
                named["headers"] = headers
            produce(self.producer, self._topic, value, key, partition, check=self._check, **named)
            if number % _POLL_EVERY == 0:
                self.producer.poll(0)
                self._check()

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _check(self) -> None:
        if self._failed is not None:
            raise KafkaException(self._failed)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with kafka_errors(f"write to topic {self._topic!r}", self._client, handle=self.producer, indefinite=True):
            yield


class KeyBuffer:
    """Buffers the last message of each key until a row count or an interval is reached (``sink.buffer-flush.*``)."""

    def __init__(self, receiver: Receiver, rows_max: int, interval_s: float) -> None:
        """Buffer messages for ``receiver``; a background thread flushes the buffer at each interval."""
        self._receiver = receiver
        self._rows_max = rows_max
        self._interval_s = interval_s
        self._held: dict[str, dict[bytes | None, tuple[Any, Any, Any]]] = {}
        self._came = 0
        self._shape: tuple[bool, bool] = (False, False)
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._clock = threading.Thread(target=self._run, name="buffer-flush", daemon=True)
        self._clock.start()

    def send(self, messages: EncodedMessages) -> None:
        """Buffer messages; a later message of a key in the same topic replaces the earlier one."""
        nothing: list[Any] = [None] * len(messages)
        self._shape = (messages.timestamps is not None, messages.headers is not None)
        each = zip(messages.pairs(), messages.timestamps or nothing, messages.headers or nothing, strict=True)
        with self._lock:
            self._check()
            for (key, value), timestamp, headers in each:
                held = self._held.setdefault(messages.topic, {})
                # Remove the key first, so that messages are flushed in the order of their last change.
                held.pop(key, None)
                held[key] = (value, timestamp, headers)
                self._came += 1
                if self._came >= self._rows_max:
                    self._flush()

    def finish(self) -> None:
        """Stop the flush thread, send the buffered messages and finish the receiver."""
        self._done.set()
        self._clock.join()
        with self._lock:
            self._check()
            self._flush()
        self._receiver.finish()

    def close(self) -> None:
        """Stop the flush thread and discard the buffered messages."""
        self._done.set()
        self._clock.join()
        self._receiver.close()

    def _flush(self) -> None:
        topics, self._held, self._came = self._held, {}, 0
        with_timestamps, with_headers = self._shape
        for topic, held in topics.items():
            values, timestamps, headers = (list(column) for column in zip(*held.values(), strict=True))
            self._receiver.send(
                EncodedMessages(
                    pa.array(held, pa.large_binary()),
                    pa.array(values, pa.large_binary()),
                    timestamps if with_timestamps else None,
                    headers if with_headers else None,
                    topic=topic,
                )
            )

    def _run(self) -> None:
        while not self._done.wait(self._interval_s):
            with self._lock:
                try:
                    self._flush()
                except BaseException as error:  # noqa: BLE001 - raised again where the next message comes
                    self._failed = error
                    return

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed


def send_all(receiver: Receiver, messages: Iterable[EncodedMessages]) -> int:
    """Send all messages, finish the receiver, or close it on an error, and return how many it was passed."""
    sent = 0
    try:
        for each in messages:
            if len(each):
                receiver.send(each)
                sent += len(each)
        receiver.finish()
    except BaseException:
        receiver.close()
        raise
    return sent

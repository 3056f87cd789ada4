"""Writes a micro-batch into a topic once, however often Spark repeats it.

What the micro-batch holds is staged before; here it goes into the topic in one transaction, and a register moves in the
same transaction: the offset of a consumer group that belongs to the query is the number of the next micro-batch. So
the register is true whatever crashes, and readers of committed records see the whole micro-batch or nothing of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition

from log_system.kafka.client.cluster import GroupOffsets
from log_system.kafka.client.connect import KafkaClient, kafka_errors, send_offsets, take_over
from snapshot.errors import OutcomeUnknownError, UnavailableError
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.message_sender import MessageSender, send_all

logger: Final = logging.getLogger("tablestore")
_ATTEMPTS_MAX: Final = 3
_TIMEOUT_MS: Final = 120_000
Messages = Callable[[], Iterable[EncodedMessages]]
"""Reads what is staged, from its start."""


@dataclass(frozen=True)
class Batch:
    """What is written once.

    Attributes:
        query: names who writes, the same across restarts.
        number: of the micro-batch; a query's numbers only grow.
    """

    query: str
    number: int


@dataclass(frozen=True)
class TransactionalWriter:
    """Writes micro-batches into a topic, each once.

    Attributes:
        client: the cluster.
        topic: the topic.
        prefix: what transactional ids and the register's group start with.
        transaction_timeout_ms: after this the broker ends a transaction whose writer is gone.
    """

    client: KafkaClient
    topic: str
    prefix: str
    transaction_timeout_ms: int | None = None

    def name(self, batch: Batch) -> str:
        """Name the transactional id, and the register's group: one a query."""
        return f"{self.prefix}-{batch.query}"

    def write(self, batch: Batch, messages: Messages) -> bool:
        """Write a micro-batch unless it has been written.

        1. Take over the query's transactional id. A writer before this one is fenced, and its open transaction ends.
        2. Read the register, only now that nobody else can move it: a micro-batch that is there is left alone.
        3. Send, move the register and commit, all in one transaction. A crash here leaves all or nothing; Spark repeats
           the micro-batch, and step 2 finds out.

        An answer that is lost is found out in the same way at once.

        Returns:
            Whether this call wrote it.

        Raises:
            FencedError: another writer of the same query has taken over.
            TableStoreError: the broker failed; repeat the micro-batch.
        """
        began = time.monotonic()
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                return self._write(batch, messages)
            except (OutcomeUnknownError, UnavailableError) as error:
                # An outcome that is not known is worth one question more, however long it took.
                out = isinstance(error, UnavailableError) and time.monotonic() - began > self.client.wait_seconds
                if attempt == _ATTEMPTS_MAX or out:
                    raise
                logger.warning(
                    "micro-batch %d into topic %r: %s Looking whether it landed.", batch.number, self.topic, error
                )
        raise AssertionError

    def _write(self, batch: Batch, messages: Messages) -> bool:
        name = self.name(batch)
        timeout = {"transaction.timeout.ms": self.transaction_timeout_ms or _TIMEOUT_MS}
        doing = f"write micro-batch {batch.number} to topic {self.topic!r}"
        register = GroupOffsets(self.client, name)
        try:
            # Step 1.
            sender = MessageSender(self.client, self.topic, None, name, **timeout)
            producer = sender.producer
            with kafka_errors(doing, self.client, handle=producer):
                take_over(producer, self.client.wait_seconds)
            # Step 2.
            at = (self.topic, 0)
            if register.committed([at]).get(at, 0) > batch.number:
                logger.info("micro-batch %d is in topic %r already.", batch.number, self.topic)
                return False
            # Step 3.
            with kafka_errors(doing, self.client, handle=producer):
                producer.begin_transaction()
            send_all(sender, messages())
            with kafka_errors(doing, self.client, handle=producer, indefinite=True):
                next_one = TopicPartition(self.topic, 0, batch.number + 1)
                send_offsets(producer, [next_one], register.metadata(), self.client.wait_seconds)
                producer.commit_transaction(self.client.wait_seconds)
            return True
        finally:
            register.close()

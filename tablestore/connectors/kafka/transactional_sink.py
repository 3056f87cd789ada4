"""Writes each micro-batch to a topic exactly once, even if Spark repeats the micro-batch.

Tasks stage the messages of the micro-batch first. This module writes them to the topic in one transaction. The same
transaction advances a register: the committed offset of a consumer group that belongs to the query, which holds the
number of the next micro-batch. The register is therefore correct after any crash, and ``read_committed`` consumers see
either the whole micro-batch or nothing of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition

from log_system.kafka.client.cluster import GroupOffsets
from log_system.kafka.client.connect import KafkaClient, kafka_errors, send_offsets, take_over
from log_system.kafka.client.topic import is_gone
from snapshot.errors import FencedError, InvalidInputError, NotFoundError, OutcomeUnknownError, UnavailableError
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.message_sender import MessageSender, send_all

logger: Final = logging.getLogger("tablestore")
_ATTEMPTS_MAX: Final = 3
_TIMEOUT_MS: Final = 120_000
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that does not stand still while the machine sleeps, as ``time.monotonic`` does."""
_UNCOMMITTED: Final = {"isolation.level": "read_uncommitted"}
Messages = Callable[[], Iterable[EncodedMessages]]
"""Returns an iterable over all staged messages; each call starts from the first message."""


class _TimedOutError(InvalidInputError):
    """The broker aborted the transaction, and nothing of it is in the topic."""


_ONCE_MORE: Final = (FencedError, _TimedOutError)
"""Errors after which a micro-batch is tried once more."""


@dataclass(frozen=True)
class Batch:
    """Identifies a micro-batch that is written exactly once.

    Attributes:
        query: identifies the writing query, stable across restarts.
        number: the micro-batch number; the numbers of a query only increase.
        plan: identifies what the micro-batch reads (`CommitId.plan`); empty if unknown.
    """

    query: str
    number: int
    plan: str = ""


@dataclass(frozen=True)
class TransactionalWriter:
    """Writes micro-batches to a topic, each exactly once.

    Attributes:
        client: the cluster.
        topic: the topic.
        prefix: prefix of the transactional ids and of the register's consumer group.
        transaction_timeout_ms: how long the broker waits before it aborts the transaction of a dead writer.
    """

    client: KafkaClient
    topic: str
    prefix: str
    transaction_timeout_ms: int | None = None

    def name(self, batch: Batch) -> str:
        """Return the query's transactional id, which is also the name of the register's consumer group."""
        return f"{self.prefix}-{batch.query}"

    def write(self, batch: Batch, messages: Messages, *, again: bool = False) -> bool:
        """Write a micro-batch unless it is already in the topic; return whether this call wrote it.

        1. Take over the query's transactional id. This fences any earlier writer and aborts its open transaction.
        2. Read the register. After step 1 no other writer can advance it. Skip a micro-batch that is already written.
        3. Send the messages, advance the register and commit, all in one transaction. A crash here leaves either all
           or nothing; Spark then repeats the micro-batch, and step 2 detects which.

        An in-doubt commit (the broker's answer was lost) is resolved by an immediate retry of the same steps, and so
        is, once, a transaction that the broker aborted after its timeout, as while the machine slept, or that another
        run of the query fenced, as one does that was suspended and wakes up while this one has taken its place. Another
        run may have written the micro-batch meanwhile, so a retry first looks whether the register has advanced. With
        ``again``, an earlier call in this process has failed.

        Raises:
            FencedError: another writer of the same query has taken over, twice.
            InvalidInputError: the transaction takes longer than its timeout, or its timeout is more than the broker
                allows; or a micro-batch of this number with another plan is in the topic.
            NotFoundError: the topic was deleted.
            TableStoreError: the broker failed; repeat the micro-batch.
        """
        began = time.monotonic()
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                if (again or attempt > 1) and self._is_written(batch):
                    return False
                return self._write(batch, messages)
            # The run that has taken this one's place removes what this one has staged.
            except (OutcomeUnknownError, UnavailableError, FileNotFoundError, *_ONCE_MORE) as error:
                self._check_topic()
                # Retry an in-doubt commit regardless of the elapsed time; the retry reads the register.
                out = isinstance(error, UnavailableError) and time.monotonic() - began > self.client.wait_seconds
                if attempt == _ATTEMPTS_MAX or out or (isinstance(error, _ONCE_MORE) and attempt > 1):
                    raise
                logger.warning(
                    "micro-batch %d into topic %r: %s Looking whether it landed.", batch.number, self.topic, error
                )
        raise AssertionError

    def _write(self, batch: Batch, messages: Messages) -> bool:
        name = self.name(batch)
        timeout_ms = self.transaction_timeout_ms or _TIMEOUT_MS
        doing = f"write micro-batch {batch.number} to topic {self.topic!r}"
        with closing(GroupOffsets(self.client, name)) as register:
            # Step 1.
            sender = MessageSender(self.client, self.topic, None, name, **{"transaction.timeout.ms": timeout_ms})
            producer = sender.producer
            with kafka_errors(doing, self.client, handle=producer):
                take_over(producer, self.client.wait_seconds)
            # Step 2.
            if self._holds(register, batch):
                return False
            # Step 3.
            with kafka_errors(doing, self.client, handle=producer):
                producer.begin_transaction()
            with self._fenced_by(doing, timeout_ms):
                send_all(sender, messages())
                with kafka_errors(doing, self.client, handle=producer, indefinite=True):
                    next_one = TopicPartition(self.topic, 0, batch.number + 1, batch.plan)
                    send_offsets(self.client, producer, [next_one], register.metadata())
                    producer.commit_transaction(self.client.wait_seconds)
            return True

    def _is_written(self, batch: Batch) -> bool:
        """Return whether the register says that a micro-batch is written, without waiting for open transactions."""
        with closing(GroupOffsets(self.client, self.name(batch), **_UNCOMMITTED)) as register:
            return self._holds(register, batch)

    def _holds(self, register: GroupOffsets, batch: Batch) -> bool:
        """Return whether the register says that a micro-batch is written.

        Raises:
            InvalidInputError: one of the same number is, with another plan.
        """
        at = register.position((self.topic, 0))
        if at is None or at.offset <= batch.number:
            return False
        is_newest = at.offset == batch.number + 1
        if batch.plan and not (is_newest and at.metadata in (None, "", batch.plan)):
            msg = (
                f"topic {self.topic!r}: this query has written another micro-batch {batch.number} before (its newest "
                f"there is {at.offset - 1}): its checkpoint was set back to an older copy, or two queries continue "
                "from copies of one checkpoint. Nothing was written. Bring the newest files of the checkpoint back, or "
                "start a query with a new checkpoint whose source begins after the rows that are there."
            )
            raise InvalidInputError(msg)
        logger.info("micro-batch %d is in topic %r already.", batch.number, self.topic)
        return True

    @contextmanager
    def _fenced_by(self, doing: str, timeout_ms: int) -> Iterator[None]:
        """Name who has fenced the producer: another run of the query, or the broker after the transaction's timeout."""
        began = time.clock_gettime(_CLOCK)
        try:
            yield
        except FencedError as error:
            seconds = time.clock_gettime(_CLOCK) - began
            option = f"{self.client.prefix}transaction.timeout.ms"
            if seconds * 1000 < timeout_ms:
                msg = (
                    f"{doing} failed: another run of this query, with the same checkpoint, has taken over. Stop one of "
                    "them."
                )
                raise FencedError(msg) from error
            msg = (
                f"{doing} failed: it took {seconds:.0f} s, and the broker aborts a transaction after "
                f"'{option}' = {timeout_ms}. Raise that option, or write less at a time ('maxRowsPerTrigger')."
            )
            raise _TimedOutError(msg) from error

    def _check_topic(self) -> None:
        """Raise if the topic was deleted: the client then waits for it until it gives up, without saying so."""
        if is_gone(self.client, self.topic):
            msg = (
                f"topic {self.topic!r} was deleted while this query wrote to it. Restart the query to create it again."
            )
            raise NotFoundError(msg)

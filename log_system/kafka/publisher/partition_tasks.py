"""Publish a large snapshot with one task per log partition, each in several transactions."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import TopicPartition

from log_system.kafka.client.connect import discarding, flush, kafka_errors, send_offsets, take_over
from log_system.kafka.client.topic import latest_offsets
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import caught_up, group_positions, last_position, tasks_token
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.register import RegisterPosition
from snapshot.errors import FencedError
from snapshot.records import ChangeSet

_PATIENCE_SECONDS = 10.0
"""How long an attempt of a task waits for progress of another attempt that has fenced it."""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class PartitionTask:
    """A task that publishes a snapshot to one partition. Picklable.

    Attributes:
        log: the log.
        changes: the snapshot's changes.
        partition: the partition.
        token: the token of the publisher that created the task; a publisher that takes over replaces the token.
        position: how far the partition was published when the task was created.
    """

    log: KafkaLog
    changes: ChangeSet
    partition: int
    token: str
    position: RegisterPosition


def publish_partition(task: PartitionTask) -> RegisterPosition:
    """Publish the changes of a snapshot that a partition lacks. Idempotent, even if several attempts run at once.

    Spark runs a task twice if it is slow and speculation is on, or if its executor seems lost. It takes the result of
    the attempt that ends first. So an attempt that another one has fenced does not end with an error: it waits until
    the other has published the partition, and continues on its own if that one makes no progress.

    Raises:
        FencedError: another publisher owns the log.
        TableStoreError: the broker failed; run the task again.
    """
    patience = _PATIENCE_SECONDS
    while True:
        try:
            return _publish(task)
        except FencedError:
            published = _published_by_another(task, patience)
        if published is not None:
            return published
        # A transaction of the other attempt may take longer than that.
        patience *= 2


def _published_by_another(task: PartitionTask, patience: float) -> RegisterPosition | None:
    """Wait for another attempt of a task, and return what it published; None if it makes no progress for a while.

    Raises:
        FencedError: another publisher owns the log.
    """
    log, snapshot = task.log, task.changes.snapshot.id
    seen, since = None, time.monotonic()
    doing = f"read how far partition {task.partition} of {log.topic!r} is published"
    with kafka_errors(doing, log.client), closing(log.client.consumer(log.group)) as consumer:
        while time.monotonic() - since < patience:
            _check_owner(task)
            position = group_positions(log, consumer, [task.partition])[0]
            if position is not None and position.holds(snapshot):
                return position
            if position != seen:
                seen, since = position, time.monotonic()
            time.sleep(_LOOK_SECONDS)
    return None


def _check_owner(task: PartitionTask) -> None:
    """Raise `FencedError` unless the publisher that created a task still owns the log."""
    if tasks_token(task.log)[0] != task.token:
        snapshot = task.changes.snapshot.id
        msg = f"topic {task.log.topic!r}: another publisher has taken the log over; snapshot {snapshot} is left to it."
        raise FencedError(msg)


def _publish(task: PartitionTask) -> RegisterPosition:
    """Publish the changes that a partition lacks.

    1. Take over the partition's transactional id, which fences an earlier attempt.
    2. Only then read the register, and continue from there if the publisher that created the task still owns the log.
       If the broker has lost the register since then, or its end, the partition's own records show what earlier
       attempts have sent.
    3. Send and commit one transaction after another; each moves the register.

    Raises:
        FencedError: another publisher owns the log, or another attempt of this task is running.
        TableStoreError: the broker failed; run the task again.
    """
    log, snapshot = task.log, task.changes.snapshot.id
    # Spark reuses its workers: memory that staging left in Arrow's pool would add to what is needed here.
    pa.default_memory_pool().release_unused()
    doing = f"publish snapshot {snapshot} to partition {task.partition} of {log.topic!r}"
    with discarding(log.producer(task.partition)) as producer, kafka_errors(doing, log.client, handle=producer):
        # Step 1.
        take_over(producer, log.client.wait_seconds)
        # Step 2.
        with closing(log.client.consumer(log.group)) as consumer:
            group = consumer.consumer_group_metadata()
            held = group_positions(log, consumer, [task.partition])[0]
        _check_owner(task)
        position = held or last_position(log, task.partition, task.position.end) or task.position
        if position.is_short_of(latest_offsets(log.client, log.topic, read_committed=False)[task.partition]):
            position = caught_up(log, position, task.partition)
        # Step 3.
        codec = log.under(task.changes.schema).kept_codec()
        sender = Sender(log, producer, codec, task.partition)
        while not position.holds(snapshot):
            producer.begin_transaction()
            sender.send(task.changes, position.part_of(task.changes.snapshot), log.transaction_rows_max)
            flush(producer, log.client.wait_seconds)
            position = sender.position()
            offset = TopicPartition(log.topic, task.partition, position.end, position.metadata())
            send_offsets(log.client, producer, [offset], group)
            producer.commit_transaction(log.client.wait_seconds)
    return position

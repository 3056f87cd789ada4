"""Publishing a large snapshot: each log partition by a task of its own, in several transactions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import TopicPartition

from log_system.kafka.client.connect import flush, kafka_errors, send_offsets, take_over
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import group_positions, last_position, tasks_token
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.register import RegisterPosition
from snapshot.errors import FencedError
from snapshot.records import ChangeSet


@dataclass(frozen=True)
class PartitionTask:
    """One partition's part of publishing a snapshot. Picklable.

    Attributes:
        log: the log.
        changes: the snapshot's changes.
        partition: the partition.
        token: of the publisher that sent the task; a publisher that takes over removes it from the register.
        position: how far the partition was when the task was made.
    """

    log: KafkaLog
    changes: ChangeSet
    partition: int
    token: str
    position: RegisterPosition


def publish_partition(task: PartitionTask) -> RegisterPosition:
    """Publish what a partition lacks of a snapshot. May run several times, also at once; the changes land once.

    1. Take over the partition's transactional id: a task before this one is fenced.
    2. Read the register, only now: go on from there, and only if the sender still owns the log. Where the broker has
       forgotten the register since the task was made, the partition's own records tell what an attempt before has sent.
    3. Send and commit one transaction after another; each moves the register.

    Raises:
        FencedError: another publisher owns the log, or another attempt of this task runs.
        TableStoreError: the broker failed; run the task again.
    """
    log, snapshot = task.log, task.changes.snapshot.id
    # Spark reuses its workers: what staging has left to Arrow's pool would count beside what is needed here.
    pa.default_memory_pool().release_unused()
    with kafka_errors(f"publish snapshot {snapshot} to partition {task.partition} of {log.topic!r}", log.client):
        # Step 1.
        producer = log.producer(task.partition)
        take_over(producer, log.client.wait_seconds)
        # Step 2.
        consumer = log.client.consumer(log.group)
        try:
            group = consumer.consumer_group_metadata()
            held = group_positions(log, consumer, [task.partition])[0]
        finally:
            consumer.close()
        if tasks_token(log)[0] != task.token:
            msg = f"topic {log.topic!r}: another publisher has taken the log over; snapshot {snapshot} is left to it."
            raise FencedError(msg)
        position = held or last_position(log, task.partition, task.position.end) or task.position
        # Step 3.
        codec = log.under(task.changes.schema).kept_codec()
        sender = Sender(log, producer, codec, task.partition)
        while not position.holds(snapshot):
            producer.begin_transaction()
            sender.send(task.changes, position.part_of(task.changes.snapshot), log.transaction_rows_max)
            flush(producer, log.client.wait_seconds)
            position = sender.position()
            offset = TopicPartition(log.topic, task.partition, position.end, position.metadata())
            send_offsets(producer, [offset], group, log.client.wait_seconds)
            producer.commit_transaction(log.client.wait_seconds)
    return position

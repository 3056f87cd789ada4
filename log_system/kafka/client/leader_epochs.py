"""Leader epochs of partitions, which show that a broker has lost the end of a partition (KIP-320)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.errors import NOTHING_THERE
from snapshot.errors import UnavailableError

_POLL_SECONDS: Final = 0.5
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001 - the client has no public name for it


def shortened(client: KafkaClient, group: str, topic: str, reached: Sequence[TopicPartition]) -> set[int]:
    """Return the partitions of a topic that have lost what they had in a leader epoch that is over.

    A new leader of a partition begins a new epoch where its log ends, also if it is the same broker after a crash. If
    an earlier epoch ends before an offset that was reached in it, the log has lost what was there, whatever it has now.

    Args:
        client: the cluster.
        group: the consumer group of the request; nothing is committed for it.
        topic: the topic.
        reached: for each partition to look at, an offset and the leader epoch in which the partition reached it.

    Raises:
        UnavailableError: the broker does not respond.
    """
    waiting, lost = {part.partition for part in reached}, set[int]()
    if not waiting:
        return lost
    doing = f"look up where earlier leader epochs of topic {topic!r} have ended"
    until = time.monotonic() + client.wait_seconds
    with kafka_errors(doing, client):
        # A new consumer, since the client asks the broker only when it learns of a leader of a partition that it is
        # already reading. The answer precedes any record.
        consumer = client.consumer(group, **{"enable.partition.eof": True, "fetch.wait.max.ms": 10})
        try:
            consumer.assign(list(reached))
            while waiting and time.monotonic() < until:
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                error, partition = message.error(), message.partition()
                if error is not None and _TRUNCATED in error.str() and partition is not None:
                    lost.add(partition)
                elif error is not None and error.code() not in NOTHING_THERE:
                    raise KafkaException(error)
                waiting.discard(partition)
        finally:
            consumer.close()
    if waiting:
        msg = f"{doing}: no answer in {client.wait_seconds:g} s."
        raise UnavailableError(msg)
    return lost

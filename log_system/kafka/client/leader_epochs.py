"""Leader epochs of partitions, by which a reader notices that a broker has lost what it had read (KIP-320)."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.errors import NOTHING_THERE
from snapshot.errors import UnavailableError

_POLL_SECONDS: Final = 0.5
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001 - the client has no public name for it


def has_kept(client: KafkaClient, group: str, part: TopicPartition) -> bool:
    """Return whether a partition still has what it had up to an offset in a leader epoch that is over.

    A new leader of a partition begins a new epoch where its log ends, also if it is the same broker after a crash. If
    an earlier epoch ends before an offset that was read in it, the log has lost what was read, whatever it has now.

    Args:
        client: the cluster.
        group: the consumer group of the request; nothing is committed for it.
        part: the partition, with the offset and the leader epoch in which the partition reached there.

    Raises:
        UnavailableError: the broker does not respond.
    """
    doing = f"look up where leader epoch {part.leader_epoch} of partition {part.partition} of {part.topic!r} has ended"
    until = time.monotonic() + client.wait_seconds
    with kafka_errors(doing, client):
        # A new consumer, since the client asks the broker only when it learns of a leader of a partition that it is
        # already reading. The answer precedes any record.
        consumer = client.consumer(group, **{"enable.partition.eof": True, "fetch.wait.max.ms": 10})
        try:
            consumer.assign([part])
            while time.monotonic() < until:
                message = consumer.poll(_POLL_SECONDS)
                error = None if message is None else message.error()
                if error is not None and _TRUNCATED in error.str():
                    return False
                if error is not None and error.code() not in NOTHING_THERE:
                    raise KafkaException(error)
                if message is not None:
                    return True
        finally:
            consumer.close()
    msg = f"{doing}: no answer in {client.wait_seconds:g} s."
    raise UnavailableError(msg)

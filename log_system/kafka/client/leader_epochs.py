"""Leader epochs of partitions, which show that a broker has lost the end of a partition (KIP-320)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from log_system.kafka.client.cluster import Partition
from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.errors import NOTHING_THERE
from snapshot.errors import UnavailableError
from snapshot.records import LogEnd

_POLL_SECONDS: Final = 0.5
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001 - the client has no public name for it


def shortened(
    client: KafkaClient, group: str, reached: Mapping[Partition, LogEnd], now: Mapping[Partition, LogEnd]
) -> set[Partition]:
    """Return the partitions that have lost what they had in a leader epoch that is over.

    A new leader of a partition begins a new epoch where its log ends, also if it is the same broker after a crash. If
    an earlier epoch ends before an offset that was reached in it, the log has lost what was there, whatever it has now.
    Without such an epoch, the broker is not asked.

    Args:
        client: the cluster.
        group: the consumer group of the request; nothing is committed for it.
        reached: an earlier end of each partition.
        now: the end of each partition, of which only the epoch is used.

    Raises:
        UnavailableError: the broker does not respond.
    """
    over = {each: old for each, old in reached.items() if old.may_be_lost(now[each])}
    waiting, lost = set(over), set[Partition]()
    if not over:
        return lost
    doing = f"look up where earlier leader epochs of {', '.join(sorted({topic for topic, _ in over}))} have ended"
    until = time.monotonic() + client.wait_seconds
    with kafka_errors(doing, client):
        # A new consumer, since the client asks the broker only when it learns of a leader of a partition that it is
        # already reading. The answer precedes any record.
        consumer = client.consumer(group, **{"enable.partition.eof": True, "fetch.wait.max.ms": 10})
        try:
            consumer.assign([TopicPartition(*each, old.offset, leader_epoch=old.epoch) for each, old in over.items()])
            while waiting and time.monotonic() < until:
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                error, each = message.error(), (str(message.topic()), int(message.partition() or 0))
                if error is not None and _TRUNCATED in error.str():
                    lost.add(each)
                elif error is not None and error.code() not in NOTHING_THERE:
                    raise KafkaException(error)
                waiting.discard(each)
        finally:
            consumer.close()
    if waiting:
        msg = f"{doing}: no answer in {client.wait_seconds:g} s."
        raise UnavailableError(msg)
    return lost

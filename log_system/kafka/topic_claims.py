"""Which tables use a topic: each leaves a claim, a consumer group named after the topic's id and the table's.

Kafka has no compare-and-set that a client could use here, so a table claims first and then looks for the claims of
others: of two tables that are created on one topic at once, the one that claims last sees the other. The brokers expire
a group that is idle (``offsets.retention.minutes``, 7 days); by then a topic in use has records, which ``create``
refuses too. They remove the group with its topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import TopicPartition

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.topic import TopicIds


def claim_group(name: str, ids: TopicIds, table_id: str) -> str:
    """Return the consumer group by which a table claims a topic."""
    return f"{_prefix(name, ids)}{table_id}"


def claim(client: KafkaClient, name: str, ids: TopicIds, table_id: str) -> None:
    """Claim a topic for a table; a table may claim it again.

    Raises:
        UnavailableError: the broker does not answer.
    """
    group = claim_group(name, ids, table_id)
    consumer = client.consumer(group)
    try:
        with kafka_errors(f"claim topic '{name}'", client):
            consumer.commit(offsets=[TopicPartition(name, 0, 0, table_id)], asynchronous=False)
    finally:
        consumer.close()


def claimed_by(client: KafkaClient, name: str, ids: TopicIds) -> Sequence[str]:
    """Return the ids of the tables that have claimed a topic.

    Raises:
        UnavailableError: the broker does not answer.
    """
    prefix, admin = _prefix(name, ids), client.admin()
    with kafka_errors(f"look for other tables on topic '{name}'", client, handle=admin):
        listed = admin.list_consumer_groups(request_timeout=client.request_seconds).result()
        if listed.errors:
            # A broker that does not answer may know the claim.
            raise listed.errors[0]
    return sorted(each.group_id.removeprefix(prefix) for each in listed.valid if each.group_id.startswith(prefix))


def _prefix(name: str, ids: TopicIds) -> str:
    return f"tablestore-topic-{ids.topic_id or name}-"

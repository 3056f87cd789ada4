"""Claims of tables on topics: consumer groups named after the topic's id and the table's id.

Kafka has no compare-and-set for this, so a table first writes its claim and then looks for other claims. If two tables
are created on one topic at the same time, the one that claims last sees the other. Brokers expire an idle group
(``offsets.retention.minutes``, 7 days); by then a topic in use has records, and ``create`` rejects a topic with records
too. Brokers delete the group together with its topic.

Each function raises ``UnavailableError`` if the broker does not respond.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from confluent_kafka import KafkaException, TopicPartition

from log_system.kafka.client.cluster import ask_coordinator, commit_offsets
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import TopicIds


def claim_group(name: str, ids: TopicIds, table_id: str) -> str:
    """Return the consumer group with which a table claims a topic."""
    return f"{_prefix(name, ids)}{table_id}"


def claim(client: KafkaClient, name: str, ids: TopicIds, table_id: str) -> None:
    """Claim a topic for a table; idempotent."""
    group = claim_group(name, ids, table_id)
    with closing(client.consumer(group)) as consumer:
        commit_offsets(f"claim topic '{name}'", client, consumer, [TopicPartition(name, 0, 0, table_id)])


def claimed_by(client: KafkaClient, name: str, ids: TopicIds) -> Sequence[str]:
    """Return the ids of the tables that have claimed a topic."""
    prefix = _prefix(name, ids)

    def groups(seconds: float) -> list[str]:
        listed = client.admin().list_consumer_groups(request_timeout=seconds).result()
        if listed.errors:
            # A broker that did not respond may hold a claim. (A KafkaError is no exception, and no handler sees it.)
            raise KafkaException(listed.errors[0])
        return [each.group_id for each in listed.valid]

    found = ask_coordinator(f"look for other tables on topic '{name}'", client, groups)
    return sorted(each.removeprefix(prefix) for each in found if each.startswith(prefix))


def _prefix(name: str, ids: TopicIds) -> str:
    return f"tablestore-topic-{ids.topic_id or name}-"

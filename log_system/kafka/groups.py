"""Consumer groups: those of dropped tables are removed, and what they hold is proof of who used a topic."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from log_system.kafka.client import KafkaClient, kafka_errors
from log_system.kafka.topic_requests import one
from snapshot.errors import NotFoundError

_GONE = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NON_EMPTY_GROUP)


def delete_groups(client: KafkaClient, groups: Sequence[str]) -> None:
    """Remove consumer groups; those that do not exist, or that somebody still uses, are left.

    Raises:
        UnavailableError: the broker does not answer.
    """
    admin = client.admin()
    with kafka_errors("remove consumer groups", client, handle=admin):
        for future in admin.delete_consumer_groups(list(groups), request_timeout=client.request_seconds).values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() not in _GONE:
                    raise


def has_offsets(client: KafkaClient, group: str, topic: str) -> bool:
    """Return whether a consumer group has committed an offset in a topic. Brokers drop such offsets with the topic.

    Raises:
        UnavailableError: the broker does not answer.
    """
    admin = client.admin()
    try:
        with kafka_errors(f"read the offsets of group {group!r}", client, handle=admin):
            asked = [ConsumerGroupTopicPartitions(group)]
            found = one(admin.list_consumer_group_offsets(asked, request_timeout=client.request_seconds))
    except NotFoundError:
        return False
    return any(each.topic == topic and each.offset >= 0 for each in found.topic_partitions or ())

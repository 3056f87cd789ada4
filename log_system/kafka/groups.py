"""Consumer groups: those of dropped tables are removed."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from log_system.kafka.client import KafkaClient, kafka_errors

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

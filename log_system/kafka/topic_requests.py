"""The questions about topics that the admin API answers, each bounded in time."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not listed in its __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from log_system.kafka.client import KafkaClient, kafka_errors
from snapshot.errors import NotFoundError

#: How long one request to the broker may take; an unreachable broker is reported after this.
REQUEST_SECONDS_MAX: Final = 8.0

#: How long the brokers may take to tell each other of a new or deleted topic, or of a new leader.
SETTLE_SECONDS_MAX: Final = 15.0
SETTLE_STEP_SECONDS: Final = 0.05

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_NO_ID: Final = "A" * 22
"""How Kafka writes an id that is not set."""

T = TypeVar("T")


@dataclass(frozen=True)
class TopicShape:
    """What a topic is.

    Attributes:
        partitions: how many partitions it has.
        led: how many of them have a leader, and so can be written and read now.
        compacted: whether ``cleanup.policy`` holds ``compact``.
        retention_ms: ``retention.ms``; -1 is forever.
    """

    partitions: int
    led: int
    compacted: bool
    retention_ms: int


def missing(client: KafkaClient, name: str) -> NotFoundError:
    """Make the error for a topic that should be there."""
    return NotFoundError(
        f"option 'kafka.topic': there is no topic '{name}' at kafka.bootstrap.servers='{client.bootstrap_servers}'. "
        f"It was deleted, and its records with it, or the table was made with another Kafka cluster. The table's files "
        f"hold every row."
    )


def describe(client: KafkaClient, admin: AdminClient, name: str) -> TopicShape | None:
    """Return the shape of a topic, or ``None`` if there is none."""
    parts = partitions_led(client, admin, name)
    if parts is None:
        return None
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        with kafka_errors(f"look up the settings of topic '{name}'", client, handle=admin):
            settings = one(admin.describe_configs([resource], request_timeout=REQUEST_SECONDS_MAX))
    except NotFoundError:
        return None
    policy = {word.strip() for word in str(settings["cleanup.policy"].value).split(",")}
    return TopicShape(
        partitions=len(parts),
        led=sum(parts.values()),
        compacted="compact" in policy,
        retention_ms=int(settings["retention.ms"].value),
    )


def partitions_led(client: KafkaClient, admin: AdminClient, name: str) -> dict[int, bool] | None:
    """Return for each partition whether it has a leader, or ``None`` if there is no such topic."""
    found = look_up(client, admin, name)
    return None if found is None else found[1]


def look_up(client: KafkaClient, admin: AdminClient, name: str) -> tuple[str, dict[int, bool]] | None:
    """Return Kafka's own id of a topic, which no other topic ever has, and for each partition whether it has a leader.

    Returns:
        The id is empty where the brokers have none (before Kafka 2.8); ``None`` if there is no such topic.
    """
    try:
        with kafka_errors(f"look up topic '{name}'", client, handle=admin):
            found = one(admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_SECONDS_MAX))
    except NotFoundError:
        return None
    named = str(found.topic_id or "")
    led = {part.id: part.leader is not None and part.leader.id >= 0 for part in found.partitions}
    return ("" if named == _NO_ID else named), led


def one(futures: Mapping[Any, Future[T]]) -> T:
    """Return the result of a request about one thing; librdkafka's own time limit ends the wait."""
    (future,) = futures.values()
    return future.result()

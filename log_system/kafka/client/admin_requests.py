"""Requests about topics through the admin API, each bounded in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not listed in its __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.errors import is_unavailable
from log_system.kafka.client.shared_admin import forget
from snapshot.errors import NotFoundError

#: How long brokers may take to propagate a new or deleted topic, or a new leader.
SETTLE_SECONDS_MAX: Final = 15.0
SETTLE_STEP_SECONDS: Final = 0.05
#: How long a topic that should exist is looked for: a broker may not know a new one yet.
NEW_SECONDS_MAX: Final = 3.0

#: How long a request waits before the brokers are looked up again.
_LOOK_SECONDS: Final = 0.5
ATTEMPT_SECONDS: Final = 1.0
ATTEMPT_GROWTH: Final = 1.25
"""How long the first attempt at a look-up may take, and by how much longer each further one may take."""

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: The topic id reported for brokers without topic ids (before Kafka 2.8): a UUID of zeros.
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class TopicShape:
    """The partition count, settings and id of a topic.

    Attributes:
        partitions: the number of partitions.
        compacted: whether ``cleanup.policy`` includes ``compact``.
        retention_ms: ``retention.ms``; -1 means forever.
        topic_id: the id that the cluster gave the topic when it was created (KIP-516), as Kafka's tools print it; empty
            if the brokers do not support topic ids. A topic that is deleted and created again has another id.
    """

    partitions: int
    compacted: bool
    retention_ms: int
    topic_id: str = ""


def missing(client: KafkaClient, name: str) -> NotFoundError:
    """Return the error for a topic that should exist but does not."""
    if client.prefix != "kafka.":
        return NotFoundError(
            f"option 'topic': there is no topic '{name}' at {client.prefix}bootstrap.servers="
            f"'{client.bootstrap_servers}'. Make it first, or correct the name."
        )
    return NotFoundError(
        f"option 'kafka.topic': there is no topic '{name}' at kafka.bootstrap.servers='{client.bootstrap_servers}'. "
        f"It was deleted, and its records with it, or the table was made with another Kafka cluster. The table's files "
        f"hold every row."
    )


def describe_topic(client: KafkaClient, name: str) -> TopicShape | None:
    """Return the shape of a topic, or ``None`` if it does not exist."""
    found = look_up(client, name)
    if found is None:
        return None
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        settings = answer(
            client,
            f"look up the settings of topic '{name}'",
            lambda admin, seconds: admin.describe_configs([resource], request_timeout=seconds),
        )
    except NotFoundError:
        return None
    policy = {word.strip() for word in str(settings["cleanup.policy"].value).split(",")}
    return TopicShape(
        partitions=len(found.partitions),
        compacted="compact" in policy,
        retention_ms=int(settings["retention.ms"].value),
        topic_id=id_of(found),
    )


def partitions_led(client: KafkaClient, name: str) -> dict[int, bool] | None:
    """Return for each partition whether it has a leader, or ``None`` if the topic does not exist."""
    found = look_up(client, name)
    if found is None:
        return None
    leaders: dict[int, Any] = {part.id: part.leader for part in found.partitions}
    return {number: leader is not None and leader.id >= 0 for number, leader in leaders.items()}


def look_up(client: KafkaClient, name: str) -> TopicDescription | None:
    """Return the cluster's description of a topic, or ``None`` if the topic does not exist."""
    topic = TopicCollection([name])
    try:
        found: TopicDescription = answer(
            client,
            f"look up topic '{name}'",
            lambda admin, seconds: admin.describe_topics(topic, request_timeout=seconds),
        )
    except NotFoundError:
        return None
    return found


def expected(client: KafkaClient, name: str, ask: Callable[[KafkaClient, str], T | None]) -> T:
    """Return an answer about a topic that should exist, asking again while a broker does not know a new one yet.

    Raises:
        NotFoundError: the topic does not exist.
    """
    until = time.monotonic() + min(NEW_SECONDS_MAX, client.wait_seconds)
    while (found := ask(client, name)) is None:
        if time.monotonic() > until:
            raise missing(client, name)
        time.sleep(SETTLE_STEP_SECONDS)
    return found


def id_of(found: TopicDescription) -> str:
    """Return a topic's id; empty if the brokers do not support topic ids."""
    topic_id = str(found.topic_id)
    # librdkafka uses standard base64, Kafka and its tools use URL-safe base64.
    return "" if topic_id == _NO_TOPIC_ID else topic_id.replace("+", "-").replace("/", "_")


def answered(
    client: KafkaClient, doing: str, ask: Callable[[AdminClient, float], Mapping[K, Future[T]]]
) -> Mapping[K, Future[T]]:
    """Ask the cluster's controller something, and return the futures of the answer, which are done.

    Brokers name any of them as the controller, for some seconds also one that has just died. A client then waits for
    that one until the time is over (librdkafka 2.16), unless a further look at the brokers names another one. A look
    ends requests to a broker that is missing from it, and the death of a broker those to it. So a request is repeated
    until ``request_seconds`` are over, each time by a new client, which may find another broker. ``ask`` sends the
    request, with a time limit in seconds; it may be sent and carried out several times. ``doing`` is what is attempted,
    for the message.

    Raises:
        UnavailableError: the brokers do not respond.
    """
    until, seconds = time.monotonic() + client.request_seconds, ATTEMPT_SECONDS
    while True:
        admin = client.admin()
        with kafka_errors(doing, client, handle=admin):
            left = max(ATTEMPT_SECONDS, until - time.monotonic())
            futures = ask(admin, min(seconds, client.request_seconds, left))
            while wait(futures.values(), _LOOK_SECONDS).not_done:
                _look_brokers_up(admin)
            errors = (future.exception() for future in futures.values())
            if not any(isinstance(error, KafkaException) and is_unavailable(error) for error in errors):
                return futures
            if time.monotonic() > until:
                for future in futures.values():
                    future.result()
        forget(admin)
        seconds *= ATTEMPT_GROWTH
        time.sleep(SETTLE_STEP_SECONDS)


def _look_brokers_up(admin: AdminClient) -> None:
    def look() -> None:
        with suppress(KafkaException):
            # All topics: the answer for a single one that does not exist, such as one of Kafka's own, may not come.
            admin.list_topics(timeout=2 * _LOOK_SECONDS)

    # A call of the client that fails leaks the error that is being handled in its thread (confluent-kafka 2.16), here
    # one of a publisher, whose traceback holds its producer with all threads and connections.
    thread = threading.Thread(target=look, name="look-brokers-up", daemon=True)
    thread.start()
    thread.join()


def answer(client: KafkaClient, doing: str, ask: Callable[[AdminClient, float], Mapping[Any, Future[T]]]) -> T:
    """Return the answer of the cluster's controller to a question about a single item; see :func:`answered`.

    Raises:
        TableStoreError: the brokers refuse the request, or do not respond.
    """
    with kafka_errors(doing, client):
        (future,) = answered(client, doing, ask).values()
        try:
            return future.result()
        finally:
            # A future holds its error, whose traceback holds this frame and those of its callers with their clients.
            del future


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """Return an admin client that logs nothing, for a broker that may not be running yet."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def answering_cluster(client: AdminClient) -> str | None:
    """Return the id of the cluster whose broker responds; None if none does."""
    try:
        found = client.list_topics(timeout=1.0)
    except KafkaException:
        return None
    return found.cluster_id if found.brokers else None
